"""Kernels of cross_entropy, over tiles of rows and chunks of columns.

Axes    N rows, V vocabulary, C chunks of BLOCK_V columns a row, S columns of a chunk's partial results, T tiles of
        BLOCK_N rows (1 where a chunk is wide). An item is the work on one tile and one chunk.

An item of the first kind reads its chunk and writes PARTIALS float32 a row: the chunk's maximum, its sum of
exponentials below that maximum, and so on. One of the second kind combines the C partials of its rows into their
log-sum-exp, reads the chunk again and writes the gradient. Where there are rows enough to fill the GPU, or few chunks,
a program of _loss_and_gradient_kernel does all items of its tile, and reads the chunks backwards the second time: those
it read last are still in a cache. Else each item is a program, in a launch for each kind. Both add in the same order.

COUNTED: of a mean over few rows, each program counts those that count, rather than a launch before; where a program
does all of its tile, the last to finish writes the mean of the losses, rather than a launch after.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from porter_kernels.cross_entropy.items import (
    read_factor,
    read_target,
    tree_sum,
    write_gradient,
    write_log_sum,
    write_mean,
    write_partials,
    write_results,
)
from porter_kernels.launch import tl, triton


@triton.jit
def _partials_kernel(
    logits_ptr, target_ptr, weight_ptr, partials_ptr, N, V, C, stride, vocab_start, weight_start,
    IGNORE: tl.constexpr, SMOOTHING: tl.constexpr, CAP: tl.constexpr, SCALE: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    ENTROPY: tl.constexpr, ARGMAX: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    tile, chunk = tl.program_id(0) // C, tl.program_id(0) % C
    rows = tile.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]  # [N, 1]
    target = tl.load(target_ptr + rows, mask=rows < N, other=IGNORE)
    write_partials(
        logits_ptr, weight_ptr, partials_ptr, rows, target, chunk, N, V, C, stride, vocab_start, weight_start,
        IGNORE, SMOOTHING, CAP, SCALE, HAS_WEIGHT, ENTROPY, ARGMAX, BLOCK_V,
    )  # fmt: skip


@triton.jit
def _results_kernel(
    partials_ptr, target_ptr, weight_ptr, weight_sum_ptr, results_ptr, correct_ptr, N, C, vocab_size,
    IGNORE: tl.constexpr, SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]  # [N, 1]
    target, counts, exists, weight = read_target(target_ptr, weight_ptr, rows, N, vocab_size, IGNORE, HAS_WEIGHT)
    write_log_sum(partials_ptr, results_ptr, counts, rows, N, C, BLOCK_C)
    write_results(
        partials_ptr, weight_sum_ptr, results_ptr, correct_ptr, target, counts, exists, weight, rows, N, C, vocab_size,
        SMOOTHING, Z_LOSS, HAS_WEIGHT, BLOCK_C,
    )  # fmt: skip


@triton.jit
def _gradient_kernel(
    logits_ptr, target_ptr, weight_ptr, weight_sum_ptr, peak_ptr, log_total_ptr, factor_ptr, denominator_ptr,
    upstream_ptr, out_ptr, N, V, C, T, stride, out_stride, upstream_stride, vocab_start, vocab_size,
    IGNORE: tl.constexpr, SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr, CAP: tl.constexpr, SCALE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, HAS_FACTOR: tl.constexpr, HAS_DENOMINATOR: tl.constexpr, HAS_UPSTREAM: tl.constexpr,
    HAS_LOG_TOTAL: tl.constexpr, KEEP_AT_ONE: tl.constexpr, COUNTED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    # KEEP_AT_ONE: `out` already holds the gradient for an upstream of 1. The device decides: the host would wait.
    items = T * C
    if KEEP_AT_ONE:
        items = tl.where(tl.load(upstream_ptr) == 1.0, 0, items)
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        rows = (item // C).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]  # [N, 1]
        target, counts, exists, weight = read_target(target_ptr, weight_ptr, rows, N, vocab_size, IGNORE, HAS_WEIGHT)
        peak = tl.load(peak_ptr + rows, mask=rows < N, other=0.0)  # [N, 1]
        log_total = tl.zeros_like(peak)
        if HAS_LOG_TOTAL:
            log_total = tl.load(log_total_ptr + rows, mask=rows < N, other=0.0)
        factor = read_factor(
            factor_ptr, denominator_ptr, upstream_ptr, target_ptr, rows, N, upstream_stride, IGNORE,
            HAS_FACTOR, HAS_DENOMINATOR, HAS_UPSTREAM, COUNTED,
        )  # fmt: skip
        write_gradient(
            logits_ptr, out_ptr, weight_ptr, weight_sum_ptr, target, counts, exists, weight, peak, log_total, factor,
            rows, item % C, N, V, stride, out_stride, vocab_start, vocab_size,
            SMOOTHING, Z_LOSS, CAP, SCALE, HAS_WEIGHT, BLOCK_V,
        )  # fmt: skip


@triton.jit
def _loss_and_gradient_kernel(
    logits_ptr, target_ptr, weight_ptr, weight_sum_ptr, factor_ptr, denominator_ptr, partials_ptr,
    out_ptr, results_ptr, correct_ptr, mean_ptr, arrived_ptr, N, V, C, stride, out_stride,
    IGNORE: tl.constexpr, SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr, CAP: tl.constexpr, SCALE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, HAS_FACTOR: tl.constexpr, HAS_DENOMINATOR: tl.constexpr, COUNTED: tl.constexpr,
    ENTROPY: tl.constexpr, ARGMAX: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]  # [N, 1]
    target, counts, exists, weight = read_target(target_ptr, weight_ptr, rows, N, V, IGNORE, HAS_WEIGHT)
    factor = read_factor(
        factor_ptr, denominator_ptr, factor_ptr, target_ptr, rows, N, 0, IGNORE,
        HAS_FACTOR, HAS_DENOMINATOR, False, COUNTED,
    )  # fmt: skip
    for chunk in tl.range(0, C, num_stages=STAGES):
        write_partials(
            logits_ptr, weight_ptr, partials_ptr, rows, target, chunk, N, V, C, stride, 0, 0,
            IGNORE, SMOOTHING, CAP, SCALE, HAS_WEIGHT, ENTROPY, ARGMAX, BLOCK_V,
        )  # fmt: skip
    tl.debug_barrier()  # every thread has stored its partial results before one reads them
    write_log_sum(partials_ptr, results_ptr, counts, rows, N, C, BLOCK_C)
    tl.debug_barrier()
    # What is stored, as a second backward reads it: kept in registers, it would be summed in the order of the chunks'
    # layout, and bits would differ; or in its own, and brought to theirs in every step, four times as slow.
    peak = tl.load(results_ptr + N + rows, mask=rows < N, other=0.0, cache_modifier=".cg")  # [N, 1]
    log_total = tl.load(results_ptr + 2 * N + rows, mask=rows < N, other=0.0, cache_modifier=".cg")
    for past in tl.range(0, C, num_stages=STAGES):
        write_gradient(
            logits_ptr, out_ptr, weight_ptr, weight_sum_ptr, target, counts, exists, weight, peak, log_total, factor,
            rows, C - 1 - past, N, V, stride, out_stride, 0, V,
            SMOOTHING, Z_LOSS, CAP, SCALE, HAS_WEIGHT, BLOCK_V,
        )  # fmt: skip
    write_results(
        partials_ptr, weight_sum_ptr, results_ptr, correct_ptr, target, counts, exists, weight, rows, N, C, V,
        SMOOTHING, Z_LOSS, HAS_WEIGHT, BLOCK_C,
    )  # fmt: skip
    if COUNTED > 0:
        tl.debug_barrier()  # every thread has stored its rows' losses before one says so
        if tl.atomic_add(arrived_ptr, 1, sem="acq_rel") == tl.num_programs(0) - 1:  # the last finds all of them
            write_mean(results_ptr, target_ptr, mean_ptr, N, IGNORE, COUNTED)


@triton.jit
def _denominator_kernel(
    target_ptr, weight_ptr, factor_ptr, out_ptr, N, vocab_size,
    IGNORE: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_FACTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # One program, so that the order of the sum is one.
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, N, BLOCK):
        rows = first + tl.arange(0, BLOCK)
        _, counts, _, weight = read_target(target_ptr, weight_ptr, rows, N, vocab_size, IGNORE, HAS_WEIGHT)
        if HAS_FACTOR:
            weight *= tl.load(factor_ptr + rows, mask=rows < N, other=0.0)
        total += tl.where(counts, weight, 0.0)
    tl.store(out_ptr, tl.sum(total, axis=0))


@triton.jit
def _total_kernel(
    loss_ptr, target_ptr, weight_ptr, factor_ptr, denominator_ptr, out_ptr, N, vocab_size, IGNORE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, HAS_FACTOR: tl.constexpr, HAS_DENOMINATOR: tl.constexpr, IS_MEAN: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    # IS_MEAN: the denominator is that of _denominator_kernel, to the bit, and is written to where one would be read.
    total = tl.zeros((BLOCK,), tl.float32)
    whole = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, N, BLOCK):
        rows = first + tl.arange(0, BLOCK)
        loss = tl.load(loss_ptr + rows, mask=rows < N, other=0.0)
        if HAS_FACTOR or IS_MEAN:
            _, counts, _, weight = read_target(target_ptr, weight_ptr, rows, N, vocab_size, IGNORE, HAS_WEIGHT)
            if HAS_FACTOR:
                factor = tl.load(factor_ptr + rows, mask=counts, other=0.0)
                loss *= factor
                weight *= factor
            whole += tl.where(counts, weight, 0.0)
        total += loss
    mean = tree_sum(total, BLOCK)
    if IS_MEAN:
        denominator = tl.sum(whole, axis=0)
        tl.store(denominator_ptr, denominator)
        mean /= denominator
    if HAS_DENOMINATOR:
        mean /= tl.load(denominator_ptr)
    tl.store(out_ptr, mean)


@triton.jit
def _scale_kernel(
    out_ptr, upstream_ptr, N, V, C, T, stride, BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr
):  # fmt: skip
    # In place, where the logits are gone: a second rounding unless the upstream is 1.
    upstream = tl.load(upstream_ptr)
    for item in range(tl.program_id(0), tl.where(upstream == 1.0, 0, T * C), tl.num_programs(0)):
        rows = (item // C).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]  # [N, 1]
        cols = (item % C) * BLOCK_V + tl.arange(0, BLOCK_V)[None, :]  # [1, V]
        at, mask = out_ptr + rows * stride + cols, (rows < N) & (cols < V)
        tl.store(at, tl.load(at, mask=mask, other=0.0).to(tl.float32) * upstream, mask=mask)
