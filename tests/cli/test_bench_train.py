from pathlib import Path

from click.testing import CliRunner

from porter.bench.training.results import to_text
from porter.cli.main import cli
from tests.bench.training.fakes import synthetic_training


def test_cases_are_listed_without_running() -> None:
    result = CliRunner().invoke(
        cli, ["bench", "train", "--list", "--model", "gemma-7b", "--grid", "4x128", "--no-medusa"]
    )
    assert (result.exit_code, result.output) == (0, "gemma-7b/8 4x128\n")


def test_a_result_is_drawn_again(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_text(to_text(synthetic_training()))
    result = CliRunner().invoke(cli, ["bench", "report", str(path)])
    assert result.exit_code == 0
    assert "porter is ahead: 1.09 × liger" in result.output
    assert (tmp_path / "train.html").exists()


def test_refusals() -> None:
    for arguments, wrong in ((["--grid", "banana"], "--grid 'banana'"), (["--case", "zzz"], "no case is left")):
        result = CliRunner().invoke(cli, ["bench", "train", "--list", *arguments])
        assert result.exit_code == 2
        assert wrong in result.output


def test_a_run_on_the_cpu(tmp_path: Path) -> None:
    arguments = ["--model", "gemma3", "--layers", "1", "--grid", "1x8", "--no-medusa", "--turns", "1", "--steps", "1"]
    out = ["--trainer", "hf", "--out", str(tmp_path)]
    result = CliRunner().invoke(cli, ["bench", "train", *arguments, *out])
    assert result.exit_code == 0, result.output
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".csv", ".html"}
