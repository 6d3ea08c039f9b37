"""Whether a provider is right: how far it is from the truth, beside how far plain torch is.

Two errors of each output and gradient: of the worst element, relative to its own size and that of what was summed for
it, and of the tensor, ‖actual − truth‖₂ / ‖truth‖₂. Rounding is forgiven where eager rounds too: a provider is right
if both stay within WORST and L2 times eager's own, or times the rounding of one store, whichever is more, and all it
gave is finite. The worst element finds what a norm hides (a block not written, one class's gradient), the norm what
hides in rounding (a wrong factor): 5 % anywhere is found by one of the two, even where eager rounds logits to
bfloat16.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from porter.bench.truth import Truth

WORST, L2 = 8.0, 3.0


@dataclass(frozen=True)
class Error:
    """How far one tensor is off.

    Attributes:
        worst: of the worst element, relative.
        l2: of the tensor, relative.
        floor: what rounding its dtype and float32 sums cost, at most, in an element.
    """

    worst: float
    l2: float
    floor: float


def measure_errors(actual: Sequence[Tensor], truths: Sequence[Truth]) -> dict[str, Error]:
    """The error of each tensor by name; infinite where it has another shape, or is anywhere not finite."""
    return {truth.name: _measure(each.detach(), truth) for each, truth in zip(actual, truths, strict=True)}


def _measure(actual: Tensor, truth: Truth) -> Error:
    half_step, eps32 = torch.finfo(actual.dtype).eps / 2, torch.finfo(torch.float32).eps
    floor = half_step + 4 * eps32 * math.sqrt(truth.terms)
    part = truth.part(actual).double() if bool(actual.isfinite().all()) else None
    if part is None or part.shape != truth.value.shape:
        return Error(math.inf, math.inf, floor)
    difference = (part - truth.value).abs()
    size = truth.value.abs() + truth.scale
    worst = torch.where(difference > 0, difference / size, 0.0).max()
    norm = truth.value.norm()
    l2 = difference.norm() / norm if norm > 0 else difference.norm()
    return Error(float(worst), float(l2), floor)


def find_fault(errors: Mapping[str, Error], eager: Mapping[str, Error]) -> str:
    """What is wrong with a provider in a few words; empty if it is right.

    Args:
        eager: errors of plain torch on the same inputs; empty where it could not run.
    """
    for name, error in errors.items():
        base = eager.get(name, Error(0.0, 0.0, 0.0))
        base_worst, base_l2 = (value if math.isfinite(value) else 0.0 for value in (base.worst, base.l2))
        if not (math.isfinite(error.worst) and math.isfinite(error.l2)):
            return f"{name} is not finite"
        if error.worst > WORST * max(error.floor, base_worst):
            return f"{name} is off by {error.worst:.2g} at its worst element, eager by {base.worst:.2g}"
        if error.l2 > L2 * max(error.floor, base_l2):
            return f"{name} is off by {error.l2:.2g} as a whole, eager by {base.l2:.2g}"
    return ""


def worst_error(errors: Mapping[str, Error]) -> tuple[str, float]:
    """The tensor that is furthest off at one element, and how far."""
    return max(((name, error.worst) for name, error in errors.items()), key=lambda each: each[1])
