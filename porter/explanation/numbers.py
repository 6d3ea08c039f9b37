"""The value that a continuous axis must have, fitted to what golden has: a matched filter, followed to its floor.

With r(a) what a node has over golden where the axis is a, and v its change with log a, one step of least squares goes
from a to a·exp(−⟨r, v⟩/⟨v, v⟩): the matched filter. Followed until r is no longer v's doing, it gives the value to the
last digits that the node can tell.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

_GRID = [2.0**power for power in range(-6, 7)]  # starts, as factors of the value in force
_STEP = 1e-3  # of log a, for v: far above float32's rounding, far below where r bends
_LONGEST = 1.0  # of log a: a node that hardly feels the axis points anywhere
_MOST_STEPS = 12
_CLOSE = 1e-7  # of log a: float32 knows no closer
_EXPLAINS = 0.2  # of the error in force that may be left, or no value of the axis is the cause


def fit_number(value: float, error: Callable[[float], Tensor | None]) -> float | None:
    """The value with the least error.

    Args:
        value: in force.
        error: the node's difference from golden with a value, float64 [N]; None: it cannot be.

    Returns:
        None where no value takes most of the error away.
    """

    def size(at: float) -> float:
        found = error(at)
        return math.inf if found is None else _norm(found)

    sizes = {factor: size(value * factor) for factor in _GRID}
    at, best = value * min(sizes, key=lambda factor: sizes[factor]), min(sizes.values())
    for _ in range(_MOST_STEPS):
        here, beyond = error(at), error(at * math.exp(_STEP))
        if here is None or beyond is None:
            break
        slope = (beyond - here) / _STEP
        power = float(slope @ slope)
        if power == 0.0 or not math.isfinite(power):
            break
        step = max(-_LONGEST, min(_LONGEST, -float(here @ slope) / power))
        while abs(step) > _CLOSE and size(at * math.exp(step)) > best:  # too far for a straight line
            step /= 4
        if abs(step) <= _CLOSE:
            break
        at *= math.exp(step)
        best = size(at)
    return at if best < _EXPLAINS * sizes[1.0] else None


def rounder_numbers(fitted: float) -> Iterator[float]:
    """A fitted number, the roundest first: whoever wrote it down wrote few digits."""
    yield from dict.fromkeys(float(f"{fitted:.{digits}g}") for digits in range(1, 8))
    yield fitted


def _norm(error: Tensor) -> float:
    found = float(torch.linalg.vector_norm(error))
    return found if math.isfinite(found) else math.inf
