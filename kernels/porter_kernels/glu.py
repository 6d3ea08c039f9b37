"""Activations, alone or gating a second input.

    glu(gate, up) = act(gate) * up      Shazeer 2020, arXiv:2002.05202, eq. 6
    activation(x) = act(x)

Axes    N rows, F features.
Dtypes  gate and up in {float32, bfloat16, float16}, alike. The kernels compute in float32 and round once, at the
        store; the references round where the models' own code does. Backward recomputes act, so only inputs are kept.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from porter_kernels.elementary import sigmoid
from porter_kernels.fused import Fused, Launch
from porter_kernels.launch import as_rows, block_size, launching, rows_per_program, tl, triton

# --- reference -------------------------------------------------------------------------------


def _gelu_new(x: Tensor) -> Tensor:
    # Each step rounds to x's dtype, as in GPT-2's code; gelu_tanh is the same function rounded once.
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _relu2(x: Tensor) -> Tensor:
    return torch.square(F.relu(x))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "gelu_new": _gelu_new,
    "quick_gelu": _quick_gelu,
    "relu": F.relu,
    "relu2": _relu2,
}


def activation_reference(x: Tensor, *, act: str) -> Tensor:
    """act(x), with the bits of transformers.activations.ACT2FN[act] (gelu_tanh is its gelu_pytorch_tanh).

    Args:
        x: any shape, floating.
        act: one of ACTIVATIONS.

    Returns:
        Shape and dtype of x.
    """
    return ACTIVATIONS[act](x)


def glu_reference(gate: Tensor, up: Tensor, *, act: str) -> Tensor:
    """act(gate), rounded to its dtype, times up, as every gated MLP in transformers has it.

    Args:
        gate: any shape, floating.
        up: like gate.
        act: one of ACTIVATIONS.

    Returns:
        Shape and dtype of gate.
    """
    return ACTIVATIONS[act](gate) * up


# --- kernels ---------------------------------------------------------------------------------


@triton.jit
def _activate(x, ACT: tl.constexpr):
    """act(x) and its derivative, float32."""
    if ACT == "silu" or ACT == "quick_gelu":
        slope: tl.constexpr = 1.0 if ACT == "silu" else 1.702
        s, ds = sigmoid(slope * x)
        y, dydx = x * s, s + slope * x * ds
    elif ACT == "gelu":
        cdf = 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)
        y, dydx = x * cdf, cdf + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
    elif ACT == "gelu_tanh" or ACT == "gelu_new":
        # (1 + tanh(u)) / 2 = sigmoid(2u), which does not cancel for negative u.
        near = tl.minimum(tl.maximum(x, -16.0), 16.0)  # saturated beyond; keeps the cube finite
        s, ds = sigmoid(1.5957691216057308 * (near + 0.044715 * near * near * near))
        y, dydx = x * s, s + x * ds * (1.5957691216057308 * (1.0 + 3.0 * 0.044715 * near * near))
    elif ACT == "relu":
        y, dydx = tl.where(x < 0, 0.0, x), tl.where(x > 0, 1.0, 0.0)
    else:
        tl.static_assert(ACT == "relu2")
        r = tl.where(x < 0, 0.0, x)
        y, dydx = r * r, 2.0 * r
    return y, dydx


@triton.jit
def _tile(length, BLOCK_N: tl.constexpr, BLOCK_F: tl.constexpr):
    """This program's rows, [N, 1], and columns, [1, F]: tiles of the same rows are neighbours."""
    program, tiles = tl.program_id(0).to(tl.int64), tl.cdiv(length, BLOCK_F)
    rows = (program // tiles) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    cols = (program % tiles) * BLOCK_F + tl.arange(0, BLOCK_F)[None, :]
    return rows, cols


@triton.jit
def _forward_kernel(
    gate_ptr, up_ptr, y_ptr, N, length, gate_stride, up_stride,
    ACT: tl.constexpr, GATED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    rows, cols = _tile(length, BLOCK_N, BLOCK_F)
    mask = (rows < N) & (cols < length)
    gate = tl.load(gate_ptr + rows * gate_stride + cols, mask=mask, other=0.0).to(tl.float32)  # [N, F]
    y, _ = _activate(gate, ACT)
    if GATED:
        y *= tl.load(up_ptr + rows * up_stride + cols, mask=mask, other=0.0).to(tl.float32)  # [N, F]
    tl.store(y_ptr + rows * length + cols, y, mask=mask)


@triton.jit
def _backward_kernel(
    dy_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, N, length, dy_stride, gate_stride, up_stride,
    ACT: tl.constexpr, GATED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    rows, cols = _tile(length, BLOCK_N, BLOCK_F)
    mask = (rows < N) & (cols < length)
    gate = tl.load(gate_ptr + rows * gate_stride + cols, mask=mask, other=0.0).to(tl.float32)  # [N, F]
    y, dydx = _activate(gate, ACT)
    dy = tl.load(dy_ptr + rows * dy_stride + cols, mask=mask, other=0.0).to(tl.float32)  # [N, F]
    if GATED:
        tl.store(dup_ptr + rows * length + cols, dy * y, mask=mask)
        dy *= tl.load(up_ptr + rows * up_stride + cols, mask=mask, other=0.0).to(tl.float32)  # [N, F]
    tl.store(dgate_ptr + rows * length + cols, dy * dydx, mask=mask)


# --- ops: what autograd and torch.compile see ------------------------------------------------


def _strides(*tensors_NF: Tensor) -> tuple[int, int, list[int]]:
    """Rows, their length and their strides; one long row where nothing lies between rows."""
    N, length = tensors_NF[0].shape
    if all(x_NF.is_contiguous() for x_NF in tensors_NF):
        return 1, N * length, [0] * len(tensors_NF)
    return N, length, [x_NF.stride(0) for x_NF in tensors_NF]


def _launch_forward(gate_NF: Tensor, up_NF: Tensor | None, act: str) -> Tensor:
    y_NF = gate_NF.new_empty(gate_NF.shape)
    if gate_NF.numel():
        N, length, (gate_stride, up_stride) = _strides(gate_NF, gate_NF if up_NF is None else up_NF)
        BLOCK_F = block_size(length)
        BLOCK_N = rows_per_program(N, BLOCK_F)
        with launching("activation" if up_NF is None else "glu", gate_NF):
            _forward_kernel[(triton.cdiv(N, BLOCK_N) * triton.cdiv(length, BLOCK_F),)](
                gate_ptr=gate_NF, up_ptr=up_NF, y_ptr=y_NF, N=N, length=length,
                gate_stride=gate_stride, up_stride=up_stride, ACT=act, GATED=up_NF is not None,
                BLOCK_N=BLOCK_N, BLOCK_F=BLOCK_F,
            )  # fmt: skip
    return y_NF


def _fake_forward(gate_NF: Tensor, up_NF: Tensor | None, act: str) -> Tensor:
    return gate_NF.new_empty(gate_NF.shape)


def _launch_backward(dy_NF: Tensor, gate_NF: Tensor, up_NF: Tensor | None, act: str) -> tuple[Tensor, Tensor]:
    dgate_NF = gate_NF.new_empty(gate_NF.shape)
    dup_NF = gate_NF.new_empty(0 if up_NF is None else gate_NF.shape)
    if gate_NF.numel():
        N, length, (dy_stride, gate_stride, up_stride) = _strides(dy_NF, gate_NF, gate_NF if up_NF is None else up_NF)
        BLOCK_F = block_size(length)
        BLOCK_N = rows_per_program(N, BLOCK_F)
        with launching("activation" if up_NF is None else "glu", gate_NF):
            _backward_kernel[(triton.cdiv(N, BLOCK_N) * triton.cdiv(length, BLOCK_F),)](
                dy_ptr=dy_NF, gate_ptr=gate_NF, up_ptr=up_NF, dgate_ptr=dgate_NF, dup_ptr=dup_NF, N=N,
                length=length, dy_stride=dy_stride, gate_stride=gate_stride, up_stride=up_stride,
                ACT=act, GATED=up_NF is not None, BLOCK_N=BLOCK_N, BLOCK_F=BLOCK_F,
            )  # fmt: skip
    return dgate_NF, dup_NF


def _fake_backward(dy_NF: Tensor, gate_NF: Tensor, up_NF: Tensor | None, act: str) -> tuple[Tensor, Tensor]:
    return gate_NF.new_empty(gate_NF.shape), gate_NF.new_empty(0 if up_NF is None else gate_NF.shape)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor | None, str], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.act = inputs[2]


def _differentiate(ctx: Any, dy_NF: Tensor) -> tuple[Tensor, Tensor | None, None]:
    gate_NF, up_NF = ctx.saved_tensors
    dgate_NF, dup_NF = _backward(_readable(dy_NF), gate_NF, up_NF, ctx.act)
    return dgate_NF, None if up_NF is None else dup_NF, None


_backward = Launch("glu_backward", _launch_backward, _fake_backward)
_forward = Fused("glu", _launch_forward, _fake_forward, save=_save, differentiate=_differentiate)


# --- public ----------------------------------------------------------------------------------


def glu(gate: Tensor, up: Tensor, *, act: str) -> Tensor:
    """act(gate) * up; glu_reference states the arithmetic.

    Args:
        gate: [..., F], floating, any strides: halves of one projection (chunk) are read in place.
        up: like gate.
        act: one of ACTIVATIONS.

    Returns:
        Shape and dtype of gate, contiguous.

    Raises:
        ValueError: act is unknown, or up differs from gate in shape, dtype or device.
    """
    _check_act("glu", act)
    if (up.shape, up.dtype, up.device) != (gate.shape, gate.dtype, gate.device):
        raise ValueError(
            f"glu: up is {up.dtype} {list(up.shape)} on {up.device}, expected {gate.dtype} {list(gate.shape)} on "
            f"{gate.device} like gate. Pass both halves of the same layer's projection."
        )
    y_NF: Tensor = _forward(_readable(gate), _readable(up), act)
    return y_NF.view(gate.shape)


def activation(x: Tensor, *, act: str) -> Tensor:
    """act(x); activation_reference states the arithmetic.

    Args:
        x: [..., F], floating, any strides.
        act: one of ACTIVATIONS.

    Returns:
        Shape and dtype of x, contiguous.

    Raises:
        ValueError: act is unknown.
    """
    _check_act("activation", act)
    y_NF: Tensor = _forward(_readable(x), None, act)
    return y_NF.view(x.shape)


def _readable(x: Tensor) -> Tensor:
    x_NF = as_rows(x)
    return x_NF if x_NF.stride(-1) == 1 else x_NF.contiguous()


def _check_act(op: str, act: str) -> None:
    if act not in ACTIVATIONS:
        raise ValueError(
            f"{op}: act is {act!r}, expected one of {', '.join(ACTIVATIONS)}. "
            f"HuggingFace's gelu_pytorch_tanh is gelu_tanh, and its swish is silu."
        )
