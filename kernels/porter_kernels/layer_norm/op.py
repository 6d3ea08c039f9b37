"""LayerNorm as autograd and torch.compile see it, and as it is called."""

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
from porter_kernels.layer_norm import kernels
from porter_kernels.plans import Plan, launch, planned

# --- ops: what autograd and torch.compile see ------------------------------------------------


def _launch_forward(
    x: Tensor, w: Tensor | None, b: Tensor | None, eps: float, offset: int, H: int
) -> tuple[Tensor, Tensor]:
    x_ND = packed_rows(x)
    N, D = x_ND.shape
    y, stats_2N = packed_like(x), x.new_empty(2, N, dtype=torch.float32)
    if x_ND.numel():
        launch(
            _plan_forward(N, H, D, eps, offset, w is not None, b is not None, x.device),
            x_ptr=x_ND, w_ptr=None if w is None else w.contiguous(), b_ptr=None if b is None else b.contiguous(),
            y_ptr=y, stats_ptr=stats_2N,
        )  # fmt: skip
    return y, stats_2N


@planned
def _plan_forward(
    N: int, H: int, D: int, eps: float, offset: int, has_w: bool, has_b: bool, device: torch.device
) -> Plan:  # fmt: skip
    BLOCK_D = next_power_of_2(D)
    config = tuned("layer_norm.forward", N, BLOCK_D, device)
    return Plan(
        "layer_norm", kernels._forward_kernel, (ceil_div(N, config.rows),),
        N=N, H=H, D=D, eps=eps, OFFSET=offset, HAS_W=has_w, HAS_B=has_b, PER_HEAD=H > 1, BLOCK_N=config.rows,
        BLOCK_D=BLOCK_D, num_warps=config.warps,
    )  # fmt: skip


def _fake_forward(
    x: Tensor, w: Tensor | None, b: Tensor | None, eps: float, offset: int, H: int
) -> tuple[Tensor, Tensor]:
    return packed_like(x), x.new_empty(2, num_rows(x), dtype=torch.float32)  # mean and rstd of each row


