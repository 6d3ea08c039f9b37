"""The kernels of RMSNorm; axes as in the package: N rows, D features, P programs."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from porter_kernels.launch import tl, triton


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
