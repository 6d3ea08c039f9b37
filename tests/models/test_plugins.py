"""Plugins of other packages: found through an entry point, named by key, refused early where they are not there."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from porter.errors import SpecError
from porter.models.build import plan_build
from porter.specs.family import read_family
from porter.specs.plugins import forget_plugins, plugin_of
from porter.specs.resolve import resolve_size
from tests.models.tiny import random_ids

TEXT = "plugins: [softsilu]\nblock: {mlp: {act: softsilu}}\n"
SPEC = """extends: llama
model_type: llama
architecture: LlamaForCausalLM
"""
SIZES = """sizes:
  tiny:
    config: {vocab_size: 512, hidden_size: 96, intermediate_size: 160, num_hidden_layers: 2, num_attention_heads: 4,
             num_key_value_heads: 2, head_dim: 24, max_position_embeddings: 4096, rms_norm_eps: 1.0e-6}
"""
TOY = """from porter.specs.plugins import Plugin

ACT = Plugin("activation", "softsilu", "toy_torch:softsilu")
ROUTER = Plugin("router", "absolute", "toy_torch:absolute")
SCALING = Plugin("rope_scaling", "halved", "toy_torch:halved")
BROKEN = Plugin("activation", "lost", "toy_torch:nothing")
"""
TORCH = """import torch


def softsilu(x):
    return x * torch.tanh(x)


def absolute(logits):
    return logits.abs()


def halved(*, theta, dim, scaling, max_positions, seq_len):
    return theta ** (-torch.arange(0, dim, 2) / dim) / scaling["factor"], 1.0
"""
POINTS = """[porter.plugins]
softsilu = toy_plugin:ACT
absolute = toy_plugin:ROUTER
halved = toy_plugin:SCALING
lost = toy_plugin:BROKEN
absent = toy_plugin:MISSING
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of that name: two modules and a dist-info folder."""
    site = tmp_path / "site"
    about = site / "toy_plugin-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-plugin\nVersion: 1.0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text(POINTS, encoding="utf-8")
    (site / "toy_plugin.py").write_text(TOY, encoding="utf-8")
    (site / "toy_torch.py").write_text(TORCH, encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    forget_plugins()
    yield
    for name in ("toy_plugin", "toy_torch"):
        sys.modules.pop(name, None)
    monkeypatch.undo()
    forget_plugins()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def spec(text: str) -> Path:
        path = tmp_path / "toy.yaml"
        path.write_text(SPEC + text + SIZES, encoding="utf-8")
        return path

    return spec


@pytest.mark.usefixtures("installed")
def test_a_plugin_computes(write: Callable[[str], Path]) -> None:
    build = plan_build(
        str(write(TEXT)), size="tiny", weights="random:stress", overrides=(), dtype="float32", ops="reference",
        device="cpu", prompt=None, tokens=None,
    )  # fmt: skip
    nodes: dict[str, torch.Tensor] = {}
    build.model()(random_ids(build, 5), tap=nodes.__setitem__)
    gate, up = nodes["layers.1.mlp.gate"], nodes["layers.1.mlp.up"]
    assert torch.equal(nodes["layers.1.mlp.act"], gate * torch.tanh(gate) * up)


@pytest.mark.usefixtures("installed")
def test_a_router_and_a_scaling_of_rope_compute(write: Callable[[str], Path]) -> None:
    text = """plugins: [absolute, halved]
block:
  rope: {scaling: {rope_type: halved, factor: 2.0}}
  moe: {experts: 4, top_k: 2, ffn: 32, router: {score: absolute}}
"""
    path = write(text)
    build, linear = (
        plan_build(
            str(path), size="tiny", weights="random:stress", overrides=overrides, dtype="float32", ops="reference",
            device="cpu", prompt=None, tokens=None,
        )
        for overrides in ((), ("block.rope.scaling={rope_type: linear, factor: 2.0}",))
    )  # fmt: skip
    nodes, same = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    build.model()(random_ids(build, 9), tap=nodes.__setitem__)
    linear.model()(random_ids(build, 9), tap=same.__setitem__)
    logits = nodes["layers.0.moe.router"]
    assert torch.equal(nodes["layers.0.moe.topk"], logits.abs().topk(2).values)
    torch.testing.assert_close(nodes["layers.0.attn.q_rope"], same["layers.0.attn.q_rope"])


def test_without_the_package_the_spec_is_refused_early(write: Callable[[str], Path]) -> None:
    assert plugin_of("activation", "softsilu") is None
    with pytest.raises(SpecError, match=r"toy\.yaml:4: plugins names 'softsilu', which is not installed") as found:
        resolve_size(read_family(write(TEXT)), "tiny")
    assert "an entry point of the group porter.plugins" in found.value.fix


@pytest.mark.usefixtures("installed")
def test_what_is_wrong_with_a_plugin_is_said(write: Callable[[str], Path]) -> None:
    with pytest.raises(SpecError, match=r"block\.mlp\.act is 'softsilu', a plugin") as found:
        resolve_size(read_family(write("block: {mlp: {act: softsilu}}\n")), "tiny")
    assert found.value.fix == "Add `plugins: [softsilu]`."
    with pytest.raises(SpecError, match=r"'absent', which is not installed; its entry point is broken: .*MISSING"):
        resolve_size(read_family(write("plugins: [absent]\n")), "tiny")
    lost = plugin_of("activation", "lost")
    assert lost is not None
    with pytest.raises(SpecError, match=r"plugin 'lost' names toy_torch:nothing, which cannot be imported"):
        lost.load()


def test_a_mixer_that_is_not_listed_or_not_there_is_refused(write: Callable[[str], Path]) -> None:
    mla = "{kind: mla, kv_rank: 16, nope: 16, rope: 8, v: 16}"
    with pytest.raises(SpecError, match=r"block\.mixer is 'mla', a plugin"):
        resolve_size(read_family(write(f"block: {{mixer: {mla}}}\n")), "tiny")
    with pytest.raises(SpecError, match=r"no mixer is called 'wkv'; installed: mla"):
        resolve_size(read_family(write("plugins: [mla]\nblock: {mixer: {kind: wkv}}\n")), "tiny")
