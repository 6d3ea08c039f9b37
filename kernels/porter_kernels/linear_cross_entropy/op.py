"""Cross-entropy of a language model's head without the logits of all rows at once.

    logits = hidden @ weight.T + bias        loss = cross_entropy(logits, target)

A chunk of rows at a time: its logits are multiplied by cuBLAS, turned into their own gradient in place, and multiplied
into d_hidden and d_weight, after which the next chunk takes their memory. Rows that do not count are left out first.

Axes    N rows (the leading axes of hidden, flattened), H hidden features, V vocabulary.
Dtypes  hidden, weight and bias in {float32, bfloat16, float16}, alike. Logits and their gradients are rounded to that
        dtype, as an unfused head rounds them; products are summed in float32; the loss is float32.
"""

from torch import Tensor

from porter_kernels.cross_entropy.reference import CrossEntropyStats, Reduction
from porter_kernels.linear_cross_entropy.autograd import differentiable
from porter_kernels.linear_cross_entropy.chunks import Accumulate
from porter_kernels.linear_cross_entropy.problem import in_shape, state_problem


def linear_cross_entropy(
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
    chunk_rows: int | None = None,
    byte_budget: int | None = None,
    accumulate: Accumulate = "float32",
    drop_ignored: bool | None = None,
    shift: bool = False,
) -> Tensor | tuple[Tensor, CrossEntropyStats]:
    """The cross entropy of softmax(hidden @ weight.T + bias) and target; linear_cross_entropy_reference states it.

    Only the gradients that are required are computed: any of hidden, weight and bias may be frozen. Under
    torch.autocast the three are cast to its dtype first, and their gradients arrive in their own.

    Args:
        hidden: [..., H], float32, bfloat16 or float16.
        weight: [V, H], dtype and device of hidden; may also be the embedding's.
        target: [...], int64. One that is neither a class nor ignore_index makes the loss NaN.
        bias: [V] or None.
        class_weight: [V], float32, the weight of each class, or None for 1.
        token_weight: [...], float32, multiplies the whole loss of each token, or None for 1.
        ignore_index: the target of tokens that do not count.
        reduction: "none", "sum", or "mean": the sum divided by that of class_weight[target] * token_weight over tokens
            that count; NaN where none counts. "none" and float16 multiply the logits a second time in backward.
        label_smoothing: share of the target spread over all classes, 0 to 1.
        z_loss: factor of the squared log-sum-exp added to the loss.
        softcap: logits are held softly within it (Gemma 2), or None.
        logit_scale: multiplies the logits before the cap (Cohere, Granite).
        num_items: what the sum is divided by, whatever tokens count here (HF's num_items_in_batch).
        stats: whether CrossEntropyStats are returned too.
        chunk_rows: rows of logits at once, rather than what choose_chunks chooses.
        byte_budget: bytes above the inputs to stay within.
        accumulate: what d_weight is summed in over chunks. "float32" rounds it once, whatever the chunks. "weight"
            saves the accumulator, 4 * V * H bytes, and rounds d_weight to its dtype after each chunk.
        drop_ignored: whether rows that do not count are left out of the products: saves their time and memory, and
            waits for the device once to learn how many are left. None: where the products are large enough to be worth
            it and no CUDA graph is being captured.
        shift: whether position t is to predict target[..., t + 1], as transformers shifts labels; the last position
            then does not count. token_weight is shifted with target.

    Returns:
        The loss, float32, [] or like target; with stats, also CrossEntropyStats, without gradients.

    Raises:
        TypeError: weight is a module.
        ValueError: a shape, dtype, device or option does not fit; class_weight or token_weight requires a gradient;
            byte_budget is too small.
    """
    problem = state_problem(
        "linear_cross_entropy", hidden, weight, target, bias=bias, class_weight=class_weight,
        token_weight=token_weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing,
        z_loss=z_loss, softcap=softcap, logit_scale=logit_scale, num_items=num_items, stats=stats,
        chunk_rows=chunk_rows, byte_budget=byte_budget, accumulate=accumulate, drop_ignored=drop_ignored, shift=shift,
    )  # fmt: skip
    loss, measured = in_shape(differentiable(problem), problem, target.shape)
    return loss if measured is None else (loss, measured)