def _launch_backward(
    dy: Tensor, x: Tensor, w: Tensor | None, stats_2N: Tensor,
    offset: int, H: int, need_dw: bool, need_db: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    x_ND, dy_ND, dx = packed_rows(x), packed_rows(dy), packed_like(x)
    (N, D), sums, described = x_ND.shape, need_dw + need_db, (H, offset, w is not None, x.device)
    w = None if w is None else w.contiguous()
    if x_ND.numel() == 0:
        return dx, x.new_zeros(sums, H * D)

    def run(plan: Plan, sums: Tensor | None) -> None:
        launch(plan, dy_ptr=dy_ND, x_ptr=x_ND, w_ptr=w, stats_ptr=stats_2N, dx_ptr=dx, sums_ptr=sums)

    if not sums or N // H < FEW_ROWS:
        dw_db = x.new_empty(sums, H * D)
        run(_plan_backward(N, D, 0, N, need_dw, need_db, *described), dw_db)
        return dx, dw_db
    # One float32 row of each sum a program would be up to an eighth of dx. They lie in its first rows, which a last
    # launch fills once the sums have been added up.
    rows = sums * H * 4 // dx.element_size()  # that a program's sums occupy
    P = min(_most_programs(N // H, H, D, x.device), N // rows)
    partial = dx.view(-1)[: P * rows * D].view(torch.float32).view(P, sums * H * D)
    run(_plan_backward(N, D, P * rows, N, need_dw, need_db, *described, P), partial)
    dw_db = column_sums(partial, x.dtype)
    run(_plan_backward(N, D, 0, P * rows, False, False, *described), None)
    return dx, dw_db.view(sums, H * D)


def _most_programs(N: int, H: int, D: int, device: torch.device) -> int:
    """Programs a head that each keep a sum over rows; N of a head."""
    config = tuned("layer_norm.backward", N, next_power_of_2(D), device)
    return min(max(config.programs * num_programs(device) // H, 1), ceil_div(N, config.rows))


@planned
def _plan_backward(
    N: int, D: int, first: int, last: int, need_dw: bool, need_db: bool, H: int, offset: int, has_w: bool,
    device: torch.device, num_sums: int = 0,
) -> Plan:  # fmt: skip
    """num_sums: programs of rows that each keep a sum; 0 where programs beside them sum columns, if any are needed."""
    config = tuned("layer_norm.backward", N // H, next_power_of_2(D), device)
    P = num_sums or min(4 * num_programs(device), ceil_div(last // H, config.rows))
    COLUMNS = columns_of(D) if (need_dw or need_db) and not num_sums else 0
    return Plan(
        "layer_norm", kernels._backward_kernel, (P + (ceil_div(D, COLUMNS) if COLUMNS else 0), H),
        N=N, FIRST=first, LAST=last, H=H, D=D, P=P, OFFSET=offset, HAS_W=has_w, NEED_DW=need_dw, NEED_DB=need_db,
        ROWS=MOST_ROWS, COLUMNS=COLUMNS, BLOCK_N=config.rows, BLOCK_D=next_power_of_2(D), STAGES=config.stages,
        RELOAD=config.reload, num_warps=config.warps,
    )  # fmt: skip


def _fake_backward(
    dy: Tensor, x: Tensor, w: Tensor | None, stats_2N: Tensor,
    offset: int, H: int, need_dw: bool, need_db: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return packed_like(x), x.new_empty(need_dw + need_db, H * x.shape[-1])


def _save(
    ctx: Any,
    inputs: tuple[Tensor, Tensor | None, Tensor | None, float, int, int],
    output: tuple[Tensor, Tensor],
) -> None:
    x, w, b, _, ctx.offset, ctx.H = inputs
    ctx.rows_shape = None if w is None and b is None else (w if b is None else b).shape  # type: ignore[union-attr]
    ctx.save_for_backward(x, w, output[1])


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    _, need_dw, need_db, *_ = ctx.needs_input_grad
    dx, dw_db = _backward(dy, *ctx.saved_tensors, ctx.offset, ctx.H, need_dw, need_db)
    dw, db = dw_db[0] if need_dw else None, dw_db[-1] if need_db else None
    if ctx.rows_shape != dw_db.shape[1:]:  # one row a head
        dw, db = (None if row is None else row.view(ctx.rows_shape) for row in (dw, db))
    return dx, dw, db, None, None, None


_backward = Launch("layer_norm_backward", _launch_backward, _fake_backward)
_forward = Fused("layer_norm", _launch_forward, _fake_forward, save=_save, differentiate=_differentiate, num_kept=1)


# --- public ----------------------------------------------------------------------------------


def layer_norm(x: Tensor, w: Tensor | None, b: Tensor | None, eps: float, *, offset: Literal[0, 1] = 0) -> Tensor:
    """LayerNorm of x over its last axis; layer_norm_reference states the arithmetic.

    Args:
        x: [..., D] or [..., H, D], floating, any strides.
        w: [D], or [H, D] where each head has its own, dtype and device of x, or None.
        b: like w, or None.
        eps: added to the variance, in its units (x squared).
        offset: added to w, in w's dtype.

    Returns:
        [..., D], dtype of x.

    Raises:
        ValueError: w or b is not [D] or [H, D], they differ in shape, or differ from x in dtype or device.
    """
    for name, row in (("w", w), ("b", b)):
        if row is not None:
            _check(name, row, x)
    if w is not None and b is not None and w.shape != b.shape:
        raise ValueError(
            f"layer_norm: b has shape {list(b.shape)}, expected {list(w.shape)} like w. Pass the bias of this layer."
        )
    rows = w if w is not None else b
    y: Tensor = _forward(x, w, b, eps, offset, 1 if rows is None or rows.ndim == 1 else rows.shape[0])
    return y


class LayerNorm(nn.Module):
    """layer_norm with its weight and bias, in the place of torch.nn.LayerNorm over one axis: same state dict."""

    def __init__(self, dim: int, eps: float = 1e-5, *, bias: bool = True, **factory: Any) -> None:
        """Weight of ones, bias of zeros."""
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim, **factory))
        self.bias = nn.Parameter(torch.zeros(dim, **factory)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., dim] to the same."""
        return layer_norm(x, self.weight, self.bias, self.eps)


def _check(name: str, row: Tensor, x: Tensor) -> None:
    if row.ndim not in (1, 2) or row.shape != x.shape[-row.ndim :]:
        raise ValueError(
            f"layer_norm: {name} has shape {list(row.shape)}, expected [{x.shape[-1]}] (or one row a head), the last "
            f"axes of x {list(x.shape)}. Pass the weight of this layer, or move the axis to normalise to the end with "
            f"x.movedim."
        )
    if row.dtype is not x.dtype or row.device != x.device:
        raise ValueError(
            f"layer_norm: {name} is {row.dtype} on {row.device}, expected {x.dtype} on {x.device} like x. "
            f"Cast the weights once when loading: {name}.to(x)."
        )
