"""excess passes what rounding explains, and nothing else."""

import pytest
import torch

from porter_kernels.accuracy import excess


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_correctly_rounded_result_fits_and_its_neighbour_does_not(dtype: torch.dtype) -> None:
    truth = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rounded = truth.to(dtype)
    assert excess(rounded, truth, terms=1, scale=0.0) <= 1
    off_by_two_steps = rounded * (1 + 2 * torch.finfo(dtype).eps)
    assert excess(off_by_two_steps, truth, terms=1, scale=0.0) > 1


def test_a_cancelled_sum_may_be_off_by_its_terms() -> None:
    actual, truth = torch.tensor([3e-5]), torch.tensor([0.0], dtype=torch.float64)
    assert excess(actual, truth, terms=100, scale=10.0) <= 1
    assert excess(actual, truth, terms=100, scale=1.0) > 1


def test_the_least_subnormal_is_within_a_store() -> None:
    assert excess(torch.tensor([0.0]), torch.tensor([1e-45], dtype=torch.float64), terms=1, scale=0.0) <= 1


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_number_that_is_none_never_fits(wrong: float) -> None:
    assert not excess(torch.tensor([1.0, wrong]), torch.ones(2, dtype=torch.float64), terms=1, scale=1e30) <= 1
