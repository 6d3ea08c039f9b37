"""Linear + cross entropy in plain torch: what the chunks must compute."""

from torch import Tensor
from torch.nn import functional

from porter_kernels.cross_entropy.reference import CrossEntropyStats, Reduction, cross_entropy_reference


def linear_cross_entropy_reference(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
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
    shift: bool = False,
) -> Tensor | tuple[Tensor, CrossEntropyStats]:
    """cross_entropy_reference of the head's logits; differentiable; float64 stays float64.

    Without options, transformers' lm_head and ForCausalLMLoss (loss/loss_utils.py, 5.24.0) bit for bit, which shifts
    labels as shift=True does.

    Args:
        hidden: [..., H], floating.
        weight: [V, H].
        target: [...], int64, classes or ignore_index.
        bias: [V] or None.
        class_weight: [V], the weight of each class, or None for 1.
        token_weight: [...], multiplies the whole loss of each token, or None for 1.
        ignore_index: as for cross_entropy_reference, like the options that follow.
        reduction: "mean", "sum" or "none".
        label_smoothing: share of the target spread over all classes.
        z_loss: factor of the squared log-sum-exp added to the loss.
        softcap: logits are held softly within it, or None.
        logit_scale: multiplies the logits before the cap.
        num_items: what the sum is divided by.
        stats: whether CrossEntropyStats are returned too.
        shift: whether position t is to predict target[..., t + 1]; the last position then does not count.

    Returns:
        The loss, [] or like target; with stats, also CrossEntropyStats.
    """
    if shift:
        target = shift_left(target, 1, ignore_index)
        token_weight = None if token_weight is None else shift_left(token_weight, 1, 0)
    return cross_entropy_reference(
        functional.linear(hidden, weight, bias), target, weight=class_weight, token_weight=token_weight,
        ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing, z_loss=z_loss,
        softcap=softcap, logit_scale=logit_scale, num_items=num_items, stats=stats,
    )  # fmt: skip


def shift_left(x: Tensor, by: int, fill: float) -> Tensor:
    """x[..., t + by] at position t, and fill at the last ones."""
    return functional.pad(x, (0, by), value=fill)[..., by:]
