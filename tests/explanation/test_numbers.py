"""Numbers fitted to what golden has."""

import math

import pytest
import torch
from torch import Tensor

from porter.explanation.numbers import fit_number, rounder_numbers

X = torch.linspace(0.1, 4.0, 200, dtype=torch.float64)


def wave(value: float) -> Tensor:
    return torch.sin(X * value) + 0.1 * X


@pytest.mark.parametrize("start", [2.9, 3.3, 6.1, 12.0])
def test_the_number_is_found_from_near_and_far(start: float) -> None:
    fitted = fit_number(start, lambda value: wave(value) - wave(3.137))
    assert fitted is not None and math.isclose(fitted, 3.137, rel_tol=1e-6)


def test_an_axis_that_is_not_the_cause_has_no_number() -> None:
    assert fit_number(3.0, lambda value: wave(3.0) - wave(3.0) * 1.5 + 0.001 * value) is None
    assert fit_number(3.0, lambda value: X) is None  # it does not act at the node
    assert fit_number(3.0, lambda value: None) is None


def test_round_numbers_come_first() -> None:
    assert list(rounder_numbers(10200.0003))[:4] == [10000.0, 10200.0, 10200.0003]
    assert list(rounder_numbers(0.164398987))[:3] == [0.2, 0.16, 0.164]


def test_a_node_that_hardly_feels_the_axis_leads_nowhere_far() -> None:
    seen: list[float] = []

    def error(value: float) -> Tensor:
        seen.append(value)
        return X + 1e-12 * value * X.flip(0)

    assert fit_number(3.0, error) is None
    assert all(math.isfinite(value) and value < 1e9 for value in seen)
