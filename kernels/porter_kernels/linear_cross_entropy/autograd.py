"""The op as torch sees it: one node for what traces, one autograd function for what runs.

Gradients are computed either in forward, for an upstream gradient of 1, from the logits that are there anyway (three
products of the head's size in all), or in backward from logits computed again (four). Backward it is where an upstream
of 1 would be wrong or lossy: with one upstream gradient a row, and in float16, whose gradients of a mean vanish unless
the scale of the loss (torch.amp.GradScaler) is multiplied in before they are rounded.

Run eagerly, gradients computed in forward are handed out by the first backward, scaled in place, and forgotten; a
second backward computes them again, so that none is scaled twice and none alias. Traced, they are outputs of the op,
and backward makes scaled copies. Unless the upstream gradient is a power of two, scaling rounds once more.

Axes    N rows, H hidden features, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from porter_kernels.fused import is_traced, lean_apply, refuse_second_derivative, refuse_transforms
from porter_kernels.launch import check_launch
from porter_kernels.linear_cross_entropy.gradients import Gradients, Need
from porter_kernels.linear_cross_entropy.passes import Pass, pass_over
from porter_kernels.linear_cross_entropy.problem import Problem
from porter_kernels.linear_cross_entropy.scaling import scale_

Outputs = tuple[Tensor, ...]  # the loss; where asked for, of every row: log-sum-exp, log-probability, entropy, correct

NOTHING = Need(False, False, False)
NUM_DIFFERENTIATED, NUM_TENSORS, NUM_OUTPUTS = 3, 7, 5
ARGUMENTS = """
    Tensor hidden, Tensor weight, Tensor? bias, Tensor target, Tensor? class_weight, Tensor? token_weight,
    Tensor? num_items, str reduction, int ignore_index, float label_smoothing, float z_loss, float? softcap,
    float logit_scale, bool stats, int? chunk_rows, int? byte_budget, str accumulate, bool? drop_ignored,
    bool need_hidden, bool need_weight, bool need_bias
