"""Random weights: the same bits each time, and under stress nothing that hides a bug."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from porter.models.build import Build, plan_build
from porter.specs.ledger import layout
from porter.weights import random_init
from porter.weights.random_init import write_random


def plan(family: str) -> Build:
    return plan_build(family, size="tiny", weights="random:stress", overrides=(), dtype="float32", ops="reference",
                      device="cpu", prompt=None, tokens=None)  # fmt: skip


def draw(family: str, folder: Path, kind: str = "random:stress", dtype: str = "F32") -> dict[str, Tensor]:
    build = plan(family)
    write_random(build.blueprint, build.config, folder, kind=kind, dtype=dtype)
    return load_file(folder / "model.safetensors")


def of_kind(family: str, tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    entries = layout(plan(family).blueprint).values()
    return {entry.source: tensors[entry.source] for entry in entries if entry.parameter.kind == kind}


@pytest.mark.parametrize("kind", ["random", "random:stress"])
def test_the_same_bits_twice(tmp_path: Path, kind: str) -> None:
    first, second = (draw("gemma3", tmp_path / name, kind) for name in "ab")
    assert first.keys() == second.keys() == {entry.source for entry in layout(plan("gemma3").blueprint).values()}
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


def test_no_two_tensors_are_alike(tmp_path: Path) -> None:
    tensors = draw("llama", tmp_path / "a")
    assert len({tensor.numpy().tobytes() for tensor in tensors.values()}) == len(tensors)


def test_bfloat16_is_the_float32_draw_rounded_once(tmp_path: Path) -> None:
    wide, narrow = draw("gpt2", tmp_path / "a"), draw("gpt2", tmp_path / "b", dtype="BF16")
    assert all(torch.equal(narrow[name], wide[name].bfloat16()) for name in wide)


def test_a_tensor_of_many_blocks_has_no_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_init, "_BLOCK_ELEMENTS", 96 * 10)
    w_VD = draw("llama", tmp_path / "a")["model.embed_tokens.weight"]
    assert len({row.numpy().tobytes() for row in w_VD}) == 512


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gpt2", "gemma", "gemma3"])
def test_stress_leaves_no_norm_or_bias_trivial(tmp_path: Path, family: str) -> None:
    tensors = draw(family, tmp_path / "a")
    offset = plan(family).blueprint.norm.offset
    for name, tensor in of_kind(family, tensors, "norm").items():
        assert tensor.mean() == pytest.approx(1 - offset, abs=0.2), name
        assert 0.15 < tensor.std() < 0.45, name
    for name, tensor in of_kind(family, tensors, "bias").items():
        assert abs(tensor.mean()) < 0.2 and 0.15 < tensor.std() < 0.45, name
    assert of_kind(family, tensors, "bias") or family.startswith("gemma")


@pytest.mark.parametrize("family", ["llama", "gpt2", "phi3"])
def test_stress_gives_linear_maps_unit_gain(tmp_path: Path, family: str) -> None:
    tensors, checked = draw(family, tmp_path / "a"), 0
    for entry in layout(plan(family).blueprint).values():
        if entry.parameter.kind in {"norm", "bias"} or entry.parameter.name in {"embed.weight", "pos.weight"}:
            continue
        weight = tensors[entry.source].double()
        gain = weight.square().sum() / weight.shape[0 if entry.shape == entry.parameter.shape else 1]
        assert 0.85 < float(gain) < 1.15, entry.source  # mean square of the output over that of the input
        checked += 1
    assert checked > 10


def test_random_is_what_a_fresh_model_has(tmp_path: Path) -> None:
    tensors = draw("llama", tmp_path / "a", "random")
    assert all((tensor == 1).all() for tensor in of_kind("llama", tensors, "norm").values())
    assert all((tensor == 0).all() for tensor in of_kind("llama", tensors, "bias").values())
    assert tensors["lm_head.weight"].std() == pytest.approx(0.02, rel=0.05)
    gemma = of_kind("gemma", draw("gemma", tmp_path / "b", "random"), "norm")
    assert all((tensor == 0).all() for tensor in gemma.values())  # 1 + weight


def test_the_config_is_the_size_s_and_names_hf_s_class(tmp_path: Path) -> None:
    draw("gemma3", tmp_path / "a")
    config = json.loads((tmp_path / "a/config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("gemma3_text", ["Gemma3ForCausalLM"])
    assert config["sliding_window"] == 128
