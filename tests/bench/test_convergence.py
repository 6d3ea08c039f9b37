"""Patched training goes where plain training goes; a backward pass that misreads memory is caught."""

from dataclasses import replace

import pytest
import torch

from porter.bench.convergence.judge import judge
from porter.bench.convergence.run import compare_trainings
from porter.bench.convergence.training import Course, Trajectory
from porter.errors import ComparisonError
from tests.models.tiny import porter_cache

__all__ = ["porter_cache"]
_SHORT = Course(steps=4, batch=1, length=32)
_KINDS = ["losses", "log_probs", "layers", "gradients", "updates"]


@pytest.mark.parametrize("family", ["gemma2", "llama"])
def test_four_steps(family: str) -> None:
    rows = compare_trainings(family, ["float32"], "cpu", _SHORT)
    assert [row.what for row in rows] == _KINDS
    assert [row for row in rows if row.status != "PASS"] == []
    assert all(0 < row.e_plain < 1e-3 for row in rows)  # golden is another training than plain, and near it


def test_a_backward_that_believes_memory_to_be_contiguous_is_caught() -> None:
    rows = compare_trainings("llama", ["float32"], "cpu", _SHORT, fault="contiguity")
    assert {row.what for row in rows if row.status == "FAIL"} == set(_KINDS)


def test_a_training_that_does_not_end_is_told() -> None:
    with pytest.raises(
        ComparisonError, match=r"training golden, plain of .* ended with 2: worker.py: error: .*no_such_dtype"
    ):
        compare_trainings("llama", ["no_such_dtype"], "cpu", _SHORT)


def _trajectory(error: float = 0.0, experts: tuple[int, ...] = ()) -> Trajectory:
    generator = torch.Generator().manual_seed(0)

    def near(*shape: int) -> torch.Tensor:
        value = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return value * (1 + error)

    return Trajectory(
        near(4), near(1, 5, 30), {"layers.0": near(5, 8), "layers.1": near(5, 8)},
        {"model.layers.1.mlp.up_proj.weight": near(8, 8), "lm_head.weight": near(30, 8)},
        {"model.layers.1.mlp.up_proj.weight": near(8, 8), "lm_head.weight": near(30, 8)},
        [torch.tensor(experts, dtype=torch.int16)],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("plain", "patched", "status"),
    [(1e-6, 1e-6, "PASS"), (1e-6, 5e-6, "WARN"), (1e-6, 2e-5, "FAIL"), (0.0, 1e-7, "PASS"), (0.6, 0.6, "INCONCLUSIVE")],
)
def test_verdicts_are_ratios_of_errors(plain: float, patched: float, status: str) -> None:
    rows = judge("f", "float32", _trajectory(), _trajectory(plain), _trajectory(patched))
    assert {row.status for row in rows} == {status}


def test_the_worst_layer_is_named_and_a_missing_gradient_fails() -> None:
    golden, plain, patched = _trajectory(), _trajectory(1e-6), _trajectory(1e-6)
    wrong = {**patched.updates, "lm_head.weight": patched.updates["lm_head.weight"] * 1.001}
    less = {name: value for name, value in patched.gradients.items() if "layers" not in name}
    rows = {
        row.what: row for row in judge("f", "float32", golden, plain, replace(patched, updates=wrong, gradients=less))
    }
    assert (rows["updates"].where, rows["updates"].status) == ("lm_head.weight", "FAIL")
    assert (rows["gradients"].where, rows["gradients"].status) == ("layers.1", "FAIL")
    assert rows["losses"].status == "PASS"


def test_a_model_whose_tokens_went_to_other_experts_does_not_fail_by_that() -> None:
    sides = [_trajectory(error, (0, 3, 5)) for error in (0.0, 1e-6, 2e-5)]
    assert {row.status for row in judge("f", "float32", *sides)} == {"FAIL"}
    flipped = judge("f", "float32", *sides[:2], _trajectory(2e-5, (0, 3, 4)))
    assert {(row.status, row.flips) for row in flipped} == {("INCONCLUSIVE", 1)}
    near = judge("f", "float32", *sides[:2], _trajectory(1e-6, (0, 3, 4)))
    assert {(row.status, row.flips) for row in near} == {("PASS", 1)}
