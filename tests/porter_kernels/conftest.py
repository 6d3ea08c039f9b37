"""For the kernel tests: memory a kernel should have written holds NaN, and what it may not touch it cannot."""

import warnings
from collections.abc import Iterator

import pytest
import torch

from porter_kernels import launch
from porter_kernels.layer_norm import op as layer_norm_op
from porter_kernels.plans import forget_plans
from porter_kernels.rms_norm import op as rms_norm_op


@pytest.fixture(scope="session", autouse=True)
def cublas_has_its_context() -> None:
    if torch.cuda.is_available():  # the first product in autograd's own thread warns that there is none
        x = torch.ones(1, 1, device="cuda", requires_grad=True)
        with warnings.catch_warnings(action="ignore"):
            (x @ x).backward()


@pytest.fixture(autouse=True)
def nan_in_fresh_memory() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # with fill_uninitialized_memory, torch's default
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def nothing_is_planned() -> None:
    """A plan made before a test changed the size of tiles would be launched as it was."""
    forget_plans()


@pytest.fixture(autouse=True)
def addresses_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    if launch.INTERPRETING:
        from tests.porter_kernels.bounds import check_bounds

        check_bounds(monkeypatch)


@pytest.fixture(autouse=True)
def patched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    if launch.INTERPRETING:
        from tests.porter_kernels.interpreter_speed import patch_once_a_launch

        patch_once_a_launch(monkeypatch)


@pytest.fixture(params=[512, launch.TILE], ids="tile={}".format)
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Elements a program takes: so few that small inputs need several programs, and as launched."""
    monkeypatch.setattr(launch, "TILE", request.param)
    size: int = request.param
    return size


@pytest.fixture(params=[1024, 4], ids=["few rows", "many rows"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients of norms' weights from programs beside the rows' own, and from partial sums."""
    for module in (layer_norm_op, rms_norm_op):
        monkeypatch.setattr(module, "FEW_ROWS", request.param)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
