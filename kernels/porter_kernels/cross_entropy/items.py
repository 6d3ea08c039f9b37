"""What an item of the cross-entropy kernels does with its tile of rows and its chunk of columns; see kernels.py.

Several kernels do the same item, and must have the same bits: they are compiled without contraction of products and
sums, which would fall out differently in each, and where one rounding is worth having, tl.fma says so.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from porter_kernels.elementary import LOG2_E, reciprocal
from porter_kernels.launch import tl, triton

NUM_PARTIALS = 6  # a row and chunk: max, sum of exponentials, target's logit, weighted sum, entropy's sum, argmax
NUM_RESULTS = 6  # a row: loss, max, log of the sum, log-sum-exp, log-probability, entropy
PARTIALS = tl.constexpr(NUM_PARTIALS)


@triton.jit
def transform(raw, CAP: tl.constexpr, SCALE: tl.constexpr):
    """Logits scaled and capped (CAP 0: uncapped), and the derivative of that by the scaled logits."""
    if CAP == 0.0:
        x = raw * SCALE
        slope = tl.full(raw.shape, 1.0, tl.float32)
    else:
        # Near 0 tanh loses relative accuracy here, which a logit does not need: x is within eps * CAP. Beyond 2**60 its
        # last bit is 1 already; NaN must stay.
        exponent = tl.minimum(raw * (2.0 * LOG2_E * SCALE / CAP), 60.0, propagate_nan=tl.PropagateNan.ALL)
        growth = tl.exp2(exponent)
        share = reciprocal(1.0 + growth)
        x = tl.fma(share, -2.0 * CAP, CAP)  # tanh(u) = 1 - 2 / (1 + exp(2u))
        slope = 4.0 * growth * share * share
    return x, slope


@triton.jit
def tree_sum(x, SIZE: tl.constexpr):
    """The sum of SIZE elements, neighbours first: in one order, whatever kernel holds them, which tl.sum's is not."""
    # Of two, a sum has but one order. tl.split says the same, and takes Triton 3.6 minutes to compile.
    for level in tl.static_range(SIZE.bit_length() - 1):
        x = tl.sum(tl.reshape(x, (SIZE >> (level + 1), 2)), axis=1)
    return tl.sum(x, axis=0)  # of one


@triton.jit
def read_target(target_ptr, weight_ptr, rows, N, vocab_size, IGNORE: tl.constexpr, HAS_WEIGHT: tl.constexpr):
    """Each row's target, whether the row counts, whether that class exists, and its weight."""
    target = tl.load(target_ptr + rows, mask=rows < N, other=IGNORE)  # [N, 1]
    counts = target != IGNORE
    exists = (target >= 0) & (target < vocab_size)
    weight = tl.full(target.shape, 1.0, tl.float32)
    if HAS_WEIGHT:
        weight = tl.load(weight_ptr + target, mask=counts & exists, other=0.0)
    return target, counts, exists, weight


