"""RMSNorm over the last axis.

    y = (offset + w) * x / sqrt(mean(x**2) + eps)      Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4 (eps is Llama's)

Axes    N rows (the leading axes of x, flattened), D features, P programs.
Dtypes  x and w in {float32, bfloat16, float16}, alike. The kernels compute in float32 and round once, at the
        store; `math` says where the model's own code rounds, which only the reference imitates.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from typing import Any, Literal

import torch
from torch import Tensor

from porter_kernels.fused import Fused, Launch
from porter_kernels.launch import (
    as_rows,
    launching,
    next_power_of_2,
    num_programs,
    num_warps,
    rows_per_program,
    tl,
    triton,
)

# --- reference -------------------------------------------------------------------------------


def rms_norm_reference(
    x: Tensor,
    w: Tensor | None,
    eps: float,
    *,
    offset: Literal[0, 1] = 0,
    math: Literal["cast_then_scale", "scale_then_cast"],
) -> Tensor:
    """The equation above as the models write it; differentiable; float64 stays float64.

    Args:
        x: [..., D], floating.
        w: [D], or None for no weight (nanochat).
        eps: added to the mean square, in its units (x squared).
        offset: added to w (Gemma: 1).
        math: "cast_then_scale" rounds x_hat before the product with w (Llama, Qwen, Mistral), "scale_then_cast"
            the product, taken in float32 (Gemma, OLMo 2).

    Returns:
        [..., D], dtype of x (under cast_then_scale, what torch promotes x and w to).
    """
    x_wide = x.to(torch.promote_types(x.dtype, torch.float32))
    x_hat = x_wide * torch.rsqrt(x_wide.pow(2).mean(-1, keepdim=True) + eps)
    if w is None:
        return x_hat.to(x.dtype)
    if math == "cast_then_scale":
        return (offset + w if offset else w) * x_hat.to(x.dtype)
    w_wide = w.to(x_wide.dtype)
    return (x_hat * (offset + w_wide if offset else w_wide)).to(x.dtype)


# --- kernels ---------------------------------------------------------------------------------


@triton.jit
def _forward_kernel(
    x_ptr, w_ptr, y_ptr, rstd_ptr, N, D,
    eps: tl.constexpr, OFFSET: tl.constexpr, HAS_W: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]  # [N, 1]
    cols = tl.arange(0, BLOCK_D)[None, :]  # [1, D]
    mask = (rows < N) & (cols < D)
    x = tl.load(x_ptr + rows * D + cols, mask=mask, other=0.0).to(tl.float32)  # [N, D]
    rstd = 1.0 / tl.sqrt(tl.sum(x * x, axis=1, keep_dims=True) / D + eps)  # [N, 1]
    y = x * rstd
    if HAS_W:
        y *= OFFSET + tl.load(w_ptr + cols, mask=cols < D, other=0.0).to(tl.float32)  # [1, D]
    tl.store(rstd_ptr + rows, rstd, mask=rows < N)
    tl.store(y_ptr + rows * D + cols, y, mask=mask)


@triton.jit
def _backward_kernel(
    dy_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, dw_ptr, N, D,
    OFFSET: tl.constexpr, HAS_W: tl.constexpr, NEED_DW: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    # Program p takes tiles p, p + P, ... and keeps one float32 row of dw: no atomics, same bits each run.
    cols = tl.arange(0, BLOCK_D)[None, :]  # [1, D]
    if HAS_W:
        w = OFFSET + tl.load(w_ptr + cols, mask=cols < D, other=0.0).to(tl.float32)  # [1, D]
    dw = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)  # [N, D]
    for first in range(tl.program_id(0).to(tl.int64) * BLOCK_N, N, tl.num_programs(0) * BLOCK_N):
        rows = first + tl.arange(0, BLOCK_N)[:, None]  # [N, 1]
        mask = (rows < N) & (cols < D)
        at = rows * D + cols
        rstd = tl.load(rstd_ptr + rows, mask=rows < N, other=0.0)  # [N, 1]
        x_hat = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32) * rstd  # [N, D]
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)  # [N, D]
        dx_hat = dy
        if HAS_W:
            dx_hat = dy * w
        dx = (dx_hat - x_hat * (tl.sum(dx_hat * x_hat, axis=1, keep_dims=True) / D)) * rstd
        tl.store(dx_ptr + at, dx, mask=mask)
        dw += dy * x_hat
    if NEED_DW:
        at = tl.program_id(0).to(tl.int64) * D + cols
        tl.store(dw_ptr + at, tl.sum(dw, axis=0, keep_dims=True), mask=cols < D)


# --- ops: what autograd and torch.compile see ------------------------------------------------


def _launch_forward(x_ND: Tensor, w_D: Tensor | None, eps: float, offset: int) -> tuple[Tensor, Tensor]:
    N, D = x_ND.shape
    y_ND, rstd_N = torch.empty_like(x_ND), x_ND.new_empty(N, dtype=torch.float32)
    if x_ND.numel():
        BLOCK_D = next_power_of_2(D)
        BLOCK_N = rows_per_program(N, BLOCK_D)
        with launching("rms_norm", x_ND):
            _forward_kernel[(triton.cdiv(N, BLOCK_N),)](
                x_ptr=x_ND, w_ptr=w_D, y_ptr=y_ND, rstd_ptr=rstd_N, N=N, D=D, eps=eps, OFFSET=offset,
                HAS_W=w_D is not None, BLOCK_N=BLOCK_N, BLOCK_D=BLOCK_D, num_warps=num_warps(BLOCK_N * BLOCK_D),
            )  # fmt: skip
    return y_ND, rstd_N


def _fake_forward(x_ND: Tensor, w_D: Tensor | None, eps: float, offset: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x_ND), x_ND.new_empty(x_ND.shape[0], dtype=torch.float32)


def _launch_backward(
    dy_ND: Tensor, x_ND: Tensor, w_D: Tensor | None, rstd_N: Tensor, offset: int, need_dw: bool
) -> tuple[Tensor, Tensor]:
    N, D = x_ND.shape
    BLOCK_D = next_power_of_2(D)
    BLOCK_N = rows_per_program(N, BLOCK_D)
    P = min(-(-N // BLOCK_N), num_programs(x_ND.device))
    dx_ND, dw_PD = torch.empty_like(x_ND), x_ND.new_empty(P if need_dw else 0, D, dtype=torch.float32)
    if x_ND.numel():
        with launching("rms_norm", x_ND):
            _backward_kernel[(P,)](
                dy_ptr=dy_ND, x_ptr=x_ND, w_ptr=w_D, rstd_ptr=rstd_N, dx_ptr=dx_ND, dw_ptr=dw_PD, N=N, D=D,
                OFFSET=offset, HAS_W=w_D is not None, NEED_DW=need_dw, BLOCK_N=BLOCK_N, BLOCK_D=BLOCK_D,
                num_warps=num_warps(BLOCK_N * BLOCK_D),
            )  # fmt: skip
    return dx_ND, dw_PD.sum(0).to(x_ND.dtype)


def _fake_backward(
    dy_ND: Tensor, x_ND: Tensor, w_D: Tensor | None, rstd_N: Tensor, offset: int, need_dw: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x_ND), x_ND.new_empty(x_ND.shape[1])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor | None, float, int], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[0], inputs[1], output[1])
    ctx.offset = inputs[3]


def _differentiate(ctx: Any, dy_ND: Tensor, _drstd: None) -> tuple[Tensor, Tensor | None, None, None]:
    x_ND, w_D, rstd_N = ctx.saved_tensors
    need_dw = ctx.needs_input_grad[1]
    dx_ND, dw_D = _backward(dy_ND.contiguous(), x_ND, w_D, rstd_N, ctx.offset, need_dw)
    return dx_ND, dw_D if need_dw else None, None, None


_backward = Launch("rms_norm_backward", _launch_backward, _fake_backward)
_forward = Fused("rms_norm", _launch_forward, _fake_forward, save=_save, differentiate=_differentiate)


# --- public ----------------------------------------------------------------------------------


def rms_norm(x: Tensor, w: Tensor | None, eps: float, *, offset: Literal[0, 1] = 0) -> Tensor:
    """RMSNorm of x over its last axis; rms_norm_reference states the arithmetic.

    Args:
        x: [..., D], floating, any strides.
        w: [D], dtype and device of x, or None for no weight.
        eps: added to the mean square, in its units (x squared).
        offset: added to w.

    Returns:
        [..., D], dtype of x.

    Raises:
        ValueError: w is not [D], or differs from x in dtype or device.
    """
    if w is not None and w.shape != x.shape[-1:]:
        raise ValueError(
            f"rms_norm: w has shape {list(w.shape)}, expected [{x.shape[-1]}], the last axis of x {list(x.shape)}. "
            f"Pass the weight of this layer, or move the axis to normalise to the end with x.movedim."
        )
    if w is not None and (w.dtype, w.device) != (x.dtype, x.device):
        raise ValueError(
            f"rms_norm: w is {w.dtype} on {w.device}, expected {x.dtype} on {x.device} like x. "
            f"Cast the weight once when loading: w.to(x)."
        )
    y_ND: Tensor = _forward(as_rows(x).contiguous(), None if w is None else w.contiguous(), eps, offset)[0]
    return y_ND.view(x.shape)
