"""How logits are cut in the tests: so that small ones span several chunks, tiles and slots, or as launched."""

import pytest

from porter_kernels import launch
from porter_kernels.cross_entropy import rows, sums


@pytest.fixture(params=["small cuts", "as launched"])
def cuts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "small cuts":
        cut_small(monkeypatch)


@pytest.fixture
def small_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch)


def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 16 columns (capped: 8), tiles of 4 rows that a program does whole, sums over 8 rows at once."""
    monkeypatch.setattr(launch, "TILE", 64)
    for name in ("block_v", "block_v_wide", "block_v_capped"):
        monkeypatch.setitem(rows.TUNABLES, name, 8 if name == "block_v_capped" else 16)
    monkeypatch.setitem(rows.TUNABLES, "rows_per_multiprocessor", 0)
    monkeypatch.setitem(rows.TUNABLES, "few_chunks", 0)
    monkeypatch.setitem(rows.TUNABLES, "programs_per_multiprocessor", 1)
    monkeypatch.setattr(sums, "BLOCK", 8)
