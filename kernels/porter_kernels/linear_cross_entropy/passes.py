"""The walk over chunks of rows: logits, their gradient in place, and what that adds to the inputs' gradients.

A pass is made in forward, and once more in backward where gradients wait for the upstream gradient. It then computes
the log-sum-exp again too: beside logits that another product rounded otherwise, a kept one would not do. A sure
token's gradient is 1 - p, which one step of a bfloat16 logit turns into anything.

Axes    N rows, K of them kept, C rows of a chunk, H hidden features, V vocabulary.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from porter_kernels.cross_entropy.rows import Results, can_count, row_partials, run_combine, run_loss_and_gradient_
from porter_kernels.linear_cross_entropy.chunks import Chunks, choose_chunks, row_stride
from porter_kernels.linear_cross_entropy.gradients import Gradients, HeadGradient, Need, multiply, project
from porter_kernels.linear_cross_entropy.problem import Problem

WORTH_A_WAIT = 2**38  # multiplications of a product: three such take an H200 2.4 ms, a wait about 0.2
Place = slice | Tensor  # rows of a chunk: neighbours, or their indices
Rows = tuple[Tensor, ...]  # the loss of each; where statistics are asked for, the other fields of RowStats too


class Passed(NamedTuple):
    """What a pass leaves.

    Attributes:
        rows: of the problem.
        mean: [] float32, of their losses, where the pass came by it anyway.
        gradients: those that were needed.
    """

    rows: Rows
    mean: Tensor | None
    gradients: Gradients


class Pass(Protocol):
    """How a head is walked over."""

    def __call__(self, problem: Problem, need: Need, upstream: Tensor | None = None) -> Passed:
        """What a pass leaves: the rows, 0 where they do not count, and the needed gradients of their sum or mean.

        Args:
            problem: the rows and the head.
            need: the gradients to compute.
            upstream: the gradient of the loss, [], or [N] of losses that are not reduced; None for 1.
        """


def pass_over(problem: Problem, need: Need, upstream: Tensor | None = None) -> Passed:
    """The pass over the head of one process."""
    target_N, class_weight_V, V = problem.target_N, problem.class_weight_V, problem.weight_VH.shape[0]
    options, class_weight_sum, asked = problem.options, problem.class_weight_sum(), problem.stats
    factor_N, denominator = problem.factors(upstream), cache(problem.denominator)
    whole, mean = None, None
    can_be_counted = problem.is_mean and can_count(target_N, class_weight_V, problem.token_weight_N)

    def turn(logits_CV: Tensor, at: Place) -> None:
        nonlocal whole, mean
        target_C = take(target_N, at)
        if any(need):
            counted = can_be_counted and is_all(at, target_N)
            results = run_loss_and_gradient_(
                logits_CV, target_C, None if factor_N is None else take(factor_N, at), class_weight_V,
                class_weight_sum, options, logits_CV, None if counted else denominator(), asked, asked, counted,
            )  # fmt: skip
        else:
            partials = row_partials(logits_CV, target_C, class_weight_V, options, entropy=asked, argmax=asked)
            results = run_combine(partials, target_C, class_weight_V, class_weight_sum, options, V)
        whole, mean = write_rows(whole, rows_of(results, problem), at, problem), results.mean

    gradients = walk(problem, need, turn)
    return Passed(whole or empty_rows(problem), mean, gradients)


def walk(
    problem: Problem, need: Need, turn: Callable[[Tensor, Place], None], *, largest_slice: int | None = None
) -> Gradients:
    """Calls turn with the logits of each chunk and its place, and multiplies what it leaves there into the gradients.

    Args:
        problem: the rows and the head.
        need: the gradients to compute; without any, what turn leaves in the logits is not read.
        turn: replaces the logits, in place, by their gradient.
        largest_slice: None for a whole head. Where weight is a slice of one, the rows of the largest slice, so that
            all are walked over in equal chunks; d_hidden is then the part of this slice, in float32.
    """
    hidden_NH, weight_VH, V = problem.hidden_NH, problem.weight_VH, problem.weight_VH.shape[0]
    chunks, places = cut_rows(problem, need, largest_slice or V)
    head = HeadGradient(weight_VH, problem.bias_V, need, chunks.count, problem.accumulate)
    d_hidden_NH = None
    if need.hidden:  # rows that are left out stay 0
        allocate = torch.empty_like if places and isinstance(places[0], slice) else torch.zeros_like
        d_hidden_NH = allocate(hidden_NH, dtype=torch.float32 if largest_slice else hidden_NH.dtype)
    buffer_CS = hidden_NH.new_empty(chunks.rows if places else 0, row_stride(V, hidden_NH.element_size()))
    if not buffer_CS.is_cuda:
        buffer_CS[:, V:] = 0  # oneDNN's bfloat16 product reads past the end of a row of odd length: NaN times 0
    buffer_CV = buffer_CS if buffer_CS.shape[1] == V else buffer_CS[:, :V]
    logits_CV = buffer_CV
    for at in places:
        hidden_CH = take(hidden_NH, at)
        logits_CV = take(buffer_CV, slice(0, hidden_CH.shape[0]))
        project(hidden_CH, weight_VH, problem.bias_V, out=logits_CV)
        turn(logits_CV, at)
        if d_hidden_NH is not None:
            write_product(logits_CV, weight_VH, d_hidden_NH, at)
        head.add(logits_CV, hidden_CH)
    del logits_CV, buffer_CV, buffer_CS  # before a float32 sum is cast
    return Gradients(d_hidden_NH, *head.finish())


def cut_rows(problem: Problem, need: Need, num_classes: int) -> tuple[Chunks, list[Place]]:
    """How the rows that count are cut into chunks, and the place of each; num_classes as for kept_rows."""
    N, H = problem.hidden_NH.shape
    kept_K = kept_rows(problem, num_classes)
    K = N if kept_K is None else kept_K.shape[0]
    chunks = choose_chunks(
        K, H, num_classes, element_size=problem.hidden_NH.element_size(), accumulate=problem.accumulate,
        hidden_gradient=need.hidden, weight_gradient=need.weight, chunk_rows=problem.chunk_rows,
        byte_budget=problem.byte_budget,
    )  # fmt: skip
    slices = [slice(first, min(first + chunks.rows, K)) for first in range(0, K, chunks.rows)]
    return chunks, [at if kept_K is None else kept_K[at] for at in slices]


def kept_rows(problem: Problem, num_classes: int) -> Tensor | None:
    """Indices of the rows that count, or None for all. Finding them waits for the device.

    Unless told, does so where the wait is short beside the products, and no graph is being captured, which forbids it.
    num_classes is that of the largest slice of a vocabulary, so that all ranks leave out the same rows.
    """
    target_N, drop = problem.target_N, problem.drop_ignored
    if drop is None and target_N.is_cuda:
        size = problem.hidden_NH.numel() * num_classes
        drop = size >= WORTH_A_WAIT and not torch.cuda.is_current_stream_capturing()
    elif drop is None:
        drop = True
    if not drop:
        return None
    counts_N = target_N != problem.ignore_index
    if problem.token_weight_N is not None:
        counts_N &= problem.token_weight_N != 0
    kept_K = counts_N.nonzero().squeeze(1)
    return None if kept_K.shape[0] == target_N.shape[0] else kept_K


def is_all(at: Place, x_N: Tensor) -> bool:
    """Whether a place is all rows of a tensor."""
    return isinstance(at, slice) and at.stop - at.start == x_N.shape[0]


def take(x_N: Tensor, at: Place) -> Tensor:
    """x_N[at], which takes the host a while even where it is x_N."""
    return x_N if is_all(at, x_N) else x_N[at]


def write_product(a_CV: Tensor, b_VH: Tensor, out_NH: Tensor, at: Place) -> None:
    """Writes a @ b to some rows of out."""
    if isinstance(at, slice):
        multiply(a_CV, b_VH, take(out_NH, at))
    else:
        product_CH = out_NH.new_empty(a_CV.shape[0], out_NH.shape[1])
        multiply(a_CV, b_VH, product_CH)
        out_NH.index_copy_(0, at, product_CH)


def rows_of(results: Results, problem: Problem) -> Rows:
    return results.stats() if problem.stats else (results.rows_RN[0],)


def empty_rows(problem: Problem) -> Rows:
    """Zeros for every row."""
    x_NH, N = problem.hidden_NH, problem.hidden_NH.shape[0]
    if not problem.stats:
        return (x_NH.new_zeros(N, dtype=torch.float32),)
    return (*x_NH.new_zeros(4, N, dtype=torch.float32).unbind(), x_NH.new_zeros(N, dtype=torch.bool))


def write_rows(whole: Rows | None, part: Rows, at: Place, problem: Problem) -> Rows:
    """`whole`, or zeros where there is none yet, with `part` at a place."""
    if is_all(at, problem.target_N):
        return part
    whole = whole or empty_rows(problem)
    for whole_N, part_C in zip(whole, part, strict=True):
        whole_N[at] = part_C
    return whole
