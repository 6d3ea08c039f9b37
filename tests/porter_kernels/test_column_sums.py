"""column_sums against float64."""

import pytest
import torch

from porter_kernels import column_sums as module
from porter_kernels import launch, plans
from porter_kernels.accuracy import excess
from porter_kernels.column_sums import column_sums

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 100), (64, 5), (65, 1), (200, 33), (0, 4), (4, 0)], ids=str)
@pytest.mark.parametrize("interpreting", [True, False], ids="interpreting={}".format)  # it chooses the tile
def test_matches_float64(
    shape: tuple[int, int],
    dtype: torch.dtype,
    interpreting: bool,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "INTERPRETING", interpreting)
    x = torch.randn(shape, generator=generator).to(DEVICE)
    y = column_sums(x, dtype)
    assert (y.dtype, y.shape, y.device) == (dtype, shape[1:], x.device)
    if x.numel():
        assert excess(y, x.double().sum(0), shape[0], x.abs().max()) <= 1
    assert x.numel() or not y.any()


@pytest.mark.skipif(DEVICE == "cuda", reason="there it runs")
def test_checks_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (launch, plans):
        monkeypatch.setattr(each, "INTERPRETING", False)
    with pytest.raises(ValueError, match="column_sums: x is on cpu, expected a CUDA device"):
        column_sums(torch.ones(2, 2), torch.float32)
