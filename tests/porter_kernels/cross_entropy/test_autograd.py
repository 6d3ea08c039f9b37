"""cross_entropy as autograd, torch.compile and a second look see it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from porter_kernels.cross_entropy import cross_entropy
from tests.porter_kernels.cross_entropy.cases import DEVICE, SOME, small, upstream


@pytest.mark.parametrize("option", SOME)
@pytest.mark.parametrize("value", [1.0, -0.7])
@pytest.mark.usefixtures("small_cuts")
def test_every_backward_gives_equal_gradients_in_memory_of_its_own(
    value: float, option: str, generator: torch.Generator
) -> None:
    case, logits = small(generator, option)
    loss = case.loss(logits)
    d_loss = upstream(loss.detach(), value)
    runs = [torch.autograd.grad(loss, logits, d_loss, retain_graph=True)[0] for _ in range(3)]
    kept = runs[0].clone()
    runs[0].zero_()
    assert torch.equal(runs[1], kept) and torch.equal(runs[2], kept)
    assert len({gradient.data_ptr() for gradient in runs}) == 3


class Unused(torch.autograd.Function):
    """Its input has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> None:
        return None


def test_a_loss_that_nothing_depends_on_gives_no_gradient(generator: torch.Generator) -> None:
    case, logits = small(generator, "plain")
    Unused.apply(case.loss(logits)).backward()
    assert logits.grad is None


@pytest.mark.usefixtures("small_cuts")
def test_each_backward_has_its_own_upstream_gradient(generator: torch.Generator) -> None:
    case, logits = small(generator, "everything", torch.bfloat16)
    loss = case.loss(logits)
    for value in (-0.7, 1.0, 3.0):
        again = case.loss(logits)
        d_loss = torch.tensor(value, device=DEVICE)
        (gradient,) = torch.autograd.grad(loss, logits, d_loss, retain_graph=True)
        assert torch.equal(gradient, torch.autograd.grad(again, logits, d_loss)[0])


@pytest.mark.usefixtures("small_cuts")
def test_an_upstream_gradient_of_one_finds_its_gradient_written(generator: torch.Generator) -> None:
    case, logits = small(generator, "everything")
    (truth,) = torch.autograd.grad(case.loss(logits), logits, torch.tensor(2.0, device=DEVICE))
    for value, gradient in ((1.0, torch.ones_like(truth)), (2.0, truth)):
        loss = case.loss(logits)
        loss.grad_fn.d_logits_NV.fill_(1.0)  # what forward has written, were it this
        assert torch.equal(torch.autograd.grad(loss, logits, torch.tensor(value, device=DEVICE))[0], gradient)


@pytest.mark.usefixtures("small_cuts")
def test_a_scaled_loss_keeps_gradients_that_float16_would_lose(generator: torch.Generator) -> None:
    case, logits = small(generator, "plain", torch.float16)
    case.options["num_items"] = 10**8
    loss, d_loss = case.loss(logits), torch.tensor(2.0**16, device=DEVICE)
    wide = logits.detach().float().requires_grad_()
    (truth,) = torch.autograd.grad(case.loss(wide), wide, d_loss)
    assert not torch.autograd.grad(loss, logits, retain_graph=True)[0].any()
    assert torch.equal(torch.autograd.grad(loss, logits, d_loss)[0], truth.half())


@pytest.mark.usefixtures("small_cuts")
def test_an_upstream_gradient_is_rounded_once(generator: torch.Generator) -> None:
    case, logits = small(generator, "plain", torch.bfloat16)
    wide = logits.detach().float().requires_grad_()
    d_loss = torch.tensor(0.7, device=DEVICE)
    gradients = [torch.autograd.grad(case.loss(x), x, d_loss)[0] for x in (logits, wide)]
    assert torch.equal(gradients[0], gradients[1].bfloat16())


@pytest.mark.parametrize("option", SOME)
@pytest.mark.parametrize("inplace", [False, True], ids="inplace={}".format)
def test_second_derivative_is_refused(inplace: bool, option: str, generator: torch.Generator) -> None:
    case, logits = small(generator, option)
    loss = case.loss(1.0 * logits, inplace=inplace and option != "none")
    with pytest.raises(
        RuntimeError, match=r"create_graph=True\), expected a first derivative.*cross_entropy_reference"
    ):
        torch.autograd.grad(loss.sum(), logits, create_graph=True)


@pytest.mark.parametrize("option", SOME)
@pytest.mark.usefixtures("small_cuts")
def test_the_loss_has_the_same_bits_with_and_without_gradients(option: str, generator: torch.Generator) -> None:
    case, logits = small(generator, option)
    loss = case.loss(logits)
    with torch.no_grad():
        assert torch.equal(case.loss(logits), loss.detach())
    frozen = case.loss(logits.detach())
    assert torch.equal(frozen, loss.detach()) and frozen.grad_fn is None


def test_of_what_is_returned_the_loss_alone_has_a_gradient(generator: torch.Generator) -> None:
    case, logits = small(generator, "plain")
    loss, stats = cross_entropy(logits, case.target, stats=True)
    assert loss.requires_grad and not any(x.requires_grad for x in stats)


@pytest.mark.parametrize("option", SOME)
@pytest.mark.usefixtures("small_cuts")
def test_equal_bits_on_every_run_and_inputs_untouched(option: str, generator: torch.Generator) -> None:
    case, logits = small(generator, option, torch.bfloat16)
    tensors = [logits, case.target, *(x for x in case.options.values() if isinstance(x, Tensor))]
    copies = [x.detach().clone() for x in tensors]
    runs = []
    for _ in range(2):
        loss = case.loss(logits)
        runs.append((loss.detach(), *torch.autograd.grad(loss, logits, upstream(loss.detach(), 0.3))))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(tensors, copies, strict=True))


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)  # Inductor's own import
@pytest.mark.parametrize(("option", "stats"), [*((option, False) for option in SOME), ("everything", True)])
@pytest.mark.usefixtures("small_cuts")
def test_compiled_equals_eager(option: str, stats: bool, generator: torch.Generator) -> None:
    case, logits = small(generator, option)

    def call(logits: Tensor) -> Any:
        return cross_entropy(1.0 * logits, case.target, stats=stats, **case.options)

    torch._dynamo.reset()
    runs = []
    for function in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        loss, *rest = function(logits) if stats else (function(logits),)
        for value in (1.0, -0.7):
            rest += torch.autograd.grad(loss, logits, upstream(loss.detach(), value), retain_graph=True)
        runs.append([loss, *(rest.pop(0) if stats else ()), *rest])
    assert len(runs[0]) == 3 + 4 * stats
    for eager, compiled in zip(*runs, strict=True):
        assert torch.equal(eager, compiled)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_inductor_equals_eager_and_overwrites_nothing(generator: torch.Generator) -> None:
    case, logits = small(generator, "everything")
    copy, compiled = logits.detach().clone(), torch.compile(case.loss, fullgraph=True)
    runs = [
        [loss.detach(), *torch.autograd.grad(loss, logits)]
        for loss in (case.loss(logits), compiled(logits, inplace=True))
    ]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True)) and torch.equal(logits, copy)
