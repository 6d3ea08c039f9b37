"""inplace=True: the gradient lies in the logits' memory, and whoever still counts on the logits is told."""

from typing import Any

import pytest
import torch

from porter_kernels.cross_entropy import cross_entropy
from tests.porter_kernels.cross_entropy.cases import DEVICE, OPTIONS, SOME, draw, small

SCALARS = [option for option in SOME if option != "none"]


@pytest.mark.parametrize("option", SCALARS)
@pytest.mark.parametrize("shape", [(5, 37), (2, 3, 37)], ids=str)
@pytest.mark.usefixtures("small_cuts")
def test_the_logits_hold_their_gradient(shape: tuple[int, ...], option: str, generator: torch.Generator) -> None:
    case = draw(generator, shape, torch.bfloat16, **OPTIONS[option])
    x = case.logits.requires_grad_()
    apart = case.loss(x)
    (truth,) = torch.autograd.grad(apart, x)
    logits = x * 1.0
    loss = case.loss(logits, inplace=True)
    assert torch.equal(loss, apart) and torch.equal(logits, truth)
    loss.backward()
    assert torch.equal(x.grad, truth)


@pytest.mark.usefixtures("small_cuts")
def test_rows_at_one_stride_are_overwritten_where_they_lie(generator: torch.Generator) -> None:
    case, _ = small(generator, "plain")
    around = torch.zeros(10, 50, device=DEVICE).requires_grad_()
    logits = (around + torch.nn.functional.pad(case.logits.repeat_interleave(2, dim=0), (4, 9)))[::2, 4:-9]
    (truth,) = torch.autograd.grad(case.loss(logits), logits, retain_graph=True)
    case.loss(logits, inplace=True)
    assert torch.equal(logits, truth)


@pytest.mark.usefixtures("small_cuts")
def test_another_upstream_gradient_scales_what_was_written(generator: torch.Generator) -> None:
    case, x = small(generator, "plain", torch.bfloat16)
    (truth,) = torch.autograd.grad(case.loss(x), x)
    loss = case.loss(x * 1.0, inplace=True)
    assert torch.equal(torch.autograd.grad(loss, x, torch.tensor(0.7, device=DEVICE))[0], truth * 0.7)


def test_a_second_backward_raises(generator: torch.Generator) -> None:
    case, x = small(generator, "plain")
    loss = case.loss(x * 1.0, inplace=True)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=r"a second backward through inplace=True, expected one"):
        loss.backward()


@pytest.mark.parametrize(
    "upstream_op", [torch.exp, torch.sigmoid, torch.nn.functional.softmax], ids=lambda op: op.__name__
)
def test_an_op_that_saved_the_logits_raises(upstream_op: Any, generator: torch.Generator) -> None:
    case, x = small(generator, "plain")
    logits = upstream_op(x, dim=-1) if upstream_op is torch.nn.functional.softmax else upstream_op(x)
    loss = case.loss(logits, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("viewed", [False, True], ids="viewed={}".format)
def test_an_op_that_saves_nothing_of_the_logits_is_right(viewed: bool, generator: torch.Generator) -> None:
    x, w = (torch.randn(s, generator=generator).to(DEVICE).requires_grad_() for s in ((6, 37), (37,)))
    target = torch.randint(37, (6,), generator=generator).to(DEVICE)
    gradients = []
    for inplace in (False, True):
        logits = x + w
        logits = logits.view(2, 3, 37) if viewed else logits
        loss = cross_entropy(logits, target.view(logits.shape[:-1]), inplace=inplace)
        gradients.append(torch.autograd.grad(loss, (x, w)))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_a_gradient_through_a_later_use_raises(generator: torch.Generator) -> None:
    case, x = small(generator, "plain")
    logits = x * 1.0
    loss = case.loss(logits, inplace=True)
    with pytest.raises(RuntimeError, match=r"used after inplace=True had overwritten them.*expected no later use"):
        (loss + logits.square().sum()).backward()
    logits = x * 1.0
    early = logits.square().sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (case.loss(logits, inplace=True) + early).backward()


def test_a_leaf_is_refused_and_left_alone(generator: torch.Generator) -> None:
    case, leaf = small(generator, "plain")
    for logits in (leaf, leaf.view(1, 5, 37)[0]):
        with pytest.raises(ValueError, match=r"inplace=True would overwrite a leaf.*Leave inplace out"):
            case.loss(logits, inplace=True)
    assert torch.equal(leaf, case.logits)


def test_float16_is_refused_since_a_scaled_loss_comes_too_late(generator: torch.Generator) -> None:
    case, x = small(generator, "plain", torch.float16)
    with pytest.raises(ValueError, match=r"inplace=True with logits in float16, expected bfloat16 or float32"):
        case.loss(x * 1.0, inplace=True)


def test_nothing_is_overwritten_where_no_gradient_is_needed(generator: torch.Generator) -> None:
    case, leaf = small(generator, "plain")
    case.loss(leaf.detach(), inplace=True)
    with torch.no_grad():
        case.loss(leaf, inplace=True)
        case.loss(leaf * 1.0, inplace=True)
    assert torch.equal(leaf, case.logits)


@pytest.mark.parametrize("layout", ["transposed", "expanded"])
def test_logits_that_must_be_copied_are_left_alone(layout: str, generator: torch.Generator) -> None:
    x = torch.randn(37, 5, generator=generator).to(DEVICE).requires_grad_()
    target = torch.randint(37, (5,), generator=generator).to(DEVICE)
    logits = (x * 1.0).t() if layout == "transposed" else (x * 1.0)[:, 0].expand(5, 37)
    before = logits.detach().clone()
    gradients = [
        torch.autograd.grad(cross_entropy(logits, target, inplace=inplace), x, retain_graph=True)
        for inplace in (True, False)
    ]
    assert torch.equal(logits, before) and torch.equal(gradients[0][0], gradients[1][0])