@triton.jit
def write_partials(
    logits_ptr, weight_ptr, partials_ptr, rows, target, chunk, N, V, C, stride, vocab_start, weight_start,
    IGNORE: tl.constexpr, SMOOTHING: tl.constexpr, CAP: tl.constexpr, SCALE: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    ENTROPY: tl.constexpr, ARGMAX: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Item of the first kind. Ignored rows are not read."""
    cols = chunk * BLOCK_V + tl.arange(0, BLOCK_V)[None, :]  # [1, V]
    mask = (target != IGNORE) & (cols < V)
    at = logits_ptr + rows * stride
    raw = tl.load(at + cols, mask=mask, other=float("-inf"), eviction_policy="evict_last").to(tl.float32)  # [N, V]
    x = transform(raw, CAP, SCALE)[0]
    if CAP != 0.0:  # else what was not read is -inf still
        x = tl.where(mask, x, float("-inf"))
    peak = tl.max(x, axis=1, keep_dims=True)  # [N, 1]
    below = x - tl.where(peak == float("-inf"), 0.0, peak)  # a chunk may be wholly -inf: -inf - -inf is NaN
    mass = tl.exp2(below * LOG2_E)
    label = target - vocab_start  # column of the target, if this chunk has it
    here = (target != IGNORE) & (label >= chunk * BLOCK_V) & (label < tl.minimum(V, (chunk + 1) * BLOCK_V))
    raw_target = tl.load(at + label, mask=here, other=0.0).to(tl.float32)
    out, filled = partials_ptr + (rows * C + chunk) * PARTIALS, rows < N
    tl.store(out, peak, mask=filled)
    tl.store(out + 1, tl.sum(mass, axis=1, keep_dims=True), mask=filled)
    tl.store(out + 2, tl.where(here, transform(raw_target, CAP, SCALE)[0], 0.0), mask=filled)
    smoothed = tl.zeros_like(peak)
    if SMOOTHING > 0.0:
        weighted = tl.where(mask, x, 0.0)
        if HAS_WEIGHT:
            weighted *= tl.load(weight_ptr + weight_start + cols, mask=cols < V, other=0.0)
        smoothed = tl.sum(weighted, axis=1, keep_dims=True)
    tl.store(out + 3, smoothed, mask=filled)
    spread = tl.zeros_like(peak)
    if ENTROPY:
        spread = tl.sum(mass * tl.where(x == float("-inf"), 0.0, below), axis=1, keep_dims=True)
    tl.store(out + 4, spread, mask=filled)
    best = tl.zeros_like(peak)
    if ARGMAX:
        ties = tl.where(mask & (x == peak), vocab_start + cols, 2**24)  # the first, as torch.argmax
        best = tl.min(ties, axis=1, keep_dims=True).to(tl.float32)
    tl.store(out + 5, best, mask=filled)


@triton.jit
def combine(partials_ptr, counts, rows, N, C, BLOCK_C: tl.constexpr):
    """Each row's maximum (0 for -inf) and the logarithm of its sum of exponentials below it, and both by chunk.

    Both are 0 where the row does not count. Reads past L1: other threads have written the partials.
    """
    chunks = tl.arange(0, BLOCK_C)[None, :]  # [1, C]
    at, mask = partials_ptr + (rows * C + chunks) * PARTIALS, (rows < N) & (chunks < C)
    peaks = tl.load(at, mask=mask, other=float("-inf"), cache_modifier=".cg")  # [N, C]
    totals = tl.load(at + 1, mask=mask, other=0.0, cache_modifier=".cg")
    peak = tl.max(peaks, axis=1, keep_dims=True)  # [N, 1]
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    below = peaks - peak
    total = tl.sum(totals * tl.exp2(below * LOG2_E), axis=1, keep_dims=True)
    log_total = tl.where(counts & (total == 0.0), float("-inf"), tl.log(tl.where(total == 0.0, 1.0, total)))
    return peak, log_total, below, totals


@triton.jit
def write_log_sum(partials_ptr, results_ptr, counts, rows, N, C, BLOCK_C: tl.constexpr):
    """Maximum, log total and log-sum-exp a row, 0 where ignored: rows 1 to 3 of the results."""
    peak, log_total, _, _ = combine(partials_ptr, counts, rows, N, C, BLOCK_C)
    out, filled = results_ptr + rows, rows < N
    tl.store(out + N, tl.where(counts, peak, 0.0), mask=filled)
    tl.store(out + 2 * N, tl.where(counts, log_total, 0.0), mask=filled)
    tl.store(out + 3 * N, tl.where(counts, peak + log_total, 0.0), mask=filled)


@triton.jit
def write_results(
    partials_ptr, weight_sum_ptr, results_ptr, correct_ptr, target, counts, exists, weight, rows, N, C, vocab_size,
    SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr, HAS_WEIGHT: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Loss, log-probability and entropy a row, 0 where ignored: rows 0, 4 and 5 of the results."""
    peak, log_total, below, totals = combine(partials_ptr, counts, rows, N, C, BLOCK_C)
    chunks = tl.arange(0, BLOCK_C)[None, :]  # [1, C]
    at, mask = partials_ptr + (rows * C + chunks) * PARTIALS, (rows < N) & (chunks < C)
    x_target = tl.sum(tl.load(at + 2, mask=mask, other=0.0, cache_modifier=".cg"), axis=1, keep_dims=True)
    lse = peak + log_total
    log_prob = (x_target - peak) - log_total  # not x - lse, whose rounding would be all that a sure token has
    loss = -weight * log_prob
    if SMOOTHING > 0.0:
        smoothed = tl.sum(tl.load(at + 3, mask=mask, other=0.0, cache_modifier=".cg"), axis=1, keep_dims=True)
        whole = vocab_size * 1.0
        if HAS_WEIGHT:
            whole = tl.load(weight_sum_ptr)
        loss = (1.0 - SMOOTHING) * loss + (SMOOTHING / vocab_size) * (whole * lse - smoothed)
    if Z_LOSS != 0.0:
        loss += Z_LOSS * lse * lse
    spreads = tl.load(at + 4, mask=mask, other=0.0, cache_modifier=".cg")
    spreads = (spreads + totals * tl.where(totals == 0.0, 0.0, below)) * tl.exp2(below * LOG2_E)
    entropy = log_total - tl.sum(spreads, axis=1, keep_dims=True) / tl.exp2(log_total * LOG2_E)
    bests = tl.load(at + 5, mask=mask & (below == 0.0), other=2**24, cache_modifier=".cg")
    correct = tl.min(bests, axis=1, keep_dims=True).to(tl.int64) == target
    out, filled = results_ptr + rows, rows < N
    tl.store(out, tl.where(counts, tl.where(exists, loss, float("nan")), 0.0), mask=filled)
    tl.store(out + 4 * N, tl.where(counts, tl.where(exists, log_prob, float("nan")), 0.0), mask=filled)
    tl.store(out + 5 * N, tl.where(counts, entropy, 0.0), mask=filled)
    tl.store(correct_ptr + rows, correct & counts, mask=filled)


@triton.jit
def count_rows(target_ptr, N, IGNORE: tl.constexpr, COUNTED: tl.constexpr):
    """How many of all rows, at most COUNTED, count; float32, in which the sum of ones is exact."""
    rows = tl.arange(0, COUNTED)
    counts = tl.load(target_ptr + rows, mask=rows < N, other=IGNORE) != IGNORE
    return tl.sum(counts.to(tl.float32), axis=0)


@triton.jit
def write_mean(results_ptr, target_ptr, mean_ptr, N, IGNORE: tl.constexpr, COUNTED: tl.constexpr):
    """The mean of the losses of all rows, which other programs have stored."""
    rows = tl.arange(0, COUNTED)
    losses = tl.load(results_ptr + rows, mask=rows < N, other=0.0, cache_modifier=".cg")
    tl.store(mean_ptr, tree_sum(losses, COUNTED) / count_rows(target_ptr, N, IGNORE, COUNTED))


@triton.jit
def read_factor(
    factor_ptr, denominator_ptr, upstream_ptr, target_ptr, rows, N, upstream_stride, IGNORE: tl.constexpr,
    HAS_FACTOR: tl.constexpr, HAS_DENOMINATOR: tl.constexpr, HAS_UPSTREAM: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    """What multiplies the gradient of each row's loss; above 0 COUNTED divides by how many of at most so many count."""
    factor = tl.full(rows.shape, 1.0, tl.float32)  # [N, 1]
    if HAS_FACTOR:
        factor = tl.load(factor_ptr + rows, mask=rows < N, other=0.0)
    if HAS_DENOMINATOR:
        factor /= tl.load(denominator_ptr)
    if COUNTED > 0:
        factor /= count_rows(target_ptr, N, IGNORE, COUNTED)
    if HAS_UPSTREAM:
        factor *= tl.load(upstream_ptr + rows * upstream_stride, mask=rows < N, other=0.0)
    return factor


@triton.jit
def write_gradient(
    logits_ptr, out_ptr, weight_ptr, weight_sum_ptr, target, counts, exists, weight, peak, log_total, factor, rows,
    chunk, N, V, stride, out_stride, vocab_start, vocab_size,
    SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr, CAP: tl.constexpr, SCALE: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Item of the second kind, once the rows' log-sum-exp is known."""
    cols = chunk * BLOCK_V + tl.arange(0, BLOCK_V)[None, :]  # [1, V]
    at, mask = logits_ptr + rows * stride + cols, counts & (cols < V)
    raw = tl.load(at, mask=mask, other=float("-inf"), eviction_policy="evict_first")  # [N, V]
    x, slope = transform(raw.to(tl.float32), CAP, SCALE)
    prob = tl.exp2(tl.fma(x - peak, LOG2_E, log_total * -LOG2_E))
    hit = (1.0 - SMOOTHING) * weight  # [N, 1]
    mass = hit
    if SMOOTHING > 0.0:
        mass = tl.full(hit.shape, 1.0, tl.float32)
        if HAS_WEIGHT:
            mass = hit + (SMOOTHING / vocab_size) * tl.load(weight_sum_ptr)
    if Z_LOSS != 0.0:
        mass += 2.0 * Z_LOSS * (peak + log_total)
    label = tl.where(counts & exists, target - vocab_start, -1)
    label = tl.where(label < V, label, -1).to(tl.int32)  # 64 bits would double the comparisons of every element
    dx = tl.fma(prob, mass, tl.where(cols == label, -hit, 0.0))
    if SMOOTHING > 0.0:
        share = SMOOTHING / vocab_size
        if HAS_WEIGHT:
            share *= tl.load(weight_ptr + vocab_start + cols, mask=cols < V, other=0.0)
        dx -= share
    factor = tl.where(counts, tl.where(exists, factor, float("nan")), 0.0)
    dx *= slope
    dx *= SCALE * factor
    tl.store(out_ptr + rows * out_stride + cols, dx, mask=(rows < N) & (cols < V), eviction_policy="evict_first")
