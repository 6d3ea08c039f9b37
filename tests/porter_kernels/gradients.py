"""Runs an op, or its reference in float64, forward and backward: what every kernel test compares."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Op = Callable[..., Tensor | tuple[Tensor, ...]]


def run(op: Op, inputs: Sequence[Tensor], d_outputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of op, then the gradient of every input, given the gradients of the outputs."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    outputs = op(*leaves)
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    gradients = torch.autograd.grad(outputs, leaves, d_outputs)
    return [*(y.detach() for y in outputs), *gradients]


def run_in_float64(op: Op, inputs: Sequence[Tensor], d_outputs: Sequence[Tensor]) -> list[Tensor]:
    """The same from the same values, computed in float64."""
    return run(op, [x.double() for x in inputs], [dy.double() for dy in d_outputs])


def gradients_by_frozen(op: Op, inputs: Sequence[Tensor], frozen: Sequence[bool]) -> list[Tensor | None]:
    """Gradients of the sum of squares of op's outputs with some inputs frozen; None where frozen."""
    leaves = [x.detach().clone().requires_grad_(not still) for x, still in zip(inputs, frozen, strict=True)]
    outputs = op(*leaves)
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    sum(y.square().sum() for y in outputs).backward()
    return [leaf.grad for leaf in leaves]
