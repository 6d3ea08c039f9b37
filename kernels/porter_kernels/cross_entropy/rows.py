"""The loss of every row, its log-sum-exp and its gradient: what cross_entropy and linear_cross_entropy launch.

A slice of the vocabulary starts at `vocab_start`; targets and class weights stay those of the whole vocabulary. Rows
whose target is ignore_index are not read: their loss, statistics and gradients are 0. A target that is no class gives
a loss and gradients of NaN. Sums are taken in one order whichever way they are reached, so bits agree between paths.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from porter_kernels.cross_entropy import kernels
from porter_kernels.cross_entropy.items import NUM_PARTIALS, NUM_RESULTS
from porter_kernels.launch import (
    INTERPRETING,
    ceil_div,
    next_power_of_2,
    num_programs,
    rows_per_program,
)
from porter_kernels.plans import Plan, launch, planned

TUNABLES = {
    # Columns of a chunk, at most: with few a row's second read finds them in a nearer cache, with many there is less to
    # combine. A cap computes so much that more threads are worth more than either.
    "block_v": 2**16 if INTERPRETING else 8192,
    "block_v_wide": 2**16 if INTERPRETING else 16384,  # from 2**16 columns on
    "block_v_capped": 2**16 if INTERPRETING else 2048,
    "elements_per_thread": 64,
    "elements_per_thread_capped": 16,
    "stages": 1,  # chunks in flight where a program does all of a row
    "rows_per_multiprocessor": 0 if INTERPRETING else 2,  # fewer rows are better split over programs
    "few_chunks": 0 if INTERPRETING else 4,  # unless they have so few chunks that three launches take longer
    "counted_rows": 1024,  # so few that each program counts those that count, rather than a launch before
    "programs_per_multiprocessor": 8,  # of a kernel that may have nothing to do
}


class LossOptions(NamedTuple):
    """What a row's loss is; reference.py has the equations."""

    ignore_index: int = -100
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    softcap: float | None = None
    logit_scale: float = 1.0

    def for_partials(self) -> dict[str, Any]:
        return {
            "IGNORE": self.ignore_index,
            "SMOOTHING": self.label_smoothing,
            "CAP": self.softcap or 0.0,
            "SCALE": self.logit_scale,
        }

    def for_loss(self) -> dict[str, Any]:
        return {"IGNORE": self.ignore_index, "SMOOTHING": self.label_smoothing, "Z_LOSS": self.z_loss}

    def for_gradient(self) -> dict[str, Any]:
        return self.for_partials() | self.for_loss()


class RowStats(NamedTuple):
    """Of every row [N], 0 where it is ignored.

    loss_N has class weight, smoothing and z-loss in it. entropy_N and correct_N hold only where the partial results
    were asked for them.
    """

    loss_N: Tensor
    lse_N: Tensor
    log_prob_N: Tensor
    entropy_N: Tensor
    correct_N: Tensor


class Results(NamedTuple):
    """RowStats as the kernels write them, and the mean of the losses where a launch came by it.

    Attributes:
        rows_RN: [6, N] float32; items.NUM_RESULTS names the rows.
        correct_N: as in RowStats.
        mean: [] float32, or None.
    """

    rows_RN: Tensor
    correct_N: Tensor
    mean: Tensor | None = None

    def stats(self) -> RowStats:
        loss_N, _, _, lse_N, log_prob_N, entropy_N = self.rows_RN.unbind()
        return RowStats(loss_N, lse_N, log_prob_N, entropy_N, self.correct_N)


class Tiling(NamedTuple):
    """How [N, V] is cut: T tiles of BLOCK_N rows, C chunks of BLOCK_V columns. C follows from V and the cap."""

    BLOCK_N: int
    BLOCK_V: int
    T: int
    C: int
    num_warps: int


def cut(N: int, V: int, capped: bool = False) -> Tiling:
    most = TUNABLES["block_v_capped" if capped else "block_v_wide" if V >= 2**16 else "block_v"]
    BLOCK_V = min(next_power_of_2(V), most)
    BLOCK_N = rows_per_program(N, BLOCK_V)
    warps = BLOCK_N * BLOCK_V // (32 * TUNABLES["elements_per_thread_capped" if capped else "elements_per_thread"])
    return Tiling(BLOCK_N, BLOCK_V, ceil_div(N, BLOCK_N), ceil_div(V, BLOCK_V), min(max(warps, 1), 16))


def can_count(target_N: Tensor, weight_V: Tensor | None, token_weight_N: Tensor | None) -> bool:
    """Whether what a mean divides by is a count, and of so few rows that each program may take it."""
    return weight_V is None and token_weight_N is None and target_N.shape[0] <= TUNABLES["counted_rows"]


