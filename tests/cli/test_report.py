"""porter report: written reports drawn again, without any model."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from porter.cli.main import cli
from porter.reports.json_report import to_text
from tests.reports import synthetic


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["report", *map(str, arguments)])


@pytest.fixture
def written(tmp_path: Path) -> list[Path]:
    places = []
    for name in ("passing", "failing"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "report.json").write_text(to_text(synthetic.ALL[name]()), encoding="utf-8")
        places.append(folder)
    return places


def test_it_writes_all_that_is_asked_for_and_exits_0(written: list[Path], tmp_path: Path) -> None:
    outputs = {flag: tmp_path / f"out{flag}" for flag in ("--html", "--junit", "--github-summary")}
    result = run(written[1], *(part for pair in outputs.items() for part in pair))
    assert result.exit_code == 0, result.output
    assert result.output.startswith("FAIL at ")
    starts = {"--html": "<!doctype html>", "--junit": "<?xml", "--github-summary": "### ❌ FAIL"}
    assert all(path.read_text(encoding="utf-8").startswith(starts[flag]) for flag, path in outputs.items())


def test_several_reports_are_one_page(written: list[Path], tmp_path: Path) -> None:
    result = run(written[0], written[1] / "report.json", "--html", tmp_path / "both.html")
    assert result.exit_code == 0 and len(result.output.splitlines()) == 2
    text = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert "2 reports: 1 PASS, 1 FAIL" in text and text.count("<iframe") == 0


def test_junit_of_several_is_refused(written: list[Path], tmp_path: Path) -> None:
    result = run(*written, "--junit", tmp_path / "junit.xml")
    assert result.exit_code == 2 and "--junit takes one REPORT" in result.output


def test_what_is_no_report_is_exit_3(tmp_path: Path) -> None:
    assert run(tmp_path / "none.json").exit_code == 3


def test_no_torch_is_imported(written: list[Path]) -> None:
    import subprocess

    code = ("import sys; from porter.cli.main import cli; cli(['report', sys.argv[1], '--html', sys.argv[2]], "
            "standalone_mode=False); assert 'torch' not in sys.modules, 'torch'")  # fmt: skip
    place = written[0].parent / "page.html"
    subprocess.run([sys.executable, "-c", code, str(written[0]), str(place)], check=True, capture_output=True)
