"""The kernels of LayerNorm; axes as in the package: N rows, D features, H weight rows, P programs."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from porter_kernels.launch import tl, triton


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
def _differentiate_rows(
    dy_ptr, x_ptr, w_ptr, stats_ptr, dx_ptr, partial_ptr, N, FIRST, LAST, H, D, P,
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
    for first in tl.range(start, LAST // H, P * BLOCK_N, num_stages=STAGES):
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
def _sum_columns(
    dy_ptr, x_ptr, stats_ptr, sums_ptr, block, N, H, D,
    NEED_DW: tl.constexpr, NEED_DB: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # A block of head h's columns summed over all rows: dw of all heads, then db.
    head = tl.program_id(1).to(tl.int64)
    cols = block.to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)[None, :]  # [1, D]
    dw = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)  # [N, D]
    db = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)  # [N, D]
    for first in range(0, N // H, ROWS):
        rows = (first + tl.arange(0, ROWS)[:, None].to(tl.int64)) * H + head  # [N, 1]
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


@triton.jit
def _backward_kernel(
    dy_ptr, x_ptr, w_ptr, stats_ptr, dx_ptr, sums_ptr, N, FIRST, LAST, H, D, P,
    OFFSET: tl.constexpr, HAS_W: tl.constexpr, NEED_DW: tl.constexpr, NEED_DB: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, STAGES: tl.constexpr, RELOAD: tl.constexpr,
):  # fmt: skip
    # The first P programs take rows. If COLUMNS, others sum columns beside them, from a cache: one launch less.
    if COLUMNS == 0:
        _differentiate_rows(
            dy_ptr, x_ptr, w_ptr, stats_ptr, dx_ptr, sums_ptr, N, FIRST, LAST, H, D, P,
            OFFSET, HAS_W, NEED_DW, NEED_DB, BLOCK_N, BLOCK_D, STAGES, RELOAD,
        )  # fmt: skip
    elif tl.program_id(0) < P:
        _differentiate_rows(
            dy_ptr, x_ptr, w_ptr, stats_ptr, dx_ptr, sums_ptr, N, FIRST, LAST, H, D, P,
            OFFSET, HAS_W, False, False, BLOCK_N, BLOCK_D, STAGES, RELOAD,
        )  # fmt: skip
    else:
        _sum_columns(dy_ptr, x_ptr, stats_ptr, sums_ptr, tl.program_id(0) - P, N, H, D, NEED_DW, NEED_DB, ROWS, COLUMNS)
