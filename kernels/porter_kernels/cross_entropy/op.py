"""cross_entropy as autograd and torch.compile see it.

Eagerly, where the logits need a gradient and the loss is one number, forward writes the gradient for an upstream of 1
in the launch that computes the loss; backward then has nothing to do if the upstream is 1, which the device finds out.
Otherwise, and where somebody traces, forward computes the loss and the log-sum-exp, backward the gradient from those.
"""

from typing import Any

import torch
from torch import Tensor

from porter_kernels.cross_entropy.arguments import check_options, check_overwritable, check_tensors
from porter_kernels.cross_entropy.planning import LossOptions
from porter_kernels.cross_entropy.reference import CrossEntropyStats, Reduction
from porter_kernels.cross_entropy.rows import (
    can_count,
    logits_gradient_,
    new_results,
    row_partials,
    run_combine,
    run_loss_and_gradient_,
    scale_,
)
from porter_kernels.cross_entropy.sums import mean_denominator, mean_loss, total_loss
from porter_kernels.fused import Fused, Launch, is_traced, lean_apply, refuse_second_derivative, refuse_transforms
from porter_kernels.launch import as_rows

# --- ops: loss, then its gradient ------------------------------------------------------------


def _sum_weight(weight_V: Tensor | None, options: LossOptions) -> Tensor | None:
    return weight_V.sum() if weight_V is not None and options.label_smoothing else None


