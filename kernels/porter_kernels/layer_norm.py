"""LayerNorm over the last axis.

    y = (offset + w) * (x - mean(x)) / sqrt(var(x) + eps) + b      Ba et al. 2016, arXiv:1607.06450, eq. 4

Axes    N rows (the leading axes of x, flattened), D features, H weight rows (1, or one a head), P programs.
Dtypes  x, w and b in {float32, bfloat16, float16}, alike. The kernels compute in float32 and round once, at the
        store; `math` says where the model's own code rounds, which only the reference imitates.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from porter_kernels.column_sums import MOST_COLUMNS, MOST_ROWS, column_sums
from porter_kernels.fused import Fused, Launch
from porter_kernels.launch import (
    INTERPRETING,
    block_size,
    ceil_div,
    launch,
    launching,
    next_power_of_2,
    num_programs,
    num_rows,
    packed_like,
    packed_rows,
    tl,
    triton,
    tuned,
)

FEW_ROWS = 1024  # below, what one launch has read the next finds in the second-level cache

# --- reference -------------------------------------------------------------------------------


def layer_norm_reference(
    x: Tensor,
    w: Tensor | None,
    b: Tensor | None,
    eps: float,
    *,
    offset: Literal[0, 1] = 0,
    math: Literal["fused", "scale_then_cast"],
) -> Tensor:
    """The equation above as the models write it; differentiable; float64 stays float64.

    Args:
        x: [..., D] or [..., H, D], floating.
        w: [D], or [H, D] where each head has its own (Cohere's and StableLM's query norms), or None.
        b: like w, or None.
        eps: added to the variance, in its units (x squared).
        offset: added to w, in w's dtype (Nemotron: 1).
        math: "fused" is torch's layer_norm (GPT-2, GPT-NeoX), "scale_then_cast" the same by hand in float32 (Cohere).

    Returns:
        [..., D], dtype of x.
    """
    w = w + offset if w is not None and offset else w
    if math == "fused":
        return _fused_reference(x, w, b, eps)
    x_wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centred = x_wide - x_wide.mean(-1, keepdim=True)
    y = centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + eps)
    if w is not None:
        y = w.to(x_wide.dtype) * y
    if b is not None:
        y = y + b.to(x_wide.dtype)
    return y.to(x.dtype)


def _fused_reference(x: Tensor, w: Tensor | None, b: Tensor | None, eps: float) -> Tensor:
    if all(row is None or row.ndim == 1 for row in (w, b)):
        return F.layer_norm(x, x.shape[-1:], w, b, eps)
    w_H = [None] * x.shape[-2] if w is None else w.unbind()
    b_H = [None] * x.shape[-2] if b is None else b.unbind()
    heads = zip(x.unbind(-2), w_H, b_H, strict=True)
    return torch.stack([F.layer_norm(x_h, x_h.shape[-1:], w_h, b_h, eps) for x_h, w_h, b_h in heads], dim=-2)


# --- kernels ---------------------------------------------------------------------------------


@triton.jit
def _gain(w, OFFSET: tl.constexpr):
    """OFFSET + w, float32, rounded to w's dtype on the way: the models add in it."""
    return (OFFSET + w.to(tl.float32)).to(w.dtype).to(tl.float32)


@triton.jit
def _forward_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, stats_ptr, N, H, D,
    eps: tl.constexpr, OFFSET: tl.constexpr, HAS_W: tl.constexpr, HAS_B: tl.constexpr, PER_HEAD: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]  # [N, 1]
    cols = tl.arange(0, BLOCK_D)[None, :]  # [1, D]
    mask = (rows < N) & (cols < D)
    x = tl.load(x_ptr + rows * D + cols, mask=mask, other=0.0).to(tl.float32)  # [N, D]
    mean = tl.sum(x, axis=1, keep_dims=True) / D  # [N, 1]
    centred = tl.where(cols < D, x - mean, 0.0)  # [N, D]
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1, keep_dims=True) / D + eps)  # [N, 1]
    y = centred * rstd
    at = cols  # [1, D]
    if PER_HEAD:
        at = (rows % H) * D + cols  # [N, D]
    if HAS_W:
        y *= _gain(tl.load(w_ptr + at, mask=cols < D, other=0.0), OFFSET)
    if HAS_B:
        y += tl.load(b_ptr + at, mask=cols < D, other=0.0).to(tl.float32)
    tl.store(stats_ptr + rows, mean, mask=rows < N)
    tl.store(stats_ptr + N + rows, rstd, mask=rows < N)
    tl.store(y_ptr + rows * D + cols, y, mask=mask)


