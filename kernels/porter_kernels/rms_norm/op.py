"""RMSNorm as autograd and torch.compile see it, and as it is called."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from porter_kernels.column_sums import FEW_ROWS, MOST_ROWS, column_sums, columns_of
from porter_kernels.fused import Fused, Launch
from porter_kernels.launch import (
    ceil_div,
    next_power_of_2,
    num_programs,
    num_rows,
    packed_like,
    packed_rows,
    tuned,
)
from porter_kernels.plans import Plan, launch, planned
from porter_kernels.rms_norm import kernels

# --- ops: what autograd and torch.compile see ------------------------------------------------


def _launch_forward(x: Tensor, w: Tensor | None, eps: float, offset: int) -> tuple[Tensor, Tensor]:
    return _normalise(x, None, w, eps, offset, None)


def _launch_add_forward(
    x: Tensor, residual: Tensor, w: Tensor | None, eps: float, offset: int
) -> tuple[Tensor, Tensor, Tensor]:
    total = packed_like(x)
    y, rstd_N = _normalise(x, residual, w, eps, offset, total)
    return y, total, rstd_N


def _normalise(
    x: Tensor, residual: Tensor | None, w: Tensor | None, eps: float, offset: int, total: Tensor | None
) -> tuple[Tensor, Tensor]:
    x_ND = packed_rows(x)
    N, D = x_ND.shape
    y, rstd_N = packed_like(x), x.new_empty(N, dtype=torch.float32)
    if x_ND.numel():
        launch(
            _plan_forward(N, D, eps, offset, w is not None, residual is not None, x.device),
            x_ptr=x_ND, residual_ptr=None if residual is None else packed_rows(residual),
            w_ptr=None if w is None else w.contiguous(), y_ptr=y, sum_ptr=total, rstd_ptr=rstd_N,
        )  # fmt: skip
    return y, rstd_N


@planned
def _plan_forward(
    N: int, D: int, eps: float, offset: int, has_w: bool, has_residual: bool, device: torch.device
) -> Plan:  # fmt: skip
    BLOCK_D = next_power_of_2(D)
    config = tuned("rms_norm.forward", N, BLOCK_D, device)
    return Plan(
        "rms_norm", kernels._forward_kernel, (ceil_div(N, config.rows),),
        N=N, D=D, eps=eps, OFFSET=offset, HAS_W=has_w, HAS_RESIDUAL=has_residual, BLOCK_N=config.rows,
        BLOCK_D=BLOCK_D, num_warps=config.warps,
    )  # fmt: skip


def _fake_forward(x: Tensor, w: Tensor | None, eps: float, offset: int) -> tuple[Tensor, Tensor]:
    return packed_like(x), x.new_empty(num_rows(x), dtype=torch.float32)


def _fake_add_forward(
    x: Tensor, residual: Tensor, w: Tensor | None, eps: float, offset: int
) -> tuple[Tensor, Tensor, Tensor]:
    return packed_like(x), packed_like(x), x.new_empty(num_rows(x), dtype=torch.float32)


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
    COLUMNS = columns_of(D) if need_dw and N < FEW_ROWS else 0
    return Plan(
        "rms_norm", kernels._backward_kernel, (P + (ceil_div(D, COLUMNS) if COLUMNS else 0),),
        N=N, D=D, P=P, OFFSET=offset, HAS_W=has_w, HAS_DSUM=has_dsum, NEED_DW=need_dw and not COLUMNS,
        ROWS=MOST_ROWS, COLUMNS=COLUMNS, BLOCK_N=config.rows, BLOCK_D=BLOCK_D, STAGES=config.stages,
        RELOAD=config.reload, num_warps=config.warps,
    )  # fmt: skip


def _fake_backward(
    dy: Tensor, dtotal: Tensor | None, x: Tensor, w: Tensor | None, rstd_N: Tensor, offset: int, need_dw: bool
) -> tuple[Tensor, Tensor]:
    return packed_like(x), x.new_empty(x.shape[-1] if need_dw else 0)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor | None, float, int], output: tuple[Tensor, Tensor]) -> None:
    x, w, _, ctx.offset = inputs
    ctx.save_for_backward(x, w, output[1])


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    (x, w, rstd_N), need_dw = ctx.saved_tensors, ctx.needs_input_grad[1]
    dx, dw = _backward(dy, None, x, w, rstd_N, ctx.offset, need_dw)
    return dx, dw if need_dw else None, None, None


def _save_sum(
    ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, float, int], output: tuple[Tensor, Tensor, Tensor]
) -> None:
    _, _, w, _, ctx.offset = inputs
    ctx.save_for_backward(output[1], w, output[2])


def _differentiate_sum(
    ctx: Any, dy: Tensor | None, dtotal: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
    (total, w, rstd_N), (_, need_dresidual, need_dw, *_) = ctx.saved_tensors, ctx.needs_input_grad
    if dy is None:  # only the sum was used
        return dtotal, dtotal, None, None, None
    dx, dw = _backward(dy, dtotal, total, w, rstd_N, ctx.offset, need_dw)
    return dx, dx if need_dresidual else None, dw if need_dw else None, None, None


_backward = Launch("rms_norm_backward", _launch_backward, _fake_backward)
_forward = Fused("rms_norm", _launch_forward, _fake_forward, save=_save, differentiate=_differentiate, num_kept=1)
_add_forward = Fused(
    "add_rms_norm", _launch_add_forward, _fake_add_forward, save=_save_sum, differentiate=_differentiate_sum, num_kept=1
)


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
    y: Tensor = _forward(x, w, eps, offset)
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
    y, total = _add_forward(x, residual, w, eps, offset)
    return y, total


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