"""  # Problem's fields and Need's


def differentiable(problem: Problem) -> Outputs:
    """Outputs, of which the loss has the gradients that are needed."""
    if is_traced(problem.tensors):
        outputs: Outputs = _forward(*problem, *problem.need)
        return outputs[: NUM_OUTPUTS if problem.stats else 1]
    return run_eagerly(pass_over, problem)


def run_eagerly(make_pass: Pass, problem: Problem) -> Outputs:
    """The same from any pass, unseen by who traces."""
    refuse_transforms("linear_cross_entropy")
    need = problem.need
    if not any(need):
        return _run_forward(make_pass, problem, need)[0]
    outputs: Outputs = _run_differentiably(make_pass, problem, need, *problem[:NUM_DIFFERENTIATED])
    return outputs


def _is_late(problem: Problem) -> bool:
    """Whether gradients wait for backward."""
    return problem.reduction == "none" or problem.hidden_NH.dtype == torch.float16


def _run_forward(make_pass: Pass, problem: Problem, need: Need) -> tuple[Outputs, Gradients]:
    check_launch("linear_cross_entropy", problem.hidden_NH)
    (loss_N, *measured), mean, gradients = make_pass(problem, NOTHING if _is_late(problem) else need)
    return (problem.reduce(loss_N) if mean is None else mean, *measured), gradients


def _split(arguments: tuple[Any, ...]) -> tuple[Problem, Need]:
    return Problem(*arguments[:-3]), Need(*arguments[-3:])


# --- run eagerly -----------------------------------------------------------------------------


class EagerFunction(torch.autograd.Function):
    """Takes a pass, a problem, what it needs, and of its tensors those that have gradients; returns Outputs."""

    @staticmethod
    def forward(ctx: Any, make_pass: Pass, problem: Problem, need: Need, *differentiated: Tensor | None) -> Outputs:
        outputs, ctx.gradients = _run_forward(make_pass, problem, need)
        ctx.make_pass, ctx.need, ctx.is_late, ctx.rest = make_pass, need, _is_late(problem), problem[NUM_TENSORS:]
        ctx.save_for_backward(*problem.tensors)
        ctx.mark_non_differentiable(*outputs[1:])
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, upstream: Tensor | None, *_: None) -> Any:
        refuse_second_derivative("linear_cross_entropy")
        if upstream is None:
            return (None,) * len(ctx.needs_input_grad)
        gradients, ctx.gradients = ctx.gradients, None
        if ctx.is_late or gradients is None:
            problem = Problem(*ctx.saved_tensors, *ctx.rest)
            *_, gradients = ctx.make_pass(problem, ctx.need, upstream if ctx.is_late else None)
        if not ctx.is_late:
            scale_(gradients, upstream)
        return None, None, None, *gradients


_run_differentiably = lean_apply(EagerFunction)


# --- traced ----------------------------------------------------------------------------------


def _launch_forward(*arguments: Any) -> Outputs:
    """Outputs, empty where nobody asked, then Gradients, empty where there are none."""
    problem, need = _split(arguments)
    (loss, *measured), gradients = _run_forward(pass_over, problem, need)
    if measured:
        measured = [x_N.clone() for x_N in measured]  # an op may not return two views of one memory
    else:
        empty = loss.new_empty(0)
        measured = [*(torch.empty_like(empty) for _ in range(3)), torch.empty_like(empty, dtype=torch.bool)]
    return loss, *measured, *_filled(problem, gradients)


def _fake_forward(*arguments: Any) -> Outputs:
    problem, need = _split(arguments)
    x_NH, N = problem.hidden_NH, problem.hidden_NH.shape[0]
    asked = N if problem.stats else 0
    loss = x_NH.new_empty((N,) if problem.reduction == "none" else (), dtype=torch.float32)
    lse_N, log_prob_N, entropy_N = (x_NH.new_empty(asked, dtype=torch.float32) for _ in range(3))
    correct_N = x_NH.new_empty(asked, dtype=torch.bool)
    gradients = _empty(problem, NOTHING if _is_late(problem) else need)
    return loss, lse_N, log_prob_N, entropy_N, correct_N, *_filled(problem, gradients)


def _launch_backward(upstream: Tensor, *arguments: Any) -> Outputs:
    problem, need = _split(arguments)
    return _filled(problem, pass_over(problem, need, upstream).gradients)


def _fake_backward(upstream: Tensor, *arguments: Any) -> Outputs:
    problem, need = _split(arguments)
    return _filled(problem, _empty(problem, need))


def _empty(problem: Problem, need: Need) -> Gradients:
    inputs = (problem.hidden_NH, problem.weight_VH, problem.bias_V)
    wanted = [torch.empty_like(x) if needed and x is not None else None for x, needed in zip(inputs, need, strict=True)]
    return Gradients(*wanted)


def _filled(problem: Problem, gradients: Gradients) -> Outputs:
    """An op returns tensors alone: an empty one where there is no gradient."""
    return tuple(problem.hidden_NH.new_empty(0) if x is None else x for x in gradients)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    ctx.set_materialize_grads(False)
    ctx.rest = inputs[NUM_TENSORS:]
    ctx.is_late = _is_late(Problem(*inputs[:-3]))
    ctx.save_for_backward(*(inputs[:NUM_TENSORS] if ctx.is_late else output[NUM_OUTPUTS:]))


def _differentiate(ctx: Any, upstream: Tensor | None, *_: None) -> Any:
    refuse_second_derivative("linear_cross_entropy")
    if upstream is None:
        return (None,) * len(ctx.needs_input_grad)
    if ctx.is_late:
        gradients = _backward(upstream, *ctx.saved_tensors, *ctx.rest)
    else:
        gradients = [(x.float() * upstream).to(x.dtype) for x in ctx.saved_tensors]
    needed = [x if need else None for x, need in zip(gradients, ctx.rest[-3:], strict=True)]
    return (*needed, *(None,) * len(ctx.rest), *(None,) * (NUM_TENSORS - NUM_DIFFERENTIATED))


_forward = torch.library.custom_op(
    "porter::linear_cross_entropy", _launch_forward, mutates_args=(),
    schema=f"({ARGUMENTS}) -> ({', '.join(['Tensor'] * 8)})",
)  # fmt: skip
_backward = torch.library.custom_op(
    "porter::linear_cross_entropy_backward", _launch_backward, mutates_args=(),
    schema=f"(Tensor upstream, {ARGUMENTS}) -> ({', '.join(['Tensor'] * 3)})",
)  # fmt: skip
_forward.register_fake(_fake_forward)
_forward.register_autograd(_differentiate, setup_context=_save)
_backward.register_fake(_fake_backward)