def _launch_loss(
    logits_NV: Tensor, target_N: Tensor, weight_V: Tensor | None, token_weight_N: Tensor | None,
    num_items: Tensor | None, reduction: str, stats: bool,
    ignore_index: int, label_smoothing: float, z_loss: float, softcap: float | None, logit_scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    options = LossOptions(ignore_index, label_smoothing, z_loss, softcap, logit_scale)
    partials_NCS = row_partials(logits_NV, target_N, weight_V, options, entropy=stats, argmax=stats)
    results = run_combine(partials_NCS, target_N, weight_V, _sum_weight(weight_V, options), options, logits_NV.shape[1])
    loss_N = results.rows_RN[0]
    if reduction == "mean":
        loss, mean = mean_loss(loss_N, target_N, weight_V, token_weight_N, options)
        return loss, results.rows_RN, results.correct_N, mean
    if reduction == "sum":
        loss = total_loss(loss_N, target_N, token_weight_N, num_items, options)
    elif token_weight_N is None:
        loss = loss_N.clone()  # an op may not return two views of one memory
    else:
        loss = (loss_N * token_weight_N).masked_fill_(target_N == ignore_index, 0.0)
    return loss, results.rows_RN, results.correct_N, logits_NV.new_empty(0, dtype=torch.float32)


def _fake_loss(
    logits_NV: Tensor, target_N: Tensor, weight_V: Tensor | None, token_weight_N: Tensor | None,
    num_items: Tensor | None, reduction: str, stats: bool,
    ignore_index: int, label_smoothing: float, z_loss: float, softcap: float | None, logit_scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    rows_RN, correct_N, _ = new_results(logits_NV)
    loss = torch.empty_like(rows_RN[0]) if reduction == "none" else rows_RN.new_empty(())
    return loss, rows_RN, correct_N, rows_RN.new_empty(() if reduction == "mean" else 0)


def _launch_gradient(
    d_loss: Tensor, logits_NV: Tensor, target_N: Tensor, rows_RN: Tensor, divisor: Tensor | None,
    weight_V: Tensor | None, token_weight_N: Tensor | None,
    ignore_index: int, label_smoothing: float, z_loss: float, softcap: float | None, logit_scale: float,
) -> Tensor:  # fmt: skip
    options = LossOptions(ignore_index, label_smoothing, z_loss, softcap, logit_scale)
    d_logits_NV = logits_NV.new_empty(logits_NV.shape)
    logits_gradient_(
        logits_NV, target_N, rows_RN[1], token_weight_N, weight_V, _sum_weight(weight_V, options), options,
        logits_NV.shape[1], out=d_logits_NV, log_total_N=rows_RN[2], denominator=divisor, upstream=d_loss,
    )  # fmt: skip
    return d_logits_NV


def _fake_gradient(
    d_loss: Tensor, logits_NV: Tensor, target_N: Tensor, rows_RN: Tensor, divisor: Tensor | None,
    weight_V: Tensor | None, token_weight_N: Tensor | None,
    ignore_index: int, label_smoothing: float, z_loss: float, softcap: float | None, logit_scale: float,
) -> Tensor:  # fmt: skip
    return logits_NV.new_empty(logits_NV.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits_NV, target_N, weight_V, token_weight_N, num_items, reduction, _, *ctx.options = inputs
    _, rows_RN, correct_N, mean = output
    ctx.save_for_backward(
        logits_NV, target_N, rows_RN, mean if reduction == "mean" else num_items, weight_V, token_weight_N
    )
    ctx.mark_non_differentiable(rows_RN, correct_N, mean)


def _differentiate(ctx: Any, d_loss: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    d_logits_NV = None
    if d_loss is not None and ctx.needs_input_grad[0]:
        d_logits_NV = _gradient(d_loss, *ctx.saved_tensors, *ctx.options)
    return d_logits_NV, *[None] * 11


_gradient = Launch("cross_entropy_backward", _launch_gradient, _fake_gradient)
_loss = Fused("cross_entropy", _launch_loss, _fake_loss, save=_save, differentiate=_differentiate)


# --- both in one launch ----------------------------------------------------------------------


class _LossWithGradient(torch.autograd.Function):
    """Loss as one number; its gradient for an upstream of 1 lies ready, in the logits' own memory if inplace."""

    @staticmethod
    def forward(
        ctx: Any, logits_NV: Tensor, target_N: Tensor, weight_V: Tensor | None, token_weight_N: Tensor | None,
        num_items: Tensor | None, reduction: str, stats: bool, options: LossOptions, inplace: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        is_mean, divisor = reduction == "mean", num_items
        counted = is_mean and can_count(target_N, weight_V, token_weight_N)
        if is_mean and not counted:
            divisor = mean_denominator(target_N, weight_V, token_weight_N, options)
        d_logits_NV = logits_NV.detach() if inplace else logits_NV.new_empty(logits_NV.shape)
        rows_RN, correct_N, loss = run_loss_and_gradient_(
            logits_NV, target_N, token_weight_N, weight_V, _sum_weight(weight_V, options), options, d_logits_NV,
            divisor, entropy=stats, argmax=stats, counted=counted,
        )  # fmt: skip
        if counted and loss is None:
            loss, _ = mean_loss(rows_RN[0], target_N, None, None, options)
        elif loss is None:
            loss = total_loss(rows_RN[0], target_N, token_weight_N, divisor, options)
        ctx.options, ctx.inplace, ctx.d_logits_NV, ctx.counted = options, inplace, d_logits_NV, counted
        ctx.save_for_backward(None if inplace else logits_NV, target_N, rows_RN, divisor, weight_V, token_weight_N)
        ctx.set_materialize_grads(False)
        if not stats:
            return (loss,)
        ctx.mark_non_differentiable(rows_RN, correct_N)
        return loss, rows_RN, correct_N

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("cross_entropy")
        if d_loss is None:
            return (None,) * 9
        logits_NV, target_N, rows_RN, divisor, weight_V, token_weight_N = ctx.saved_tensors
        # Given away once, so that no two backwards return the same memory.
        d_logits_NV, ctx.d_logits_NV = ctx.d_logits_NV, None
        if ctx.inplace:
            if d_logits_NV is None:
                raise RuntimeError(
                    "cross_entropy: a second backward through inplace=True, expected one: the first gave the logits' "
                    "memory away. Leave out inplace or retain_graph."
                )
            scale_(d_logits_NV, d_loss)
            return d_logits_NV, *[None] * 8
        ready = d_logits_NV is not None
        if d_logits_NV is None:
            d_logits_NV = logits_NV.new_empty(logits_NV.shape)
        logits_gradient_(
            logits_NV, target_N, rows_RN[1], token_weight_N, weight_V, _sum_weight(weight_V, ctx.options),
            ctx.options, logits_NV.shape[1], out=d_logits_NV, log_total_N=rows_RN[2], denominator=divisor,
            upstream=d_loss, keep_at_one=ready, counted=ctx.counted,
        )  # fmt: skip
        return d_logits_NV, *[None] * 8


_run = lean_apply(_LossWithGradient)


class _Overwrite(torch.autograd.Function):
    """Tells autograd that x holds something else now: what saved it raises, and so does the gradient of later uses."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> Tensor:
        raise RuntimeError(
            "cross_entropy: the logits were used after inplace=True had overwritten them with their gradient, expected "
            "no later use. Leave inplace out, or use them before."
        )


# --- public ----------------------------------------------------------------------------------


def cross_entropy(
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
    inplace: bool = False,
    stats: bool = False,
) -> Tensor | tuple[Tensor, CrossEntropyStats]:
    """The cross entropy of softmax(logits) and target; cross_entropy_reference states the arithmetic.

    Computes in float32 and rounds the gradient once. Never waits for the device; the same bits every run.

    Args:
        logits: [..., V], float32, bfloat16 or float16; rows that lie at one stride, each dense, are read where they
            are, others copied.
        target: [...], int64. One that is neither a class nor ignore_index makes the loss NaN.
        weight: [V], float32, the weight of each class, or None for 1.
        token_weight: [...], float32, multiplies the whole loss of each token, or None for 1.
        ignore_index: the target of tokens that do not count; their logits are not read.
        reduction: "none", "sum", or "mean": the sum divided by that of weight[target] * token_weight over tokens that
            count, z-loss included; NaN where none counts.
        label_smoothing: share of the target spread over all classes, 0 to 1.
        z_loss: factor of the squared log-sum-exp added to the loss.
        softcap: logits are held softly within it (Gemma 2), or None.
        logit_scale: multiplies the logits before the cap (Cohere, Granite).
        num_items: what the sum is divided by, whatever tokens count here (HF's num_items_in_batch).
        inplace: the gradient overwrites the logits, which saves their memory: do not use them afterwards; autograd
            raises in most cases. An upstream gradient other than 1 then rounds it twice. Nothing is overwritten where
            logits need no gradient or are copied, or under torch.compile.
        stats: whether CrossEntropyStats are returned too.

    Returns:
        The loss, float32, [] or like target; with stats, also CrossEntropyStats, without gradients.

    Raises:
        ValueError: a shape, dtype, device or option does not fit; weight or token_weight requires a gradient; inplace
            with reduction "none", a leaf that requires one, or float16.
    """
    check_tensors("cross_entropy", logits, target, weight, token_weight)
    check_options("cross_entropy", reduction, label_smoothing, softcap, logit_scale, num_items)
    if inplace and reduction == "none":
        raise ValueError(
            "cross_entropy: inplace=True with reduction 'none', expected 'mean' or 'sum': forward cannot know the "
            "gradients of the losses. Leave inplace out, or pass token_weight and reduce here."
        )
    weight_V = None if weight is None else weight.contiguous()
    token_weight_N = None if token_weight is None else token_weight.reshape(-1).contiguous()
    constants = target.reshape(-1).contiguous(), weight_V, token_weight_N, _as_scalar(num_items, logits.device)
    mode = "sum" if num_items is not None else reduction
    cap = None if softcap is None else float(softcap)
    options = LossOptions(ignore_index, float(label_smoothing), float(z_loss), cap, float(logit_scale))
    loss, *measured = _dispatch(logits, constants, mode, stats, options, inplace)
    loss = loss.view(target.shape) if reduction == "none" else loss
    if not stats:
        return loss
    rows_RN, correct_N, *_ = measured
    _, _, _, lse, log_prob, entropy = (row_N.view(target.shape) for row_N in rows_RN.detach().unbind())
    return loss, CrossEntropyStats(log_prob, entropy, correct_N.view(target.shape), lse)


def _as_scalar(number: Tensor | int | float | None, device: torch.device) -> Tensor | None:
    """[] float32 on the device; a number that is already a tensor is not waited for."""
    if isinstance(number, Tensor):
        return number.detach().reshape(()).to(device, torch.float32, non_blocking=True)
    return None if number is None else torch.full((), number, dtype=torch.float32, device=device)


def _dispatch(
    logits: Tensor, constants: tuple[Tensor | None, ...], reduction: str, stats: bool, options: LossOptions,
    inplace: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    logits_NV = as_rows(logits)
    N, V = logits_NV.shape
    one_launch = logits.requires_grad and torch.is_grad_enabled() and reduction != "none" and not is_traced((logits,))
    inplace = inplace and one_launch
    row_stride, column_stride = logits_NV.stride()
    if (V > 1 and column_stride != 1) or (inplace and N > 1 and row_stride < V):  # in place, no two rows may overlap
        logits_NV = logits_NV.contiguous()
    outcome: tuple[Tensor, ...]
    if not one_launch:
        outcome = _loss(logits_NV, *constants, reduction, stats, *options)
        return outcome
    refuse_transforms("cross_entropy")
    overwrites = inplace and logits_NV.data_ptr() == logits.data_ptr()
    if overwrites:
        check_overwritable("cross_entropy", logits)
    outcome = _run(logits_NV, *constants, reduction, stats, options, inplace)
    if overwrites:
        _Overwrite.apply(logits)  # type: ignore[no-untyped-call]
    return outcome
