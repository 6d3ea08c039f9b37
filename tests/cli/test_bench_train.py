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
    for arguments, wrong in (
        (["--grid", "banana"], "--grid 'banana'"),
        (["--case", "zzz"], "no case is left"),
        (["--model", "nosuch"], "nosuch"),
        (["--layers", "0"], "--layers"),
        (["--turns", "0"], "--turns"),
        (["--stop-after", "-5"], "--stop-after"),
    ):
        result = CliRunner().invoke(cli, ["bench", "train", "--list", *arguments])
        assert result.exit_code == 2
        assert wrong in result.output


def test_a_large_model_on_the_cpu_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["bench", "train", "--case", "llama-3-8b/8 16x512", "--out", str(tmp_path)])
    assert result.exit_code == 2 and "no GPU, and llama-3-8b/8 16x512 has 2,795,573,248 parameters" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_run_on_the_cpu(tmp_path: Path) -> None:
    arguments = ["--model", "gemma3", "--layers", "1", "--grid", "1x8", "--no-medusa", "--turns", "1", "--steps", "1"]
    out = ["--trainer", "hf", "--out", str(tmp_path)]
    result = CliRunner().invoke(cli, ["bench", "train", *arguments, *out])
    assert result.exit_code == 0, result.output
    assert "no GPU: these are times of a CPU" in result.stderr
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".csv", ".html"}