def new_results(logits_NV: Tensor) -> Results:
    N = logits_NV.shape[0]
    return Results(logits_NV.new_empty(NUM_RESULTS, N, dtype=torch.float32), logits_NV.new_empty(N, dtype=torch.bool))


def row_partials(
    logits_NV: Tensor, target_N: Tensor, weight_V: Tensor | None, options: LossOptions,
    *, vocab_start: int = 0, entropy: bool = False, argmax: bool = False,
) -> Tensor:  # fmt: skip
    """Partial results of every row and chunk of columns; concatenate those of all slices along C, in order.

    Args:
        logits_NV: columns [vocab_start, vocab_start + V) of the vocabulary, last stride 1.
        target_N: int64, classes of the whole vocabulary.
        weight_V: float32, one a class of the slice or of the whole vocabulary.
        options: of the loss.
        vocab_start: the class of the first column.
        entropy: whether column 4 is filled.
        argmax: whether column 5 is filled.

    Returns:
        [N, C, 6] float32: the maximum of x (transformed logits); sum of exp(x - max); x of the target, 0 if it lies
        elsewhere; sum of w * x, where labels are smoothed; sum of exp(x - max) * (x - max); class of the maximum.
        Columns that are not filled hold 0.
    """
    N, V = logits_NV.shape
    C = cut(N, V, options.softcap is not None).C
    partials_NCS = logits_NV.new_empty(N, C, NUM_PARTIALS, dtype=torch.float32)
    if N:
        plan = _plan_partials(
            N, V, logits_NV.stride(0), vocab_start,
            vocab_start if weight_V is not None and weight_V.shape[0] > V else 0, options,
            has_weight=weight_V is not None, entropy=entropy, argmax=argmax,
        )  # fmt: skip
        launch(plan, logits_ptr=logits_NV, target_ptr=target_N, weight_ptr=weight_V, partials_ptr=partials_NCS)
    return partials_NCS


@planned
def _plan_partials(
    N: int, V: int, stride: int, vocab_start: int, weight_start: int, options: LossOptions, *, has_weight: bool,
    entropy: bool, argmax: bool,
) -> Plan:  # fmt: skip
    BLOCK_N, BLOCK_V, T, C, num_warps = cut(N, V, options.softcap is not None)
    return Plan(
        "cross_entropy", kernels._partials_kernel, (T * C,),
        N=N, V=V, C=C, stride=stride, vocab_start=vocab_start, weight_start=weight_start, **options.for_partials(),
        HAS_WEIGHT=has_weight, ENTROPY=entropy, ARGMAX=argmax, BLOCK_N=BLOCK_N, BLOCK_V=BLOCK_V, num_warps=num_warps,
        contract=False,
    )  # fmt: skip


def combine_partials(
    partials_NCS: Tensor, target_N: Tensor, weight_V: Tensor | None, weight_sum: Tensor | None,
    options: LossOptions, vocab_size: int,
) -> RowStats:  # fmt: skip
    """The loss and the statistics of every row.

    Args:
        partials_NCS: of all columns, as row_partials returns them.
        target_N: as for row_partials.
        weight_V: float32, of the whole vocabulary.
        weight_sum: [], its sum; needed where labels are smoothed and there are weights.
        options: of the loss.
        vocab_size: classes of the whole vocabulary.
    """
    return run_combine(partials_NCS, target_N, weight_V, weight_sum, options, vocab_size).stats()


def run_combine(
    partials_NCS: Tensor, target_N: Tensor, weight_V: Tensor | None, weight_sum: Tensor | None,
    options: LossOptions, vocab_size: int,
) -> Results:  # fmt: skip
    N, C, _ = partials_NCS.shape
    results = new_results(partials_NCS)
    if N:
        launch(
            _plan_combine(N, C, vocab_size, options, weight_V is not None),
            partials_ptr=partials_NCS, target_ptr=target_N, weight_ptr=weight_V, weight_sum_ptr=weight_sum,
            results_ptr=results.rows_RN, correct_ptr=results.correct_N,
        )  # fmt: skip
    return results


@planned
def _plan_combine(N: int, C: int, vocab_size: int, options: LossOptions, has_weight: bool) -> Plan:
    # Cut as in the launch that does all, for the same order of sums.
    BLOCK_N, _, T, _, num_warps = cut(N, vocab_size, options.softcap is not None)
    return Plan(
        "cross_entropy", kernels._results_kernel, (T,),
        N=N, C=C, vocab_size=vocab_size, **options.for_loss(), HAS_WEIGHT=has_weight, BLOCK_N=BLOCK_N,
        BLOCK_C=next_power_of_2(C), num_warps=num_warps, contract=False,
    )  # fmt: skip


