"""The losses everybody starts from, in plain torch: the memory curves that linear_cross_entropy is drawn against."""

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

# N rows (the leading axes flattened), H hidden features, V vocabulary.


def naive_linear_cross_entropy(
    hidden: Tensor, weight: Tensor, target: Tensor, *, bias: Tensor | None = None, ignore_index: int = -100
) -> Tensor:
    """Mean cross-entropy of all logits, cast to float32: N * V * (2 + 4) bytes in forward, as much again in backward.

    Args:
        hidden: [..., H].
        weight: [V, H].
        target: [...], class indices.
        bias: [V] or None.
        ignore_index: target of rows that do not count.

    Returns:
        0-d, float32.
    """
    return _total(hidden.flatten(0, -2), weight, bias, target.flatten(), ignore_index, "mean")


def chunked_linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    chunk_rows: int = 2048,
) -> Tensor:
    """The same over chunks of rows whose logits are computed again in backward; d_weight is summed in weight's dtype.

    Args:
        hidden: [..., H].
        weight: [V, H].
        target: [...], class indices.
        bias: [V] or None.
        ignore_index: target of rows that do not count.
        chunk_rows: rows of a chunk.

    Returns:
        0-d, float32.
    """
    hidden_NH, target_N = hidden.flatten(0, -2), target.flatten()
    total = hidden.new_zeros((), dtype=torch.float32)
    for first in range(0, hidden_NH.shape[0], chunk_rows):
        hidden_CH, target_C = (x[first : first + chunk_rows] for x in (hidden_NH, target_N))
        total = total + checkpoint(
            _total, hidden_CH, weight, bias, target_C, ignore_index, "sum", use_reentrant=False,
            preserve_rng_state=False,
        )  # fmt: skip
    return total / (target_N != ignore_index).sum()


def _total(
    hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, target_N: Tensor, ignore_index: int, reduction: str
) -> Tensor:
    logits_NV = functional.linear(hidden_NH, weight_VH, bias_V).float()
    return functional.cross_entropy(logits_NV, target_N, ignore_index=ignore_index, reduction=reduction)