@triton.jit
def _backward_kernel(
    dy_ptr, x_ptr, w_ptr, stats_ptr, dx_ptr, partial_ptr, N, FIRST, LAST, H, D,
    OFFSET: tl.constexpr, HAS_W: tl.constexpr, NEED_DW: tl.constexpr, NEED_DB: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, STAGES: tl.constexpr, RELOAD: tl.constexpr,
):  # fmt: skip
    # Program (p, h) takes every P-th tile of head h, keeps a float32 row of dw and db: no atomics, same bits each run.
    # Row p of the partial sums holds dw of all heads, then db. Of the rows before LAST, which it reads, it writes dx
    # from FIRST on: the partial sums lie in those before. RELOAD as in rms_norm.
    head = tl.program_id(1).to(tl.int64)
    cols = tl.arange(0, BLOCK_D)[None, :]  # [1, D]
    dw = tl.zeros((1, BLOCK_D), dtype=tl.float32)  # [1, D]
    db = tl.zeros((1, BLOCK_D), dtype=tl.float32)  # [1, D]
    start = tl.program_id(0).to(tl.int64) * BLOCK_N
    for first in tl.range(start, LAST // H, tl.num_programs(0) * BLOCK_N, num_stages=STAGES):
        rows = (first + tl.arange(0, BLOCK_N)[:, None].to(tl.int64)) * H + head  # [N, 1]
        mask = (rows < LAST) & (cols < D)
        at = rows * D + cols
        x = tl.load(x_ptr + at, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)  # [N, D]
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)  # [N, D]
        mean = tl.load(stats_ptr + rows, mask=rows < LAST, other=0.0)  # [N, 1]
        rstd = tl.load(stats_ptr + N + rows, mask=rows < LAST, other=0.0)  # [N, 1]
        dx_hat = dy  # 0 past D: x_hat there does not count
        if HAS_W:
            dx_hat = dy * _gain(tl.load(w_ptr + head * D + cols, mask=cols < D, other=0.0), OFFSET)
        mean_dx_hat = tl.sum(dx_hat, axis=1, keep_dims=True) / D  # [N, 1]
        mean_product = tl.sum(dx_hat * ((x - mean) * rstd), axis=1, keep_dims=True) / D  # [N, 1]
        if RELOAD:
            x = tl.load(x_ptr + at, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
            dy = tl.load(dy_ptr + at, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
            dx_hat = dy
            if HAS_W:
                w = tl.load(w_ptr + head * D + cols, mask=cols < D, other=0.0, eviction_policy="evict_last")
                dx_hat = dy * _gain(w, OFFSET)
        x_hat = (x - mean) * rstd
        dx = (dx_hat - mean_dx_hat - x_hat * mean_product) * rstd
        tl.store(dx_ptr + at, dx, mask=mask & (rows >= FIRST))
        if NEED_DW:
            dw += dy * x_hat if BLOCK_N == 1 else tl.sum(dy * x_hat, axis=0, keep_dims=True)
        if NEED_DB:
            db += dy if BLOCK_N == 1 else tl.sum(dy, axis=0, keep_dims=True)
    row = tl.program_id(0).to(tl.int64) * (NEED_DW + NEED_DB) * H + head
    if NEED_DW:
        tl.store(partial_ptr + row * D + cols, dw, mask=cols < D)
    if NEED_DB:
        tl.store(partial_ptr + (row + NEED_DW * H) * D + cols, db, mask=cols < D)


@triton.jit
def _columns_kernel(
    dy_ptr, x_ptr, stats_ptr, sums_ptr, N, H, D,
    NEED_DW: tl.constexpr, NEED_DB: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    # Program (c, h) sums a block of head h's columns over all rows: dw of all heads, then db.
    head = tl.program_id(1).to(tl.int64)
    cols = tl.program_id(0).to(tl.int64) * BLOCK_D + tl.arange(0, BLOCK_D)[None, :]  # [1, D]
    dw = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)  # [N, D]
    db = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)  # [N, D]
    for first in range(0, N // H, BLOCK_N):
        rows = (first + tl.arange(0, BLOCK_N)[:, None].to(tl.int64)) * H + head  # [N, 1]
        mask = (rows < N) & (cols < D)
        dy = tl.load(dy_ptr + rows * D + cols, mask=mask, other=0.0).to(tl.float32)  # [N, D]
        if NEED_DW:
            x = tl.load(x_ptr + rows * D + cols, mask=mask, other=0.0).to(tl.float32)  # [N, D]
            mean = tl.load(stats_ptr + rows, mask=rows < N, other=0.0)  # [N, 1]
            rstd = tl.load(stats_ptr + N + rows, mask=rows < N, other=0.0)  # [N, 1]
            dw += dy * ((x - mean) * rstd)
        db += dy
    if NEED_DW:
        tl.store(sums_ptr + head * D + cols, tl.sum(dw, axis=0, keep_dims=True), mask=cols < D)
    if NEED_DB:
        tl.store(sums_ptr + (head + NEED_DW * H) * D + cols, tl.sum(db, axis=0, keep_dims=True), mask=cols < D)


# --- ops: what autograd and torch.compile see ------------------------------------------------


def _launch_forward(
    x: Tensor, w: Tensor | None, b: Tensor | None, eps: float, offset: int, H: int
) -> tuple[Tensor, Tensor]:
    x_ND = packed_rows(x)
    N, D = x_ND.shape
    y, stats_2N = _fake_forward(x, w, b, eps, offset, H)
    if x_ND.numel():
        BLOCK_D = next_power_of_2(D)
        config = tuned("layer_norm.forward", N, BLOCK_D, x.device)
        with launching("layer_norm", x):
            launch(
                _forward_kernel, (ceil_div(N, config.rows),),
                x_ptr=x_ND, w_ptr=None if w is None else w.contiguous(), b_ptr=None if b is None else b.contiguous(),
                y_ptr=y, stats_ptr=stats_2N, N=N, H=H, D=D, eps=eps, OFFSET=offset,
                HAS_W=w is not None, HAS_B=b is not None, PER_HEAD=H > 1, BLOCK_N=config.rows, BLOCK_D=BLOCK_D,
                num_warps=config.warps,
            )  # fmt: skip
    return y, stats_2N


def _fake_forward(
    x: Tensor, w: Tensor | None, b: Tensor | None, eps: float, offset: int, H: int
) -> tuple[Tensor, Tensor]:
    return packed_like(x), x.new_empty(2, num_rows(x), dtype=torch.float32)  # mean and rstd of each row


def _launch_backward(
    dy: Tensor, x: Tensor, w: Tensor | None, stats_2N: Tensor,
    offset: int, H: int, need_dw: bool, need_db: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    x_ND, dy_ND, dx = packed_rows(x), packed_rows(dy), packed_like(x)
    N, D = x_ND.shape
    sums = need_dw + need_db
    if x_ND.numel() == 0:
        return dx, x.new_zeros(sums, H * D)
    config = tuned("layer_norm.backward", N // H, next_power_of_2(D), x.device)

    def run(P: int, first: int, last: int, partial: Tensor | None, need_dw: bool, need_db: bool) -> None:
        launch(
            _backward_kernel, (min(P, ceil_div(last // H, config.rows)), H),
            dy_ptr=dy_ND, x_ptr=x_ND, w_ptr=None if w is None else w.contiguous(), stats_ptr=stats_2N, dx_ptr=dx,
            partial_ptr=partial, N=N, FIRST=first, LAST=last, H=H, D=D, OFFSET=offset, HAS_W=w is not None,
            NEED_DW=need_dw, NEED_DB=need_db, BLOCK_N=config.rows, BLOCK_D=next_power_of_2(D), STAGES=config.stages,
            RELOAD=config.reload, num_warps=config.warps,
        )  # fmt: skip

    many = 4 * num_programs(x.device)
    if not sums or N // H < FEW_ROWS:
        dw_db = x.new_empty(sums, H * D)
        with launching("layer_norm", x):
            run(many, 0, N, None, need_dw=False, need_db=False)
            if sums:
                BLOCK_D = block_size(D) if INTERPRETING else MOST_COLUMNS
                launch(
                    _columns_kernel, (ceil_div(D, BLOCK_D), H),
                    dy_ptr=dy_ND, x_ptr=x_ND, stats_ptr=stats_2N, sums_ptr=dw_db, N=N, H=H, D=D,
                    NEED_DW=need_dw, NEED_DB=need_db, BLOCK_N=MOST_ROWS, BLOCK_D=BLOCK_D,
                )  # fmt: skip
        return dx, dw_db
    # One float32 row of each sum a program would be up to an eighth of dx. They lie in its first rows, which a last
    # launch fills once the sums have been added up.
    rows = sums * H * 4 // dx.element_size()  # that a program's sums occupy
    P = min(max(config.programs * num_programs(x.device) // H, 1), ceil_div(N // H, config.rows), N // rows)
    partial = dx.view(-1)[: P * rows * D].view(torch.float32).view(P, sums * H * D)
    with launching("layer_norm", x):
        run(P, P * rows, N, partial, need_dw, need_db)
        dw_db = column_sums(partial, x.dtype)
        run(many, 0, P * rows, None, need_dw=False, need_db=False)
    return dx, dw_db.view(sums, H * D)


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


def _differentiate(ctx: Any, dy: Tensor, _dstats: None) -> tuple[Tensor | None, ...]:
    _, need_dw, need_db, *_ = ctx.needs_input_grad
    dx, dw_db = _backward(dy, *ctx.saved_tensors, ctx.offset, ctx.H, need_dw, need_db)
    rows = iter(dw_db.view(-1, *ctx.rows_shape).unbind() if need_dw or need_db else ())
    return dx, next(rows) if need_dw else None, next(rows) if need_db else None, None, None, None


_backward = Launch("layer_norm_backward", _launch_backward, _fake_backward)
_forward = Fused("layer_norm", _launch_forward, _fake_forward, save=_save, differentiate=_differentiate)


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
    y: Tensor = _forward(x, w, b, eps, offset, 1 if rows is None or rows.ndim == 1 else rows.shape[0])[0]
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
    if (row.dtype, row.device) != (x.dtype, x.device):
        raise ValueError(
            f"layer_norm: {name} is {row.dtype} on {row.device}, expected {x.dtype} on {x.device} like x. "
            f"Cast the weights once when loading: {name}.to(x)."
        )
