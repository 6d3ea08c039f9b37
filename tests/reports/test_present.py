"""A report is shown even where it cannot be written."""

import json
from pathlib import Path

import pytest

from porter.errors import UsageError
from porter.reports.present import present
from tests.full_disk import largest_file
from tests.reports import synthetic


@pytest.mark.parametrize("json_path", [None, "-", "also.json"])
def test_a_full_disk_loses_no_result(tmp_path: Path, monkeypatch, capsys, json_path: str | None) -> None:
    monkeypatch.chdir(tmp_path)
    report = synthetic.failing()
    with (
        largest_file(1_500_000),
        pytest.raises(UsageError, match=r"cannot be written to diff_reports/.*: File too large"),
    ):
        present(report, Path("diff_reports"), json_path=json_path, timings=False)
    shown = capsys.readouterr().out
    if json_path == "-":
        assert json.loads(shown)["verdict"] == "FAIL"
    else:
        assert shown.strip().splitlines()[-1] == report.sentence and "report: " not in shown
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_was_written_is_shown_with_its_place(tmp_path: Path, capsys) -> None:
    folder = present(synthetic.passing(), tmp_path, json_path=None, timings=False)
    assert f"report: {folder / 'report.html'}" in capsys.readouterr().out and (folder / "report.json").is_file()
