"""Parameters read through the ledger: rounded once, finite, each accounted for."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from porter.errors import WeightError
from porter.models.build import plan_build
from porter.weights.random_init import write_random
from porter.weights.reader import open_weights
from tests.models.checkpoints import change_tensors

CPU = torch.device("cpu")
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def blueprint_of(family: str):
    return plan_build(family, size="tiny", weights="random", overrides=(), dtype="float32", ops="reference",
                      device="cpu", prompt=None, tokens=None)  # fmt: skip


@pytest.fixture
def llama(tmp_path: Path):
    build = blueprint_of("llama")
    write_random(build.blueprint, build.config, tmp_path / "llama", kind="random:stress", dtype="F32")
    return build.blueprint, tmp_path / "llama"


def test_every_parameter_is_read_from_its_tensor(llama) -> None:
    blueprint, folder = llama
    reader, tensors = open_weights(blueprint, folder), load_file(folder / "model.safetensors")
    assert {entry.source for entry in reader.ledger.entries.values()} == tensors.keys()
    assert torch.equal(reader.read("layers.0.attn.q.weight", torch.float32, CPU), tensors[Q_PROJ])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_tensor_is_rounded_once(llama, dtype: torch.dtype) -> None:
    blueprint, folder = llama
    found = open_weights(blueprint, folder).read("layers.0.attn.q.weight", dtype, CPU)
    assert found.dtype == dtype and torch.equal(found, load_file(folder / "model.safetensors")[Q_PROJ].to(dtype))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_values_that_are_not_finite_are_counted_and_placed(llama, value: float) -> None:
    blueprint, folder = llama

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors[Q_PROJ][:2, 5] = value

    change_tensors(folder, spoil)
    reader = open_weights(blueprint, folder)
    with pytest.raises(WeightError, match=rf"{Q_PROJ} \(layers.0.attn.q.weight\) holds 2 values .*, of 9,216"):
        reader.read("layers.0.attn.q.weight", torch.float32, CPU)


def test_large_finite_values_are_no_error(llama) -> None:
    blueprint, folder = llama
    change_tensors(folder, lambda tensors: tensors[Q_PROJ].fill_(3e38))  # whose sum is infinite
    assert open_weights(blueprint, folder).read("layers.0.attn.q.weight", torch.float32, CPU)[0, 0] > 1e38


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(Q_PROJ), Q_PROJ),
        (lambda tensors: tensors.update(stray=torch.ones(1)), "stray"),
        (lambda tensors: tensors.update({Q_PROJ: torch.ones(96, 97)}), r"\[96, 97\]"),
    ],
    ids=["missing", "left over", "misshapen"],
)
def test_a_ledger_that_does_not_balance(llama, change, message: str) -> None:
    blueprint, folder = llama
    change_tensors(folder, change)
    with pytest.raises(WeightError, match=message):
        open_weights(blueprint, folder)


def test_a_tied_head_may_be_stored_twice_but_not_differently(tmp_path: Path) -> None:
    build = blueprint_of("gemma")
    write_random(build.blueprint, build.config, tmp_path / "gemma", kind="random:stress", dtype="F32")
    change_tensors(tmp_path / "gemma", lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    open_weights(build.blueprint, tmp_path / "gemma")
    change_tensors(tmp_path / "gemma", lambda tensors: tensors["lm_head.weight"].add_(1e-3))
    with pytest.raises(WeightError, match=r"lm_head.weight differs from model.embed_tokens.weight, but the spec ties"):
        open_weights(build.blueprint, tmp_path / "gemma")
