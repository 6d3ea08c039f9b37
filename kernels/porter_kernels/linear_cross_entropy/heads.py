"""Several heads that look further ahead, as Medusa's do, with one chunk of logits at a time over all of them.

Head i predicts, at position t, the token at t + ahead + i. Each has hidden states of its own (Medusa's residual
blocks) or those of the model, and a head of its own or a shared one: Cai et al. 2024, arXiv:2401.10774, sec. 2.1.1.

Heads of their own are called one after the other, each as linear_cross_entropy. Heads that share a weight are one call
whose rows are those of all of them, so that one d_weight is held and rounded rather than one a head. Its gradients wait
for backward, which knows what each head's loss is multiplied by, and cost a fourth product of the head's size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from porter_kernels.cross_entropy.reference import CrossEntropyStats, Reduction
from porter_kernels.linear_cross_entropy.checks import check_module
from porter_kernels.linear_cross_entropy.chunks import Accumulate
from porter_kernels.linear_cross_entropy.op import linear_cross_entropy
from porter_kernels.linear_cross_entropy.reference import shift_left


def multi_head_linear_cross_entropy(
    hidden: Tensor | Sequence[Tensor],
    weight: Tensor | Sequence[Tensor],
    target: Tensor,
    *,
    bias: Sequence[Tensor | None] | None = None,
    ahead: int = 1,
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
) -> Tensor | tuple[Tensor, list[CrossEntropyStats]]:
    """The loss of every head, each that of linear_cross_entropy for the target shifted by what the head predicts.

    Args:
        hidden: [..., T, H] for every head, or one tensor for all.
        weight: [V, H] for every head, or one tensor for all; the same tensor may stand for several. One of hidden and
            weight names the heads.
        target: [..., T], int64, the tokens themselves: the last position of head i that counts is T - 1 - ahead - i.
        bias: [V] or None for every head; None for no bias.
        ahead: what head 0 predicts: 1 the next token, 2 where the model's own head, frozen, predicts the next.
        class_weight: as for linear_cross_entropy, like the options that follow, for each head.
        token_weight: [..., T], float32, of the tokens that are predicted, shifted with target.
        ignore_index: the target of tokens that do not count.
        reduction: "mean", "sum" or "none", of each head's loss.
        label_smoothing: share of the target spread over all classes.
        z_loss: factor of the squared log-sum-exp added to the loss.
        softcap: logits are held softly within it, or None.
        logit_scale: multiplies the logits before the cap.
        num_items: what each head's sum is divided by.
        stats: whether CrossEntropyStats of each head are returned too.
        chunk_rows: rows of logits at once.
        byte_budget: bytes above the inputs to stay within, of one weight's heads.
        accumulate: what d_weight is summed in over chunks.
        drop_ignored: whether rows that do not count are left out of the products.

    Returns:
        The losses, float32, [heads], or [heads, ..., T] unreduced; with stats, also those of each head.

    Raises:
        TypeError: a weight is a module.
        ValueError: hidden, weight and bias name different numbers of heads; or as for linear_cross_entropy.
    """
    hiddens, weights, biases = _match_heads(hidden, weight, bias)
    losses: dict[int, Tensor] = {}
    measured: dict[int, CrossEntropyStats] = {}
    for heads in _group_heads(weights, biases):
        shared = len(heads) > 1
        targets = torch.stack([shift_left(target, ahead + i, ignore_index) for i in heads])  # [M, ..., T]
        token_weights = None
        if token_weight is not None:
            token_weights = torch.stack([shift_left(token_weight, ahead + i, 0) for i in heads])
        result = linear_cross_entropy(
            torch.stack([hiddens[i] for i in heads]) if shared else hiddens[heads[0]][None], weights[heads[0]],
            targets, bias=biases[heads[0]], class_weight=class_weight, token_weight=token_weights,
            ignore_index=ignore_index, reduction="none" if shared else reduction, label_smoothing=label_smoothing,
            z_loss=z_loss, softcap=softcap, logit_scale=logit_scale, num_items=None if shared else num_items,
            stats=stats, chunk_rows=chunk_rows, byte_budget=byte_budget, accumulate=accumulate,
            drop_ignored=drop_ignored,
        )  # fmt: skip
        loss, stats_of_group = result if isinstance(result, tuple) else (result, None)
        if shared and reduction != "none":
            loss = loss.flatten(1).sum(1)
            if num_items is not None:
                loss = loss / num_items
            elif reduction == "mean":
                loss = loss / _denominators(targets, class_weight, token_weights, ignore_index)
        losses |= zip(heads, loss.unbind() if loss.ndim else [loss], strict=True)
        if stats_of_group is not None:
            of_heads = zip(*(x.unbind() for x in stats_of_group), strict=True)
            measured |= zip(heads, map(CrossEntropyStats._make, of_heads), strict=True)
    loss = torch.stack([losses[i] for i in range(len(weights))])
    return (loss, [measured[i] for i in range(len(weights))]) if stats else loss


def _match_heads(
    hidden: Tensor | Sequence[Tensor], weight: Tensor | Sequence[Tensor], bias: Sequence[Tensor | None] | None
) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]]:
    """Hidden states, weight and bias of every head."""
    check_module("multi_head_linear_cross_entropy", weight)
    counts = {
        name: len(x)
        for name, x in (("hidden", hidden), ("weight", weight), ("bias", bias))
        if x is not None and not isinstance(x, Tensor)
    }
    if len(set(counts.values())) != 1 or set(counts) == {"bias"} or 0 in counts.values():
        raise ValueError(
            f"multi_head_linear_cross_entropy: sequences have lengths {counts}, expected one length, of hidden, weight "
            f"or both. Pass a list with one tensor a head, and one tensor where all heads share it."
        )
    M = next(iter(counts.values()))
    return (
        [hidden] * M if isinstance(hidden, Tensor) else list(hidden),
        [weight] * M if isinstance(weight, Tensor) else list(weight),
        [None] * M if bias is None else list(bias),
    )


def _group_heads(weights: list[Tensor], biases: list[Tensor | None]) -> list[list[int]]:
    """The heads that share weight and bias, by their numbers."""
    groups: dict[tuple[int, int], list[int]] = {}
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        groups.setdefault((id(weight), id(bias)), []).append(i)
    return list(groups.values())


def _denominators(
    targets: Tensor, class_weight: Tensor | None, token_weights: Tensor | None, ignore_index: int
) -> Tensor:
    """[M] float32, what the mean of each head divides by."""
    counts = targets != ignore_index
    weights = counts.float()
    if class_weight is not None:
        weights = weights * class_weight[targets.where(counts, 0).clamp(0, class_weight.shape[0] - 1)]
    if token_weights is not None:
        weights = torch.where(counts, weights * token_weights, 0.0)
    return weights.flatten(1).sum(1)
