"""For the kernel tests: memory that a kernel should have written and did not holds NaN."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def nan_in_fresh_memory() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # with fill_uninitialized_memory, torch's default
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
