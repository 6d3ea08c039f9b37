"""cross_entropy against its reference in float64, forward and backward: every shape, dtype and option."""

from typing import Any

import pytest
import torch
from torch import Tensor

from porter_kernels.accuracy import excess
from porter_kernels.cross_entropy import cross_entropy, cross_entropy_reference
from tests.porter_kernels.cross_entropy.cases import DEVICE, DTYPES, OPTIONS, Case, draw, measure_scales


def check(case: Case, d_loss: Tensor) -> None:
    logits = case.logits.detach().requires_grad_()
    wide = case.logits.double().requires_grad_()
    loss, truth = case.loss(logits), case.reference(wide)
    (d_logits,) = torch.autograd.grad(loss, logits, d_loss)
    (d_truth,) = torch.autograd.grad(truth, wide, d_loss.double())
    scales, terms = measure_scales(case, d_loss), sum(case.logits.shape)
    assert (loss.dtype, loss.shape) == (torch.float32, truth.shape)
    assert (d_logits.dtype, d_logits.shape) == (case.logits.dtype, case.logits.shape)
    assert (worst := excess(loss.detach(), truth.detach(), terms, scales.loss)) <= 1, (
        f"loss: {worst:.2g} times its budget"
    )
    assert (worst := excess(d_logits, d_truth, terms, scales.d_logits)) <= 1, f"gradient: {worst:.2g} times its budget"


def draw_upstream(loss: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(loss.shape, generator=generator).to(DEVICE)


@pytest.mark.parametrize("option", ["plain", "everything"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (5, 2), (1, 37), (3, 3, 37), (2, 63)], ids=str)
@pytest.mark.usefixtures("cuts")
def test_shapes(shape: tuple[int, ...], option: str, generator: torch.Generator) -> None:
    check(draw(generator, shape, **OPTIONS[option]), torch.ones((), device=DEVICE))


NARROW = [(option, dtype) for option in ("plain", "softcap", "everything") for dtype in DTYPES[1:]]


@pytest.mark.parametrize(("option", "dtype"), [*((option, torch.float32) for option in OPTIONS), *NARROW], ids=str)
@pytest.mark.usefixtures("small_cuts")
def test_options(option: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    case = draw(generator, (5, 37), dtype, **OPTIONS[option])
    check(case, draw_upstream(case.reference(case.logits.double()), generator))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("V", [1000, 70_001])  # the latter beyond one chunk, as launched
def test_wide(V: int, reduction: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    case = draw(generator, (3, V), dtype, **OPTIONS["everything"] | {"reduction": reduction})
    check(case, draw_upstream(torch.empty(() if reduction == "mean" else 3), generator))


@pytest.mark.parametrize("num_items", [7, 7.5, torch.tensor(7), torch.tensor([7.0], dtype=torch.float64)], ids=repr)
def test_num_items(num_items: Tensor | float, generator: torch.Generator) -> None:
    case = draw(generator, (4, 37), num_items=num_items)
    check(case, torch.tensor(2.5, device=DEVICE))
    summed = draw(generator, (4, 37), reduction="sum")
    by_both = cross_entropy(summed.logits, summed.target, reduction="sum", num_items=num_items)
    assert torch.equal(by_both, cross_entropy(summed.logits, summed.target, num_items=num_items))


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0, "logit_scale": 0.5}, {"ignore_index": 3}], ids=str)
@pytest.mark.parametrize("needs_gradient", [True, False], ids="needs_gradient={}".format)
@pytest.mark.usefixtures("small_cuts")
def test_stats(options: dict[str, Any], needs_gradient: bool, generator: torch.Generator) -> None:
    check_stats(draw(generator, (3, 3, 37), **options), needs_gradient, generator)


def test_stats_beyond_one_chunk_as_launched(generator: torch.Generator) -> None:
    check_stats(draw(generator, (6, 70_001)), False, generator)


def check_stats(case: Case, needs_gradient: bool, generator: torch.Generator) -> None:
    half = torch.rand(case.target.shape, generator=generator).to(DEVICE) < 0.5
    target = case.target.where(half, case.logits.argmax(-1))
    logits = case.logits.detach().requires_grad_(needs_gradient)
    loss, stats = cross_entropy(logits, target, stats=True, **case.options)
    assert torch.equal(loss, cross_entropy(logits, target, **case.options)) and loss.requires_grad == needs_gradient
    _, truth = cross_entropy_reference(case.logits.double(), target, stats=True, **case.options)
    scales, V = measure_scales(case, torch.ones((), device=DEVICE)), case.logits.shape[-1]
    assert torch.equal(stats.correct, truth.correct) and stats.correct.any() and not stats.correct.all()
    for name in ("log_prob", "entropy", "lse"):
        actual = getattr(stats, name)
        assert (actual.dtype, actual.shape, actual.requires_grad) == (torch.float32, target.shape, False)
        assert (worst := excess(actual, getattr(truth, name), V, scales.lse)) <= 1, f"{name}: {worst:.2g} of its budget"


@pytest.mark.usefixtures("small_cuts")
def test_the_first_of_equal_classes_is_the_likeliest() -> None:
    logits = torch.zeros(2, 40, device=DEVICE)
    logits[1, [20, 39]] = 1.0
    for target, correct in (([0, 20], [True, True]), ([1, 39], [False, False])):
        _, stats = cross_entropy(logits, torch.tensor(target, device=DEVICE), stats=True)
        assert stats.correct.tolist() == correct
