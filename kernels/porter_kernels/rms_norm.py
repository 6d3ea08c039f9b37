"""RMSNorm over the last axis.

    y = (offset + w) * x / sqrt(mean(x**2) + eps)      Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4 (eps is Llama's)

and the same of a sum: a layer adds its output to the residual stream, and the next norm reads the sum.

Axes    N rows (the leading axes of x, flattened), D features, P programs.
Dtypes  x and w in {float32, bfloat16, float16}, alike. The kernels compute in float32 and round once, at the
        store; `math` says where the model's own code rounds, which only the reference imitates.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from typing import Any, Literal

import torch
from torch import Tensor, nn

from porter_kernels.column_sums import FEW_ROWS, MOST_COLUMNS, MOST_ROWS, column_sums
from porter_kernels.fused import Fused, Launch
from porter_kernels.launch import (
    INTERPRETING,
    block_size,
    ceil_div,
    next_power_of_2,
    num_programs,
    num_rows,
    packed_like,
    packed_rows,
    tl,
    triton,
    tuned,
)
from porter_kernels.plans import Plan, launch, planned

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
    x_ptr, residual_ptr, w_ptr, y_ptr, sum_ptr, rstd_ptr, N, D,
    eps: tl.constexpr, OFFSET: tl.constexpr, HAS_W: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]  # [N, 1]
    cols = tl.arange(0, BLOCK_D)[None, :]  # [1, D]
    mask = (rows < N) & (cols < D)
    x = tl.load(x_ptr + rows * D + cols, mask=mask, other=0.0).to(tl.float32)  # [N, D]
    if HAS_RESIDUAL:
        total = x + tl.load(residual_ptr + rows * D + cols, mask=mask, other=0.0).to(tl.float32)
        rounded = total.to(sum_ptr.dtype.element_ty)  # the norm reads the stream as it is stored
        tl.store(sum_ptr + rows * D + cols, rounded, mask=mask)
        x = rounded.to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(x * x, axis=1, keep_dims=True) / D + eps)  # [N, 1]
    y = x * rstd
    if HAS_W:
        y *= OFFSET + tl.load(w_ptr + cols, mask=cols < D, other=0.0).to(tl.float32)  # [1, D]
    tl.store(rstd_ptr + rows, rstd, mask=rows < N)
    tl.store(y_ptr + rows * D + cols, y, mask=mask)


@triton.jit
def _differentiate_rows(
    dy_ptr, dsum_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, dw_ptr, N, D, P,
    OFFSET: tl.constexpr, HAS_W: tl.constexpr, HAS_DSUM: tl.constexpr, NEED_DW: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, STAGES: tl.constexpr, RELOAD: tl.constexpr,
):  # fmt: skip
    # Program p takes tiles p, p + P, ... and keeps one float32 row of dw: no atomics, same bits each run.
    # RELOAD reads the tile again after the reduction, from the first-level cache: kept, a wide one fills the registers.
    cols = tl.arange(0, BLOCK_D)[None, :]  # [1, D]
    dw = tl.zeros((1, BLOCK_D), dtype=tl.float32)  # [1, D]
    start = tl.program_id(0).to(tl.int64) * BLOCK_N
    for first in tl.range(start, N, P * BLOCK_N, num_stages=STAGES):
        rows = first + tl.arange(0, BLOCK_N)[:, None].to(tl.int64)  # [N, 1]; interpreted, `first` is a Python int
        mask = (rows < N) & (cols < D)
        at = rows * D + cols
        x = tl.load(x_ptr + at, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)  # [N, D]
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)  # [N, D]
        rstd = tl.load(rstd_ptr + rows, mask=rows < N, other=0.0)  # [N, 1]
        if HAS_DSUM:  # asked for before the reduction that the others wait for
            dsum = tl.load(dsum_ptr + at, mask=mask, other=0.0).to(tl.float32)  # [N, D]
        dx_hat = dy
        if HAS_W:
            dx_hat = dy * (OFFSET + tl.load(w_ptr + cols, mask=cols < D, other=0.0).to(tl.float32))
        mean_product = tl.sum(dx_hat * (x * rstd), axis=1, keep_dims=True) / D  # [N, 1]
        if RELOAD:
            x = tl.load(x_ptr + at, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
            dy = tl.load(dy_ptr + at, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
            dx_hat = dy
            if HAS_W:
                w = tl.load(w_ptr + cols, mask=cols < D, other=0.0, eviction_policy="evict_last")
                dx_hat = dy * (OFFSET + w.to(tl.float32))
        x_hat = x * rstd
        dx = (dx_hat - x_hat * mean_product) * rstd
        if HAS_DSUM:
            dx += dsum
        tl.store(dx_ptr + at, dx, mask=mask)
        if NEED_DW:
            dw += dy * x_hat if BLOCK_N == 1 else tl.sum(dy * x_hat, axis=0, keep_dims=True)
    if NEED_DW:
        tl.store(dw_ptr + tl.program_id(0).to(tl.int64) * D + cols, dw, mask=cols < D)


@triton.jit
def _sum_columns(dy_ptr, x_ptr, rstd_ptr, dw_ptr, block, N, D, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    # dw of a block of columns, over all rows.
    cols = block.to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)[None, :]  # [1, D]
    dw = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)  # [N, D]
    for first in range(0, N, ROWS):
        rows = first + tl.arange(0, ROWS)[:, None].to(tl.int64)  # [N, 1]
        at, mask = rows * D + cols, (rows < N) & (cols < D)
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)  # [N, D]
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)  # [N, D]
        dw += dy * (x * tl.load(rstd_ptr + rows, mask=rows < N, other=0.0))
    tl.store(dw_ptr + cols, tl.sum(dw, axis=0, keep_dims=True), mask=cols < D)


@triton.jit
def _backward_kernel(
    dy_ptr, dsum_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, dw_ptr, N, D, P,
    OFFSET: tl.constexpr, HAS_W: tl.constexpr, HAS_DSUM: tl.constexpr, NEED_DW: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, STAGES: tl.constexpr, RELOAD: tl.constexpr,
):  # fmt: skip
    # The first P programs take rows. If COLUMNS, others sum columns of dw beside them, from a cache: one launch less.
    if COLUMNS == 0 or tl.program_id(0) < P:
        _differentiate_rows(
            dy_ptr, dsum_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, dw_ptr, N, D, P,
            OFFSET, HAS_W, HAS_DSUM, NEED_DW, BLOCK_N, BLOCK_D, STAGES, RELOAD,
        )  # fmt: skip
    else:
        _sum_columns(dy_ptr, x_ptr, rstd_ptr, dw_ptr, tl.program_id(0) - P, N, D, ROWS, COLUMNS)


# --- ops: what autograd and torch.compile see ------------------------------------------------


def _launch_forward(
    x: Tensor, residual: Tensor | None, w: Tensor | None, eps: float, offset: int
) -> tuple[Tensor, Tensor, Tensor]:
    x_ND = packed_rows(x)
    N, D = x_ND.shape
    y, rstd_N = packed_like(x), x.new_empty(N, dtype=torch.float32)
    total = x.new_empty(0) if residual is None else packed_like(x)
    if x_ND.numel():
        launch(
            _plan_forward(N, D, eps, offset, w is not None, residual is not None, x.device),
            x_ptr=x_ND, residual_ptr=None if residual is None else packed_rows(residual),
            w_ptr=None if w is None else w.contiguous(), y_ptr=y, sum_ptr=total, rstd_ptr=rstd_N,
        )  # fmt: skip
    return y, total, rstd_N


@planned
def _plan_forward(
    N: int, D: int, eps: float, offset: int, has_w: bool, has_residual: bool, device: torch.device
) -> Plan:  # fmt: skip
    BLOCK_D = next_power_of_2(D)
    config = tuned("rms_norm.forward", N, BLOCK_D, device)
    return Plan(
        "rms_norm", _forward_kernel, (ceil_div(N, config.rows),),
        N=N, D=D, eps=eps, OFFSET=offset, HAS_W=has_w, HAS_RESIDUAL=has_residual, BLOCK_N=config.rows,
        BLOCK_D=BLOCK_D, num_warps=config.warps,
    )  # fmt: skip


def _fake_forward(
    x: Tensor, residual: Tensor | None, w: Tensor | None, eps: float, offset: int
) -> tuple[Tensor, Tensor, Tensor]:
    total = x.new_empty(0) if residual is None else packed_like(x)
    return packed_like(x), total, x.new_empty(num_rows(x), dtype=torch.float32)


def _launch_backward(
    dy: Tensor, dtotal: Tensor | None, x: Tensor, w: Tensor | None, rstd_N: Tensor, offset: int, need_dw: bool
) -> tuple[Tensor, Tensor]:
    x_ND, dx = packed_rows(x), packed_like(x)
    N, D = x_ND.shape
    if x_ND.numel() == 0:
        return dx, x.new_zeros(D if need_dw else 0)
    plan = _plan_backward(N, D, offset, w is not None, dtotal is not None, need_dw, x.device)
    if need_dw and N >= FEW_ROWS:
        dw = x.new_empty(plan.grid[0], D, dtype=torch.float32)
    else:
        dw = x.new_empty(D if need_dw else 0)
    launch(
        plan, dy_ptr=packed_rows(dy), dsum_ptr=None if dtotal is None else packed_rows(dtotal), x_ptr=x_ND,
        w_ptr=None if w is None else w.contiguous(), rstd_ptr=rstd_N, dx_ptr=dx, dw_ptr=dw,
    )  # fmt: skip
    return dx, column_sums(dw, x.dtype) if dw.ndim == 2 else dw


@planned
def _plan_backward(
    N: int, D: int, offset: int, has_w: bool, has_dsum: bool, need_dw: bool, device: torch.device
) -> Plan:  # fmt: skip
    BLOCK_D = next_power_of_2(D)
    config = tuned("rms_norm.backward", N, BLOCK_D, device)
    P = min(ceil_div(N, config.rows), config.programs * num_programs(device))
    COLUMNS = 0
    if need_dw and N < FEW_ROWS:
        COLUMNS = block_size(D) if INTERPRETING else MOST_COLUMNS
    return Plan(
        "rms_norm", _backward_kernel, (P + (ceil_div(D, COLUMNS) if COLUMNS else 0),),
        N=N, D=D, P=P, OFFSET=offset, HAS_W=has_w, HAS_DSUM=has_dsum, NEED_DW=need_dw and not COLUMNS,
        ROWS=MOST_ROWS, COLUMNS=COLUMNS, BLOCK_N=config.rows, BLOCK_D=BLOCK_D, STAGES=config.stages,
        RELOAD=config.reload, num_warps=config.warps,
    )  # fmt: skip


def _fake_backward(
    dy: Tensor, dtotal: Tensor | None, x: Tensor, w: Tensor | None, rstd_N: Tensor, offset: int, need_dw: bool
) -> tuple[Tensor, Tensor]:
    return packed_like(x), x.new_empty(x.shape[-1] if need_dw else 0)


def _save(
    ctx: Any, inputs: tuple[Tensor, Tensor | None, Tensor | None, float, int], output: tuple[Tensor, ...]
) -> None:
    x, residual, w, _, ctx.offset = inputs
    _, total, rstd_N = output
    ctx.has_residual = residual is not None
    ctx.save_for_backward(total if ctx.has_residual else x, w, rstd_N)


def _differentiate(
    ctx: Any, dy: Tensor | None, dtotal: Tensor | None, _drstd: None
) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
    (x, w, rstd_N), (_, need_dresidual, need_dw, *_) = ctx.saved_tensors, ctx.needs_input_grad
    if dy is None:  # only the sum was used
        return dtotal, dtotal, None, None, None
    dx, dw = _backward(dy, dtotal if ctx.has_residual else None, x, w, rstd_N, ctx.offset, need_dw)
    return dx, dx if need_dresidual else None, dw if need_dw else None, None, None


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
    _check_weight("rms_norm", x, w)
    y: Tensor = _forward(x, None, w, eps, offset)[0]
    return y


def add_rms_norm(
    x: Tensor, residual: Tensor, w: Tensor | None, eps: float, *, offset: Literal[0, 1] = 0
) -> tuple[Tensor, Tensor]:
    """RMSNorm of residual + x, and that sum: one pass for what a pre-norm layer does at each of its joints.

    Args:
        x: [..., D], floating, any strides: what the layer adds.
        residual: like x: the stream that it adds to.
        w: [D], dtype and device of x, or None for no weight.
        eps: added to the mean square, in its units (x squared).
        offset: added to w.

    Returns:
        The norm and the new residual, both [..., D] in the dtype of x. The norm is that of the residual as rounded to
        its dtype, so both have the bits of residual + x followed by rms_norm.

    Raises:
        ValueError: residual differs from x in shape, dtype or device; w as for rms_norm.
    """
    if residual.shape != x.shape or residual.dtype is not x.dtype or residual.device != x.device:
        raise ValueError(
            f"add_rms_norm: residual is {residual.dtype} {list(residual.shape)} on {residual.device}, expected "
            f"{x.dtype} {list(x.shape)} on {x.device} like x. Cast or expand it first: residual.to(x).expand_as(x)."
        )
    _check_weight("add_rms_norm", x, w)
    y, total, _ = _forward(x, residual, w, eps, offset)
    return y, total


def add_rms_norm_reference(
    x: Tensor,
    residual: Tensor,
    w: Tensor | None,
    eps: float,
    *,
    offset: Literal[0, 1] = 0,
    math: Literal["cast_then_scale", "scale_then_cast"],
) -> tuple[Tensor, Tensor]:
    """residual + x in their dtype, and rms_norm_reference of it, as every pre-norm layer of transformers has it."""
    total = residual + x
    return rms_norm_reference(total, w, eps, offset=offset, math=math), total


class RMSNorm(nn.Module):
    """rms_norm with its weight, in the place of torch.nn.RMSNorm over one axis: same parameter, same state dict."""

    def __init__(self, dim: int, eps: float = 1e-6, *, offset: Literal[0, 1] = 0, **factory: Any) -> None:
        """Weight of dim elements that leave x_hat as it is: 1 - offset."""
        super().__init__()
        self.eps, self.offset = eps, offset
        self.weight = nn.Parameter(torch.full((dim,), 1.0 - offset, **factory))

    def forward(self, x: Tensor) -> Tensor:
        """[..., dim] to the same."""
        return rms_norm(x, self.weight, self.eps, offset=self.offset)


def _check_weight(op: str, x: Tensor, w: Tensor | None) -> None:
    if w is not None and w.shape != x.shape[-1:]:
        raise ValueError(
            f"{op}: w has shape {list(w.shape)}, expected [{x.shape[-1]}], the last axis of x {list(x.shape)}. "
            f"Pass the weight of this layer, or move the axis to normalise to the end with x.movedim."
        )
    if w is not None and (w.dtype is not x.dtype or w.device != x.device):
        raise ValueError(
            f"{op}: w is {w.dtype} on {w.device}, expected {x.dtype} on {x.device} like x. "
            f"Cast the weight once when loading: w.to(x)."
        )
