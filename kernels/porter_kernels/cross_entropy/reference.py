"""Cross entropy in plain torch: what the kernels must compute.

    x = cap * tanh(scale * logits / cap)                                            Gemma 2, arXiv:2408.00118, sec. 2
    loss = w[t] * (1 - eps) * -log p[t] + eps / V * sum_v w[v] * -log p[v] + z * lse(x)**2,  p = softmax(x)

eps: label smoothing, Szegedy et al. 2016, arXiv:1512.00567, sec. 7, weighted as torch does. z: PaLM's z-loss,
arXiv:2204.02311, sec. 5. Without them, transformers' ForCausalLMLoss (loss/loss_utils.py, 5.24.0) bit for bit.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from porter_kernels.launch import as_rows

Reduction = Literal["mean", "sum", "none"]


class CrossEntropyStats(NamedTuple):
    """Of every token, in the shape of target, without gradients; 0 or False where the token is ignored."""

    log_prob: Tensor  # of the target, float32
    entropy: Tensor  # of the distribution, in nats, float32
    correct: Tensor  # whether the target is the first of the likeliest classes, bool
    lse: Tensor  # log-sum-exp of the transformed logits, float32


def cross_entropy_reference(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    token_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    num_items: Tensor | int | float | None = None,
    stats: bool = False,
) -> Tensor | tuple[Tensor, CrossEntropyStats]:
    """The equation above, computed in float32 from logits of any dtype; differentiable; float64 stays float64.

    Args:
        logits: [..., V], floating.
        target: [...], int64, classes or ignore_index; torch refuses others.
        weight: [V], the weight of each class, or None for 1.
        token_weight: [...], multiplies the whole loss of each token, or None for 1.
        ignore_index: the target of tokens that do not count.
        reduction: "none", "sum", or "mean": the sum divided by that of weight[target] * token_weight over tokens that
            count, z-loss included.
        label_smoothing: eps.
        z_loss: z.
        softcap: cap, or None for x = scale * logits.
        logit_scale: scale.
        num_items: what the sum is divided by, whatever tokens count here (HF's num_items_in_batch).
        stats: whether CrossEntropyStats are returned too.

    Returns:
        The loss, [] or like target; with stats, also CrossEntropyStats.
    """
    x_NV = as_rows(logits.to(torch.promote_types(logits.dtype, torch.float32)))
    target_N = target.reshape(-1)
    if logit_scale != 1.0:
        x_NV = logit_scale * x_NV
    if softcap is not None:
        x_NV = softcap * torch.tanh(x_NV / softcap)
    weight_V = None if weight is None else weight.to(x_NV.dtype)
    mode = "sum" if num_items is not None and reduction == "mean" else reduction
    # torch's own reduction, for its bits, unless something is added to or multiplied with its rows.
    own = token_weight is None and z_loss == 0.0
    loss = F.cross_entropy(
        x_NV, target_N, weight_V, ignore_index=ignore_index, reduction=mode if own else "none",
        label_smoothing=label_smoothing,
    )  # fmt: skip
    counts_N = target_N != ignore_index
    if not own:
        token_weight_N = torch.ones_like(loss) if token_weight is None else token_weight.reshape(-1).to(x_NV.dtype)
        loss = torch.where(counts_N, token_weight_N * (loss + z_loss * x_NV.logsumexp(-1).square()), 0.0)
        if mode == "mean":
            class_weight_N = 1.0 if weight_V is None else weight_V[target_N.where(counts_N, 0)]
            loss = loss.sum() / torch.where(counts_N, token_weight_N * class_weight_N, 0.0).sum()
        elif mode == "sum":
            loss = loss.sum()
    if num_items is not None:
        loss = loss / (num_items.reshape(()) if isinstance(num_items, Tensor) else num_items)
    loss = loss.view(target.shape) if reduction == "none" else loss
    return (loss, _measure(x_NV.detach(), target_N, counts_N, target.shape)) if stats else loss


def _measure(x_NV: Tensor, target_N: Tensor, counts_N: Tensor, shape: torch.Size) -> CrossEntropyStats:
    log_p_NV = x_NV.log_softmax(-1)
    log_prob_N = log_p_NV.gather(-1, target_N.where(counts_N, 0)[:, None])[:, 0]
    entropy_N = torch.special.entr(log_p_NV.exp()).sum(-1)
    floats = (torch.where(counts_N, x, 0.0).view(shape) for x in (log_prob_N, entropy_N, x_NV.logsumexp(-1)))
    log_prob, entropy, lse = floats
    return CrossEntropyStats(log_prob, entropy, (counts_N & (x_NV.argmax(-1) == target_N)).view(shape), lse)
