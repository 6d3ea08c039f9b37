"""Ports whose spec is not known: what a dump or a module computed is named by the axis or the tensor that gives it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from porter.comparison.capture import capture
from porter.errors import UsageError
from porter.explanation.explain import Explanation, explain
from porter.specs.family import find_family
from porter.specs.resolve import resolve_size
from tests.models.tiny import tiny

MODULES = Path(__file__).resolve().parents[1] / "user_modules"


def of_dump(folder: Path, family: str, *overrides: str, dtype: str = "float32", tokens: int = 140) -> Explanation:
    """What is said of the dump of a port with overrides."""
    capture(tiny(family, *overrides, dtype=dtype, tokens=tokens), out=folder / "dump")
    return explain(tiny(family, dtype=dtype), port=f"dump:{folder / 'dump'}")


def of_module(family: str, function: str, monkeypatch: pytest.MonkeyPatch, **given: object) -> Explanation:
    monkeypatch.chdir(MODULES)
    found = MODULES / f"my_{family}.map.yaml"
    return explain(tiny(family, dtype="float32", tokens=140), port=f"module:my_{family}:{function}", map=found, **given)  # type: ignore[arg-type]


CASES = [  # family, what the port has, as what it is named, dtype, stage
    ("gemma", "block.mlp.act=gelu", "block.mlp.act=gelu", "float32", "semantics"),
    ("gemma2", "block.attn.softcap=null", "block.attn.softcap=null", "bfloat16", "precision"),
    ("llama", "block.rope.theta=512345", "block.rope.theta=512345.0", "float32", "semantics"),
    ("llama", "block.attn.clip_qkv=1.5", "block.attn.clip_qkv=1.5", "float32", "semantics"),
    ("llama", "embed.scale=12.0", "embed.scale=12.0", "float32", "semantics"),
    ("llama", "block.attn.window=64", "block.attn.window=64", "bfloat16", "precision"),
    ("llama", "norm.math=scale_then_cast", "norm.math=scale_then_cast", "bfloat16", "exact"),
    ("phi3", "weights.block.mlp.gate_up.order=[up, gate]", "weights.block.mlp.gate_up.order=[up, gate]", "float32",
     "semantics"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "has", "named", "dtype", "by"), CASES, ids=lambda each: str(each))
def test_a_dump_is_explained_by_the_axis_that_its_port_had(
    family: str, has: str, named: str, dtype: str, by: str, tmp_path: Path
) -> None:
    found = of_dump(tmp_path, family, has, dtype=dtype)
    assert (found.outcome, found.foreign, found.kept) == ("explained", True, (named,))
    assert [step.by for step in found.steps] == [by]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_clean_dump_is_accused_of_nothing(dtype: str, tmp_path: Path) -> None:
    found = of_dump(tmp_path, "gemma3", dtype=dtype)
    assert (found.outcome, found.kept, found.exit_code) == ("nothing", (), 0)


def test_fused_ops_have_other_bits_and_no_fault(tmp_path: Path) -> None:
    capture(tiny("gemma3", dtype="float32", tokens=40, ops="triton"), out=tmp_path / "dump")
    found = explain(tiny("gemma3", dtype="float32"), port=f"dump:{tmp_path / 'dump'}")
    assert (found.outcome, found.kept) == ("nothing", ())


MISTAKES = [
    ("llama", "load_swapped", "layers.0.mlp.gate is layers.0.mlp.up, and that is it"),
    ("qwen3", "load_without_qk_norm", "block.attn.qk_norm=null"),
    ("mistral", "load_with_a_wider_window", "block.attn.window=129"),
]


@pytest.mark.parametrize(("family", "function", "named"), MISTAKES, ids=lambda each: str(each)[:20])
def test_what_a_modules_code_does_is_named(
    family: str, function: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = of_module(family, function, monkeypatch)
    assert found.outcome == "explained" and found.told[0] == named


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3"])
def test_a_clean_module_is_accused_of_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_module(family, "load", monkeypatch).outcome == "nothing"


def spoiled(monkeypatch: pytest.MonkeyPatch, spoil: object) -> Explanation:
    """What is said of the clean module, its weights changed after they were loaded."""
    monkeypatch.syspath_prepend(str(MODULES))
    from my_llama import load  # type: ignore[import-not-found]

    def wrong(folder: Path) -> nn.Module:
        module: nn.Module = load(folder)
        with torch.no_grad():
            spoil(dict(module.named_parameters()))  # type: ignore[operator]
        return module

    port = wrong(tiny("llama", dtype="float32").checkpoint())
    return explain(tiny("llama", dtype="float32", tokens=40), port=port, map=MODULES / "my_llama.map.yaml")


def test_tensors_that_were_loaded_wrongly_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def norm(parameters: dict[str, torch.Tensor]) -> None:
        parameters["layers.1.attention_norm.weight"].add_(1.0)

    found = spoiled(monkeypatch, norm)
    assert found.kept == () and found.tensors == (
        "layers.1.attn.norm.weight is larger by 1: an offset that is added twice",
    )

    def layer(parameters: dict[str, torch.Tensor]) -> None:
        for name, value in parameters.items():
            if name.startswith("layers.1."):
                value.copy_(parameters[name.replace("layers.1.", "layers.2.")])

    assert spoiled(monkeypatch, layer).tensors == ("layers.1 is layer 2’s",)


def test_what_no_axis_and_no_tensor_gives_is_said_to_be_unexplained(monkeypatch: pytest.MonkeyPatch) -> None:
    def noise(parameters: dict[str, torch.Tensor]) -> None:
        value = next(value for name, value in parameters.items() if name.startswith("layers.0") and value.ndim == 2)
        value += 0.01 * torch.randn(value.shape, generator=torch.Generator().manual_seed(0))

    found = spoiled(monkeypatch, noise)
    assert (found.outcome, found.told, found.exit_code) == ("unexplained", (), 1)
    assert found.steps[0].tried > 50


def test_changes_of_the_build_do_not_go_with_a_dump(tmp_path: Path) -> None:
    capture(tiny("llama", dtype="float32", tokens=20), out=tmp_path / "dump")
    with pytest.raises(UsageError, match="it changes the port, and that is a dump"):
        explain(tiny("llama", "norm.offset=1", dtype="float32"), port=f"dump:{tmp_path / 'dump'}")


def test_a_build_keeps_the_config_it_was_given(tmp_path: Path) -> None:
    port = tiny("mistral", dtype="float32", tokens=20)
    port = replace(port, config={**port.config, "rope_theta": 1e6}, overrides=("block.rope.theta=10000.0",))
    assert resolve_size(find_family("mistral"), "tiny").blueprint.blocks[0].rope.theta != 1e6
    capture(port, out=tmp_path / "dump")
    found = explain(replace(port, overrides=()), port=f"dump:{tmp_path / 'dump'}")
    assert found.kept == ("block.rope.theta=10000.0",)