def logits_gradient_(
    logits_NV: Tensor, target_N: Tensor, lse_N: Tensor, factor_N: Tensor | None, weight_V: Tensor | None,
    weight_sum: Tensor | None, options: LossOptions, vocab_size: int, *, vocab_start: int = 0, out: Tensor,
    log_total_N: Tensor | None = None, denominator: Tensor | None = None, upstream: Tensor | None = None,
    keep_at_one: bool = False, counted: bool = False,
) -> None:  # fmt: skip
    """Writes the gradient of every row's loss, times factor / denominator * upstream, by its logits.

    Args:
        logits_NV: columns [vocab_start, vocab_start + V) of the vocabulary, last stride 1.
        target_N: as for row_partials.
        lse_N: log-sum-exp of the whole rows; with log_total_N, their maxima.
        factor_N: float32, or None for 1.
        weight_V: float32, of the whole vocabulary.
        weight_sum: as for combine_partials.
        options: of the loss.
        vocab_size: classes of the whole vocabulary.
        vocab_start: the class of the first column.
        out: [N, V], last stride 1; may be logits_NV itself.
        log_total_N: logarithm of each row's sum of exp(x - max): more exact than a log-sum-exp rounded in float32.
        denominator: [] float32, or None for 1.
        upstream: [] or [N], float32, or None for 1.
        keep_at_one: leave `out` as it is if upstream, a scalar then, is 1.
        counted: whether the denominator is how many of these rows count; for what can_count agrees to.
    """
    N, V = logits_NV.shape
    if weight_V is not None and weight_V.shape[0] != vocab_size:
        raise ValueError(
            f"cross_entropy: weight has shape {list(weight_V.shape)}, expected [{vocab_size}], a weight for every "
            f"class: the gradient in a slice needs those of targets elsewhere. Pass the whole vocabulary's weights."
        )
    if N:
        plan = _plan_gradient(
            N, V, logits_NV.stride(0), out.stride(0),
            upstream.stride(0) if upstream is not None and upstream.ndim else 0, vocab_start, vocab_size, options,
            logits_NV.device, has_weight=weight_V is not None, has_factor=factor_N is not None,
            has_denominator=denominator is not None, has_upstream=upstream is not None,
            has_log_total=log_total_N is not None, keep_at_one=keep_at_one, counted=counted,
        )  # fmt: skip
        launch(
            plan, logits_ptr=logits_NV, target_ptr=target_N, weight_ptr=weight_V, weight_sum_ptr=weight_sum,
            peak_ptr=lse_N, log_total_ptr=log_total_N, factor_ptr=factor_N, denominator_ptr=denominator,
            upstream_ptr=upstream, out_ptr=out,
        )  # fmt: skip


@planned
def _plan_gradient(
    N: int, V: int, stride: int, out_stride: int, upstream_stride: int, vocab_start: int, vocab_size: int,
    options: LossOptions, device: torch.device, *, has_weight: bool, has_factor: bool, has_denominator: bool,
    has_upstream: bool, has_log_total: bool, keep_at_one: bool, counted: bool,
) -> Plan:  # fmt: skip
    BLOCK_N, BLOCK_V, T, C, num_warps = cut(N, V, options.softcap is not None)
    P = min(T * C, num_programs(device) * TUNABLES["programs_per_multiprocessor"]) if keep_at_one else T * C
    return Plan(
        "cross_entropy", kernels._gradient_kernel, (P,),
        N=N, V=V, C=C, T=T, stride=stride, out_stride=out_stride, upstream_stride=upstream_stride,
        vocab_start=vocab_start, vocab_size=vocab_size, **options.for_gradient(), HAS_WEIGHT=has_weight,
        HAS_FACTOR=has_factor, HAS_DENOMINATOR=has_denominator, HAS_UPSTREAM=has_upstream,
        HAS_LOG_TOTAL=has_log_total, KEEP_AT_ONE=keep_at_one, COUNTED=TUNABLES["counted_rows"] if counted else 0,
        BLOCK_N=BLOCK_N, BLOCK_V=BLOCK_V, num_warps=num_warps, contract=False,
    )  # fmt: skip


def loss_and_gradient_(
    logits_NV: Tensor, target_N: Tensor, factor_N: Tensor | None, weight_V: Tensor | None, weight_sum: Tensor | None,
    options: LossOptions, out: Tensor, *, denominator: Tensor | None = None, entropy: bool = False,
    argmax: bool = False, counted: bool = False,
) -> RowStats:  # fmt: skip
    """The statistics of every row, and in `out` the gradient of its loss times factor / denominator, in one launch.

    Arguments are those of row_partials, combine_partials and logits_gradient_, for the whole vocabulary.
    """
    results = run_loss_and_gradient_(
        logits_NV, target_N, factor_N, weight_V, weight_sum, options, out, denominator, entropy, argmax, counted
    )
    return results.stats()


