"""cross_entropy of tensors that lie in memory in any way."""

import pytest
import torch
from torch import Tensor

from tests.porter_kernels.cross_entropy.cases import DEVICE, OPTIONS, draw, small, upstream


def strided(x: Tensor) -> Tensor:
    """x [N, V] with other rows and columns between and beside its own."""
    around = torch.full((2 * x.shape[0], x.shape[1] + 13), 1e9, dtype=x.dtype, device=x.device)
    view = around[::2, 5:-8]
    view.copy_(x)
    return view


@pytest.mark.parametrize("layout", ["strided rows", "transposed", "expanded rows", "strided columns"])
@pytest.mark.parametrize("option", ["everything", "none"])
@pytest.mark.usefixtures("small_cuts")
def test_logits_of_any_strides(option: str, layout: str, generator: torch.Generator) -> None:
    case = draw(generator, (5, 37), torch.bfloat16, **OPTIONS[option])
    logits = {
        "strided rows": strided,
        "transposed": lambda x: x.t().contiguous().t(),
        "expanded rows": lambda x: x[3].expand(5, 37),
        "strided columns": lambda x: x.repeat_interleave(2, dim=1)[:, ::2],
    }[layout](case.logits)
    results = []
    for x in (logits, logits.contiguous()):
        x = x.detach().requires_grad_()
        loss = case.loss(x)
        results.append((loss, *torch.autograd.grad(loss, x, upstream(loss.detach(), 0.7))))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("option", ["everything", "both weights, none"])
@pytest.mark.parametrize("shape", [(5, 37), (2, 3, 37)], ids=str)
@pytest.mark.usefixtures("small_cuts")
def test_targets_and_weights_of_any_strides(shape: tuple[int, ...], option: str, generator: torch.Generator) -> None:
    case = draw(generator, shape, **OPTIONS[option])
    truth = case.loss(case.logits)
    assert truth.shape == (shape[:-1] if option != "everything" else ())
    case.target = spread(case.target)
    for weight in ("weight", "token_weight"):
        case.options[weight] = spread(case.options[weight])
    assert torch.equal(case.loss(case.logits), truth)


def spread(x: Tensor) -> Tensor:
    """x with something else between its elements."""
    return torch.stack((x, x + 1), dim=-1)[..., 0]


@pytest.mark.usefixtures("small_cuts")
def test_the_upstream_gradient_of_rows_may_have_any_stride(generator: torch.Generator) -> None:
    case, logits = small(generator, "none")
    loss = case.loss(logits)
    expanded, packed = torch.tensor(0.7, device=DEVICE).expand(5), torch.full((5,), 0.7, device=DEVICE)
    gradients = [torch.autograd.grad(loss, logits, d, retain_graph=True)[0] for d in (expanded, packed)]
    assert torch.equal(*gradients)
