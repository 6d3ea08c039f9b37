"""The loss of every row, its log-sum-exp and its gradient: what cross_entropy and linear_cross_entropy launch.

A slice of the vocabulary starts at `vocab_start`; targets and class weights stay those of the whole vocabulary. Rows
whose target is ignore_index are not read: their loss, statistics and gradients are 0. A target that is no class gives
a loss and gradients of NaN. Sums are taken in one order whichever way they are reached, so bits agree between paths.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from porter_kernels.cross_entropy import planning
from porter_kernels.cross_entropy.items import NUM_PARTIALS, NUM_RESULTS
from porter_kernels.cross_entropy.planning import TUNABLES, LossOptions, cut
from porter_kernels.plans import launch


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
        plan = planning.plan_partials(
            N, V, logits_NV.stride(0), vocab_start,
            vocab_start if weight_V is not None and weight_V.shape[0] > V else 0, options,
            has_weight=weight_V is not None, entropy=entropy, argmax=argmax,
        )  # fmt: skip
        launch(plan, logits_ptr=logits_NV, target_ptr=target_N, weight_ptr=weight_V, partials_ptr=partials_NCS)
    return partials_NCS


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
            planning.plan_combine(N, C, vocab_size, options, weight_V is not None),
            partials_ptr=partials_NCS, target_ptr=target_N, weight_ptr=weight_V, weight_sum_ptr=weight_sum,
            results_ptr=results.rows_RN, correct_ptr=results.correct_N,
        )  # fmt: skip
    return results


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
        plan = planning.plan_gradient(
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
    plan = planning.plan_loss_and_gradient(
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


def scale_(gradient_NV: Tensor, upstream: Tensor) -> None:
    """Multiplies by upstream, a scalar; touches nothing where it is 1."""
    N, V = gradient_NV.shape
    if N:
        plan = planning.plan_scale(N, V, gradient_NV.stride(0), gradient_NV.device)
        launch(plan, out_ptr=gradient_NV, upstream_ptr=upstream)
