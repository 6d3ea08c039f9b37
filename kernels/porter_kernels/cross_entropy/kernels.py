"""Kernels of cross_entropy, over tiles of rows and chunks of columns.

Axes    N rows, V vocabulary, C chunks of BLOCK_V columns a row, S columns of a chunk's partial results, T tiles of
        BLOCK_N rows (1 where a chunk is wide). An item is the work on one tile and one chunk.

An item of the first kind reads its chunk and writes PARTIALS float32 a row: the chunk's maximum, its sum of
exponentials below that maximum, and so on. One of the second kind combines the C partials of its rows into their
log-sum-exp, reads the chunk again and writes the gradient. _loss_and_gradient_kernel runs both in one launch so that
the second read finds the chunk in L2 at any V: program ids go through slots of G tiles, A0 A1 B0 A2 B1 ... B(K-1), A
being items of the first kind and B of the second. A B item waits until C chunks of its tile were counted. That cannot
hang: it waits for lower program ids alone, those wait for nobody, and a GPU starts programs in order of their ids
(the interpreter runs them so). Merrill and Garland 2016 (decoupled look-back, NVR-2016-002) rely on the same.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from porter_kernels.cross_entropy.items import (
    combine,
    read_factor,
    read_target,
    write_gradient,
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
    write_partials(
        logits_ptr, target_ptr, weight_ptr, partials_ptr, rows, chunk, N, V, C, stride, vocab_start, weight_start,
        IGNORE, SMOOTHING, CAP, SCALE, HAS_WEIGHT, ENTROPY, ARGMAX, BLOCK_V,
    )  # fmt: skip


@triton.jit
def _results_kernel(
    partials_ptr, target_ptr, weight_ptr, weight_sum_ptr, results_ptr, correct_ptr, N, C, vocab_size,
    IGNORE: tl.constexpr, SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]  # [N, 1]
    write_results(
        partials_ptr, target_ptr, weight_ptr, weight_sum_ptr, results_ptr, correct_ptr, rows, N, C, vocab_size,
        IGNORE, SMOOTHING, Z_LOSS, HAS_WEIGHT, BLOCK_C,
    )  # fmt: skip


@triton.jit
def _gradient_kernel(
    logits_ptr, target_ptr, weight_ptr, weight_sum_ptr, peak_ptr, log_total_ptr, factor_ptr, denominator_ptr,
    upstream_ptr, out_ptr, N, V, C, T, stride, out_stride, upstream_stride, vocab_start, vocab_size,
    IGNORE: tl.constexpr, SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr, CAP: tl.constexpr, SCALE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, HAS_FACTOR: tl.constexpr, HAS_DENOMINATOR: tl.constexpr, HAS_UPSTREAM: tl.constexpr,
    HAS_LOG_TOTAL: tl.constexpr, KEEP_AT_ONE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    # KEEP_AT_ONE: `out` already holds the gradient for an upstream of 1. The device decides: the host would wait.
    items = T * C
    if KEEP_AT_ONE:
        items = tl.where(tl.load(upstream_ptr) == 1.0, 0, items)
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        rows = (item // C).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]  # [N, 1]
        cols = (item % C) * BLOCK_V + tl.arange(0, BLOCK_V)[None, :]  # [1, V]
        counts = tl.load(target_ptr + rows, mask=rows < N, other=IGNORE) != IGNORE
        raw = tl.load(logits_ptr + rows * stride + cols, mask=counts & (cols < V), other=float("-inf"))  # [N, V]
        peak = tl.load(peak_ptr + rows, mask=rows < N, other=0.0)  # [N, 1]
        log_total = tl.zeros_like(peak)
        if HAS_LOG_TOTAL:
            log_total = tl.load(log_total_ptr + rows, mask=rows < N, other=0.0)
        factor = read_factor(
            factor_ptr, denominator_ptr, upstream_ptr, rows, N, upstream_stride,
            HAS_FACTOR, HAS_DENOMINATOR, HAS_UPSTREAM,
        )  # fmt: skip
        write_gradient(
            raw, out_ptr, target_ptr, weight_ptr, weight_sum_ptr, peak, log_total, factor, rows, cols, N, V,
            out_stride, vocab_start, vocab_size, IGNORE, SMOOTHING, Z_LOSS, CAP, SCALE, HAS_WEIGHT,
        )  # fmt: skip


@triton.jit
def _loss_and_gradient_kernel(
    logits_ptr, target_ptr, weight_ptr, weight_sum_ptr, factor_ptr, denominator_ptr, partials_ptr, count_ptr,
    out_ptr, results_ptr, correct_ptr, N, V, C, T, G, K, stride, out_stride,
    IGNORE: tl.constexpr, SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr, CAP: tl.constexpr, SCALE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, HAS_FACTOR: tl.constexpr, HAS_DENOMINATOR: tl.constexpr,
    ENTROPY: tl.constexpr, ARGMAX: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    # K slots of G tiles: A0 A1 B0 A2 B1 ... A(K-1) B(K-2) B(K-1). Turn 0 and the odd ones are A, the last is B.
    turn, item = tl.program_id(0) // (G * C), tl.program_id(0) % (G * C)
    last = 2 * K - 1
    first_kind = (turn == 0) | ((turn % 2 == 1) & (turn < last))
    slot = tl.where(first_kind, (turn + 1) // 2, tl.where(turn == last, K - 1, turn // 2 - 1))
    tile, chunk = slot * G + item // C, item % C
    rows = tile.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]  # [N, 1]
    if tile < T:
        if first_kind:
            write_partials(
                logits_ptr, target_ptr, weight_ptr, partials_ptr, rows, chunk, N, V, C, stride, 0, 0,
                IGNORE, SMOOTHING, CAP, SCALE, HAS_WEIGHT, ENTROPY, ARGMAX, BLOCK_V,
            )  # fmt: skip
            tl.debug_barrier()  # every thread has stored before one of them says so
            tl.atomic_add(count_ptr + tile, 1, sem="release")
        else:
            cols = chunk * BLOCK_V + tl.arange(0, BLOCK_V)[None, :]  # [1, V]
            counts = tl.load(target_ptr + rows, mask=rows < N, other=IGNORE) != IGNORE
            at, mask = logits_ptr + rows * stride + cols, counts & (cols < V)
            raw = tl.load(at, mask=mask, other=float("-inf"), eviction_policy="evict_first")  # [N, V]
            factor = read_factor(
                factor_ptr, denominator_ptr, factor_ptr, rows, N, 0, HAS_FACTOR, HAS_DENOMINATOR, False
            )
            while tl.atomic_add(count_ptr + tile, 0, sem="acquire") < C:
                pass
            peak, log_total, _, _ = combine(partials_ptr, counts, rows, N, C, BLOCK_C)
            write_gradient(
                raw, out_ptr, target_ptr, weight_ptr, weight_sum_ptr, peak, log_total, factor, rows, cols, N, V,
                out_stride, 0, V, IGNORE, SMOOTHING, Z_LOSS, CAP, SCALE, HAS_WEIGHT,
            )  # fmt: skip
            if chunk == 0:
                write_results(
                    partials_ptr, target_ptr, weight_ptr, weight_sum_ptr, results_ptr, correct_ptr, rows, N, C, V,
                    IGNORE, SMOOTHING, Z_LOSS, HAS_WEIGHT, BLOCK_C,
                )  # fmt: skip


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
    loss_ptr, target_ptr, factor_ptr, denominator_ptr, out_ptr, N,
    IGNORE: tl.constexpr, HAS_FACTOR: tl.constexpr, HAS_DENOMINATOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, N, BLOCK):
        rows = first + tl.arange(0, BLOCK)
        loss = tl.load(loss_ptr + rows, mask=rows < N, other=0.0)
        if HAS_FACTOR:
            counts = tl.load(target_ptr + rows, mask=rows < N, other=IGNORE) != IGNORE
            loss *= tl.load(factor_ptr + rows, mask=counts, other=0.0)
        total += loss
    mean = tl.sum(total, axis=0)
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
