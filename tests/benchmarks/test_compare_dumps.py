"""Dumps of two processes are judged as the live run is: the table is whole, and a row of it is made again."""

import csv
from pathlib import Path
from types import ModuleType

import pytest

from tests.models.commands import ROOT
from tests.models.tiny import porter_cache  # noqa: F401

TABLE = ROOT / "benchmarks" / "results" / "dumps_vs_live.csv"


@pytest.fixture
def compare_dumps(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import compare_dumps

    return compare_dumps


def test_the_table_has_every_case_and_all_are_alike(compare_dumps: ModuleType) -> None:
    with TABLE.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    cases = [(case.family, case.dtype, case.fault) for case in compare_dumps.CASES]
    assert [(row["family"], row["dtype"], row["fault"]) for row in rows] == cases
    assert sum(not row["fault"] for row in rows) == 10 and sum(bool(row["fault"]) for row in rows) == 20
    for row in rows:
        assert row["live"] == row["dump against HuggingFace"] == row["two dumps"]
        assert row["live"].startswith("FAIL " if row["fault"] else "no FAIL")


def test_rows_made_again(compare_dumps: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'kernels'}")
    cases = [case for case in compare_dumps.CASES if case.family == "llama" and case.fault in ("", "norm.eps=1e-4")]
    compare_dumps.write_in_processes(tmp_path, [case.name for case in cases])
    rows = [compare_dumps.judge(case, tmp_path) for case in cases]
    assert [row[-1] for row in rows] == ["yes", "yes"]
    assert [row[3] for row in rows] == ["no FAIL", "FAIL layers.0.attn.norm"]