def run_loss_and_gradient_(
    logits_NV: Tensor, target_N: Tensor, factor_N: Tensor | None, weight_V: Tensor | None, weight_sum: Tensor | None,
    options: LossOptions, out: Tensor, denominator: Tensor | None, entropy: bool, argmax: bool, counted: bool,
) -> Results:  # fmt: skip
    N, V = logits_NV.shape
    plan = _plan_loss_and_gradient(
        N, V, logits_NV.stride(0), out.stride(0), options, logits_NV.device, has_weight=weight_V is not None,
        has_factor=factor_N is not None, has_denominator=denominator is not None, counted=counted, entropy=entropy,
        argmax=argmax,
    )  # fmt: skip
    if plan is None:
        partials_NCS = row_partials(logits_NV, target_N, weight_V, options, entropy=entropy, argmax=argmax)
        results = run_combine(partials_NCS, target_N, weight_V, weight_sum, options, V)
        logits_gradient_(
            logits_NV, target_N, results.rows_RN[1], factor_N, weight_V, weight_sum, options, V, out=out,
            log_total_N=results.rows_RN[2], denominator=denominator, counted=counted,
        )  # fmt: skip
        return results
    rows_RN, correct_N, _ = results = new_results(logits_NV)
    if N == 0:
        return results
    mean, arrived = None, None
    if counted:
        mean, arrived = rows_RN.new_empty(()), rows_RN.new_zeros((), dtype=torch.int32)
    partials_NCS = logits_NV.new_empty(N, plan.numbers["C"], NUM_PARTIALS, dtype=torch.float32)
    launch(
        plan, logits_ptr=logits_NV, target_ptr=target_N, weight_ptr=weight_V, weight_sum_ptr=weight_sum,
        factor_ptr=factor_N, denominator_ptr=denominator, partials_ptr=partials_NCS, out_ptr=out,
        results_ptr=rows_RN, correct_ptr=correct_N, mean_ptr=mean, arrived_ptr=arrived,
    )  # fmt: skip
    return Results(rows_RN, correct_N, mean)


@planned
def _plan_loss_and_gradient(
    N: int, V: int, stride: int, out_stride: int, options: LossOptions, device: torch.device, *, has_weight: bool,
    has_factor: bool, has_denominator: bool, counted: bool, entropy: bool, argmax: bool,
) -> Plan | None:  # fmt: skip
    """None where there are so few rows that each had better be split over programs."""
    BLOCK_N, BLOCK_V, T, C, num_warps = cut(N, V, options.softcap is not None)
    if TUNABLES["rows_per_multiprocessor"] * num_programs(device) > T and TUNABLES["few_chunks"] < C:
        return None
    return Plan(
        "cross_entropy", kernels._loss_and_gradient_kernel, (T,),
        N=N, V=V, C=C, stride=stride, out_stride=out_stride, **options.for_gradient(), HAS_WEIGHT=has_weight,
        HAS_FACTOR=has_factor, HAS_DENOMINATOR=has_denominator, COUNTED=TUNABLES["counted_rows"] if counted else 0,
        ENTROPY=entropy, ARGMAX=argmax, BLOCK_N=BLOCK_N, BLOCK_V=BLOCK_V, BLOCK_C=next_power_of_2(C),
        STAGES=TUNABLES["stages"], num_warps=num_warps, contract=False,
    )  # fmt: skip


def scale_(gradient_NV: Tensor, upstream: Tensor) -> None:
    """Multiplies by upstream, a scalar; touches nothing where it is 1."""
    N, V = gradient_NV.shape
    if N:
        plan = _plan_scale(N, V, gradient_NV.stride(0), gradient_NV.device)
        launch(plan, out_ptr=gradient_NV, upstream_ptr=upstream)


@planned
def _plan_scale(N: int, V: int, stride: int, device: torch.device) -> Plan:
    BLOCK_N, BLOCK_V, T, C, num_warps = cut(N, V)
    P = min(T * C, num_programs(device) * TUNABLES["programs_per_multiprocessor"])
    return Plan(
        "cross_entropy", kernels._scale_kernel, (P,),
        N=N, V=V, C=C, T=T, stride=stride, BLOCK_N=BLOCK_N, BLOCK_V=BLOCK_V, num_warps=num_warps,
    )  # fmt: skip
