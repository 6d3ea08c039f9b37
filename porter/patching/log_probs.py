"""Log-probabilities of tokens, for preference and reinforcement losses, without logits of the vocabulary in memory."""

from typing import Any

from torch import Tensor

from porter.patching.head import FusedLoss
from porter.patching.patch import PatchError, unwrapped


def token_log_probs(model: Any, input_ids: Tensor, *, labels: Tensor | None = None, **inputs: Any) -> Tensor:
    """The log-probability that a patched model gives each token, after those before it; differentiable.

    Args:
        model: patched, with linear_cross_entropy; in training mode, and with gradients on, no logits are made.
        input_ids: [B, T].
        labels: [B, T], the tokens asked about: input_ids, or -100 where none is (a prompt, padding).
        inputs: of the model's forward: attention_mask, position_ids, …

    Returns:
        [B, T - 1], float32: of tokens 1 to T - 1; 0 where the label is -100.

    Raises:
        PatchError: the model is not patched.
    """
    loss = getattr(unwrapped(model), "_loss_function", None)
    if not isinstance(loss, FusedLoss):
        raise PatchError(
            "token_log_probs of a model whose loss is not fused", "one that porter.patch has patched",
            "porter.patch(model) first.",
        )  # fmt: skip
    with loss.given(reduction="none"):
        out = model(input_ids=input_ids, labels=input_ids if labels is None else labels, use_cache=False, **inputs)
    losses_BT: Tensor = out.loss
    return -losses_BT[:, :-1]
