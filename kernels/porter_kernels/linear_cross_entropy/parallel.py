"""linear_cross_entropy over a head whose rows, the classes of the vocabulary, are split over processes.

Every rank holds all hidden states and a slice of the head. Of a chunk of rows it computes the logits of its slice and
reduces them to a few floats a row (row_partials); those are exchanged and combined in the order of ranks, so that every
rank has the same loss in the same bits; then each turns its logits into their gradient. d_weight stays where its slice
is; the parts of d_hidden are summed over ranks in float32 before they are rounded. Shoeybi et al. 2019,
arXiv:1909.08053, sec. 3, exchange the same where they split the vocabulary.

Axes    N rows, C column chunks of a rank's partial results, S of their columns, P ranks, H hidden features, V classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from porter_kernels.cross_entropy.planning import cut
from porter_kernels.cross_entropy.reference import CrossEntropyStats, Reduction
from porter_kernels.cross_entropy.rows import logits_gradient_, row_partials, run_combine
from porter_kernels.linear_cross_entropy.autograd import run_eagerly
from porter_kernels.linear_cross_entropy.checks import check_module
from porter_kernels.linear_cross_entropy.chunks import Accumulate
from porter_kernels.linear_cross_entropy.gradients import Need
from porter_kernels.linear_cross_entropy.passes import Passed, Place, Rows, empty_rows, rows_of, take, walk, write_rows
from porter_kernels.linear_cross_entropy.problem import Problem, in_shape, state_problem


@dataclass(frozen=True)
class VocabularySlice:
    """The pass of one rank."""

    group: dist.ProcessGroup | None
    start: int  # the class of the slice's first row
    sizes: tuple[int, ...]  # rows of every rank's slice

    def __call__(self, problem: Problem, need: Need, upstream: Tensor | None = None) -> Passed:
        target_N, class_weight_V, options = problem.target_N, problem.class_weight_V, problem.options
        class_weight_sum, vocab_size = problem.class_weight_sum(), sum(self.sizes)
        factor_N, denominator = problem.factors(upstream), problem.denominator() if any(need) else None
        whole: Rows | None = None

        def turn(logits_CV: Tensor, at: Place) -> None:
            nonlocal whole
            target_C = take(target_N, at)
            partials_NCS = row_partials(
                logits_CV, target_C, class_weight_V, options, vocab_start=self.start, entropy=problem.stats,
                argmax=problem.stats,
            )  # fmt: skip
            partials_NCS = self.gather(partials_NCS, options.softcap is not None)
            results = run_combine(partials_NCS, target_C, class_weight_V, class_weight_sum, options, vocab_size)
            whole = write_rows(whole, rows_of(results, problem), at, problem)
            if any(need):
                logits_gradient_(
                    logits_CV, target_C, results.rows_RN[3], None if factor_N is None else take(factor_N, at),
                    class_weight_V, class_weight_sum, options, vocab_size, vocab_start=self.start, out=logits_CV,
                    denominator=denominator,
                )  # fmt: skip

        gradients = walk(problem, need, turn, largest_slice=max(self.sizes))
        if gradients.hidden_NH is not None:
            dist.all_reduce(gradients.hidden_NH, group=self.group)
            gradients = gradients._replace(hidden_NH=gradients.hidden_NH.to(problem.hidden_NH.dtype))
        return Passed(whole or empty_rows(problem), None, gradients)

    def gather(self, partials_NCS: Tensor, capped: bool) -> Tensor:
        """[N, P * C, S]: the partial results of all ranks, in their order; smaller slices filled up with nothing."""
        N, C, S = partials_NCS.shape
        P, most = len(self.sizes), max(cut(N, size, capped).C for size in self.sizes)
        if most > C:
            nothing = partials_NCS.new_zeros(N, most - C, S)
            nothing[:, :, 0] = float("-inf")  # the maximum of no logits
            partials_NCS = torch.cat((partials_NCS, nothing), dim=1)
        gathered_PNCS = partials_NCS.new_empty(P, N, most, S)
        dist.all_gather(list(gathered_PNCS.unbind()), partials_NCS, group=self.group)
        return gathered_PNCS.transpose(0, 1).contiguous().view(N, P * most, S)  # of one chunk, reshape copies nothing


def vocab_parallel_linear_cross_entropy(
    hidden: Tensor,
    weight_shard: Tensor,
    target: Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    shard_sizes: Sequence[int] | None = None,
    bias_shard: Tensor | None = None,
    class_weight: Tensor | None = None,
    token_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    num_items: Tensor | int | float | None = None,
    stats: bool = False,
    chunk_rows: int | None = None,
    byte_budget: int | None = None,
    accumulate: Accumulate = "float32",
    drop_ignored: bool | None = None,
    shift: bool = False,
) -> Tensor | tuple[Tensor, CrossEntropyStats]:
    """linear_cross_entropy of a head of which every process of a group holds a slice; the same bits on all of them.

    All ranks call it with the same hidden, target and options, and freeze the same inputs. The gradient of hidden is
    that of the whole loss on every rank, so that what computed it needs no further sum over the group. torch.compile
    breaks its graph here.

    Args:
        hidden: [..., H], the same on every rank.
        weight_shard: [V of this rank, H]; ranks hold consecutive slices, in their order, of any sizes.
        target: [...], int64, classes of the whole vocabulary.
        group: the processes; None for all.
        shard_sizes: V of every rank; None on all ranks has them tell each other, for which the host waits.
        bias_shard: [V of this rank] or None.
        class_weight: [V of the whole vocabulary], float32, or None for 1.
        token_weight: as for linear_cross_entropy, like the options that follow.
        ignore_index: the target of tokens that do not count.
        reduction: "mean", "sum" or "none".
        label_smoothing: share of the target spread over all classes of the whole vocabulary.
        z_loss: factor of the squared log-sum-exp added to the loss.
        softcap: logits are held softly within it, or None.
        logit_scale: multiplies the logits before the cap.
        num_items: what the sum is divided by.
        stats: whether CrossEntropyStats are returned too.
        chunk_rows: rows of logits at once.
        byte_budget: bytes above the inputs to stay within, on the rank with the largest slice.
        accumulate: what d_weight is summed in over chunks.
        drop_ignored: whether rows that do not count are left out of the products.
        shift: whether position t is to predict target[..., t + 1].

    Returns:
        The loss, float32, [] or like target; with stats, also CrossEntropyStats, without gradients.

    Raises:
        TypeError: weight_shard is a module.
        ValueError: as for linear_cross_entropy; shard_sizes do not fit the group or this rank's shard.
    """
    check_module("vocab_parallel_linear_cross_entropy", weight_shard)
    sizes = sizes_of_shards(weight_shard, shard_sizes, group)
    problem = state_problem(
        "vocab_parallel_linear_cross_entropy", hidden, weight_shard, target, bias=bias_shard,
        class_weight=class_weight, token_weight=token_weight, ignore_index=ignore_index, reduction=reduction,
        label_smoothing=label_smoothing, z_loss=z_loss, softcap=softcap, logit_scale=logit_scale, num_items=num_items,
        stats=stats, chunk_rows=chunk_rows, byte_budget=byte_budget, accumulate=accumulate, drop_ignored=drop_ignored,
        shift=shift, vocab_size=sum(sizes),
    )  # fmt: skip
    make_pass = VocabularySlice(group, sum(sizes[: dist.get_rank(group)]), sizes)
    run = run_eagerly
    if torch.compiler.is_compiling():
        run = torch.compiler.disable(run_eagerly)  # type: ignore[no-untyped-call]
    loss, measured = in_shape(run(make_pass, problem), problem, target.shape)
    return loss if measured is None else (loss, measured)


def sizes_of_shards(
    weight_shard: Tensor, shard_sizes: Sequence[int] | None, group: dist.ProcessGroup | None
) -> tuple[int, ...]:
    """Rows of every rank's slice, asked of the others where they are not given."""
    rank, P = dist.get_rank(group), dist.get_world_size(group)
    if shard_sizes is None:
        sizes_P = torch.zeros(P, dtype=torch.int64, device=weight_shard.device)
        sizes_P[rank] = weight_shard.shape[0]
        dist.all_reduce(sizes_P, group=group)
        return tuple(sizes_P.tolist())
    if len(shard_sizes) != P or shard_sizes[rank] != weight_shard.shape[0]:
        raise ValueError(
            f"vocab_parallel_linear_cross_entropy: shard_sizes are {list(shard_sizes)}, expected {P}, of which number "
            f"{rank} is {weight_shard.shape[0]}, the rows of this rank's weight_shard. Pass the sizes of all ranks in "
            f"their order, or leave them out."
        )
    return tuple(shard_sizes)
