"""Soft capping of scores or logits: nearly x within the cap, never beyond it.

    y = cap * tanh(x / cap)      Bello et al. 2016, arXiv:1611.09940, sec. 5.1; Gemma 2, arXiv:2408.00118, sec. 2

Dtypes  x in {float32, bfloat16, float16}; the kernels compute in float32 and round once, at the store.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from typing import Any

import torch
from torch import Tensor

from porter_kernels.elementary import sigmoid, tanh
from porter_kernels.fused import Fused, Launch
from porter_kernels.launch import block_size, ceil_div, tl, triton
from porter_kernels.plans import Plan, launch, planned

# --- reference -------------------------------------------------------------------------------


def softcap_reference(x: Tensor, cap: float) -> Tensor:
    """The equation above in Gemma 2's three steps, each rounded to x's dtype; differentiable."""
    return torch.tanh(x / cap) * cap


# --- kernels ---------------------------------------------------------------------------------


@triton.jit
def _forward_kernel(x_ptr, y_ptr, n, cap: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, cap * tanh(x * (1.0 / cap)), mask=mask)


@triton.jit
def _backward_kernel(dy_ptr, x_ptr, dx_ptr, n, cap: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
    _, slope = sigmoid(x, 2.0 / cap)  # tanh(u) = 2 sigmoid(2u) - 1; 1 - tanh**2 would cancel near the cap
    tl.store(dx_ptr + at, dy * (4.0 * slope), mask=mask)


# --- ops: what autograd and torch.compile see ------------------------------------------------


@planned
def _plan(kernel: Any, n: int, cap: float) -> Plan:
    BLOCK = block_size(n)
    return Plan("softcap", kernel, (ceil_div(n, BLOCK),), n=n, cap=cap, BLOCK=BLOCK)


def _launch_forward(x: Tensor, cap: float) -> Tensor:
    y = torch.empty_like(x)
    if n := x.numel():
        launch(_plan(_forward_kernel, n, cap), x_ptr=x, y_ptr=y)
    return y


def _fake_forward(x: Tensor, cap: float) -> Tensor:
    return torch.empty_like(x)


def _launch_backward(dy: Tensor, x: Tensor, cap: float) -> Tensor:
    dx = torch.empty_like(x)
    if n := x.numel():
        launch(_plan(_backward_kernel, n, cap), dy_ptr=dy, x_ptr=x, dx_ptr=dx)
    return dx


def _fake_backward(dy: Tensor, x: Tensor, cap: float) -> Tensor:
    return torch.empty_like(x)


def _save(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.cap = inputs[1]


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
    return _backward(dy.contiguous(), *ctx.saved_tensors, ctx.cap), None


_backward = Launch("softcap_backward", _launch_backward, _fake_backward)
_forward = Fused("softcap", _launch_forward, _fake_forward, save=_save, differentiate=_differentiate)


# --- public ----------------------------------------------------------------------------------


def softcap(x: Tensor, cap: float) -> Tensor:
    """x held softly within (-cap, cap); softcap_reference states the arithmetic.

    Args:
        x: any shape and strides, floating.
        cap: positive, in the units of x.

    Returns:
        Shape and dtype of x.

    Raises:
        ValueError: cap is not positive.
    """
    if not cap > 0:
        raise ValueError(f"softcap: cap is {cap}, expected a positive number. Without a cap, do not call softcap.")
    y: Tensor = _forward(x.contiguous(), float(cap))
    return y
