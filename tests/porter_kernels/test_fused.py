"""Every fused op, run eagerly, keeps autograd's contract; to whoever traces it is one node of torch.library."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from porter_kernels import fused, launch, plans
from porter_kernels.cross_entropy import cross_entropy
from porter_kernels.cross_entropy import op as cross_entropy_op
from porter_kernels.fused import is_traced
from porter_kernels.glu import activation, glu, glu_linear, packed_glu
from porter_kernels.glu import linear as glu_linear_module
from porter_kernels.layer_norm import layer_norm
from porter_kernels.linear_cross_entropy import autograd as linear_cross_entropy_autograd
from porter_kernels.linear_cross_entropy import linear_cross_entropy
from porter_kernels.rms_norm import rms_norm
from porter_kernels.rope import rope
from porter_kernels.softcap import softcap

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def rotate(q: Tensor, k: Tensor) -> Tensor:
    cos, sin = torch.linspace(-2, 2, 24, device=DEVICE).view(2, 1, 4, 3)
    return torch.cat(rope(q.view(1, 1, 4, 6), k.view(1, 1, 4, 6), cos, sin, style="half"))


def loss(logits: Tensor, reduction: Literal["mean", "none"]) -> Tensor:
    loss = cross_entropy(logits, torch.arange(4, device=logits.device), reduction=reduction)
    assert isinstance(loss, Tensor)
    return loss


OPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rms_norm": lambda x, y: rms_norm(x, y[0], 1e-2),
    "layer_norm": lambda x, y: layer_norm(x, y[0], y[1], 1e-2),
    "rope": rotate,
    "glu": lambda x, y: glu(x, y, act="silu"),
    "glu_linear": lambda x, y: glu_linear(x, x * 2, y, act="silu"),
    "activation": lambda x, y: activation(x, act="gelu") + y,
    "packed_glu": lambda x, y: packed_glu(x, act="silu", layout="interleaved", limit=1.0) + y[:, ::2],
    "softcap": lambda x, y: softcap(x, 2.0) + y,
    "cross_entropy": lambda x, y: loss(x, "mean") + y,
    "linear_cross_entropy": lambda x, y: linear_cross_entropy(x, y, torch.arange(4, device=x.device)) + 0 * y,
    "cross_entropy of rows": lambda x, y: loss(x, "none")[:, None] + y,
}


@pytest.fixture
def leaves(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x, y = (torch.randn(4, 6, generator=generator).to(DEVICE).requires_grad_() for _ in range(2))
    return x, y


@pytest.mark.parametrize("op", OPS)
def test_second_backward_gives_equal_gradients(op: str, leaves: tuple[Tensor, Tensor]) -> None:
    out = OPS[op](*leaves)
    dy = out.detach().cos()
    first = torch.autograd.grad(out, leaves, dy, retain_graph=True)
    kept = [gradient.clone() for gradient in first]
    second = torch.autograd.grad(out, leaves, dy)
    for a, b, c in zip(first, kept, second, strict=True):
        assert torch.equal(a, b) and torch.equal(b, c)


@pytest.mark.parametrize("op", OPS)
def test_second_derivative_is_refused(op: str, leaves: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(RuntimeError, match=r"create_graph=True\), expected a first derivative.*_reference"):
        torch.autograd.grad(OPS[op](*leaves).sum(), leaves, create_graph=True)


@pytest.mark.parametrize("op", OPS)
def test_transforms_of_torch_func_are_refused(op: str, leaves: tuple[Tensor, Tensor]) -> None:
    for enabled in (True, False):
        with (
            torch.set_grad_enabled(enabled),
            pytest.raises(RuntimeError, match=r"within a transform of torch.func.*_reference there"),
        ):
            torch.func.vmap(lambda x, y: OPS[op](x, y).sum())(*(x[None] for x in leaves))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("frozen", [(True, False), (False, True), (True, True)], ids=str)
def test_what_is_frozen_gets_no_gradient(op: str, frozen: tuple[bool, bool], leaves: tuple[Tensor, Tensor]) -> None:
    out = OPS[op](*leaves)
    whole = torch.autograd.grad(out, leaves, out.detach().cos())
    some = [x.detach().requires_grad_(not still) for x, still in zip(leaves, frozen, strict=True)]
    again = OPS[op](*some)
    assert torch.equal(again, out) and again.requires_grad == (not all(frozen))
    if again.requires_grad:
        again.backward(out.detach().cos())
    for still, x, gradient in zip(frozen, some, whole, strict=True):
        assert x.grad is None if still else torch.equal(x.grad, gradient)


class Stop(torch.autograd.Function):
    """A copy without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> None:
        return None


@pytest.mark.parametrize("traced", [False, True], ids="traced={}".format)
@pytest.mark.parametrize("op", OPS)
def test_without_a_gradient_of_the_output_inputs_have_none(
    op: str, traced: bool, leaves: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    if traced:
        for module in (fused, glu_linear_module, cross_entropy_op, linear_cross_entropy_autograd):
            monkeypatch.setattr(module, "is_traced", lambda tensors: True)
    Stop.apply(OPS[op](*leaves)).sum().backward()
    assert all(x.grad is None or not x.grad.any() for x in leaves)


@pytest.mark.parametrize("op", OPS)
def test_without_gradients_nothing_is_kept(op: str, leaves: tuple[Tensor, Tensor]) -> None:
    with torch.no_grad():
        out = OPS[op](*leaves)
    assert out.grad_fn is None and torch.equal(out, OPS[op](*leaves))


def test_somebody_traces_who_passes_a_tensor_of_another_kind() -> None:
    x = torch.zeros(2)
    assert not is_traced([x, torch.nn.Parameter(x), None])
    assert is_traced([x, None, FakeTensorMode().from_tensor(x)])


@pytest.mark.parametrize("op", OPS)
def test_a_trace_sees_the_op(op: str, leaves: tuple[Tensor, Tensor]) -> None:
    traced = make_fx(OPS[op])(*(x.detach() for x in leaves))
    assert any(str(node.target).startswith("porter.") for node in traced.graph.nodes)
    with FakeTensorMode() as mode:
        fake = OPS[op](*(mode.from_tensor(x) for x in leaves))
    out = OPS[op](*leaves)
    assert (fake.shape, fake.dtype, fake.device.type) == (out.shape, out.dtype, out.device.type)


@pytest.mark.skipif(DEVICE == "cuda", reason="there a launch runs")
@pytest.mark.parametrize("op", OPS)
def test_every_launch_checks_its_device(
    op: str, leaves: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = OPS[op](*leaves).sum()
    for module in (launch, plans):  # from here on a launch would compile
        monkeypatch.setattr(module, "INTERPRETING", False)
    for launches in (out.backward, lambda: OPS[op](*leaves)):
        with pytest.raises(ValueError, match="x is on cpu, expected a CUDA device, since Triton compiles"):
            launches()
