"""porter patch: what would be replaced, the proof, and what it refuses."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from porter.cli.main import cli
from tests.models.tiny import porter_cache, save_tiny

__all__ = ["porter_cache"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_lists_what_would_be_replaced() -> None:
    result = CliRunner().invoke(
        cli, ["patch", "stablelm", "--size", "tiny", "--weights", "random:stress", "--without", "glu"]
    )
    assert result.exit_code == 0, result.output
    assert "rope: model.layers.*.self_attn (3)" in result.output and "glu" not in result.output
    assert "layer_norm left at" in result.output and "each of its heads has a module of its own" in result.output


def test_the_list_as_json(tmp_path: Path) -> None:
    given = ["patch", "stablelm", "--size", "tiny", "--weights", "random:stress", "--json"]
    printed, written = CliRunner().invoke(cli, [*given, "-"]), CliRunner().invoke(cli, [*given, "list.json"])
    assert printed.exit_code == written.exit_code == 0, printed.output + written.output
    found = json.loads(printed.stdout)
    assert found == json.loads((tmp_path / "list.json").read_text())
    assert {"path": "model.layers.0.self_attn", "op": "rope"} in found["replaced"]
    assert all(each["reason"] for each in found["left"]) and found["left"]
    assert "modules on porter's kernels" in written.stdout


def test_verify_writes_a_report_and_exits_by_its_verdict(tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path / "checkpoint")
    given = ["patch", str(folder), "--verify", "--dtype", "float32", "--device", "cpu", "--tokens", "64", "--json", "-"]
    result = CliRunner().invoke(cli, given)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["verdict"] == "PASS" and "grad:layers.0.mlp.gate.weight" in {node["name"] for node in report["nodes"]}
    assert report["run"]["port"]["what"] == "llama, HuggingFace's model on porter's kernels"
    assert [*tmp_path.glob("diff_reports/*/*/report.html")]


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        (
            ["patch", "gemma", "--size", "tiny", "--weights", "random", "--without", "rmsnorm"],
            2,
            "did you mean rms_norm?",
        ),
        (["patch", "nothing-known"], 2, "nothing-known"),
        (["patch", "gemma", "--size", "tiny", "--weights", "random", "--html", "a.html"], 2, "--html without --verify"),
        (["patch", "gemma", "--size", "tiny", "--weights", "random", "--layers", "0"], 2, "--layers without --verify"),
        (
            ["patch", "gemma", "--size", "tiny", "--weights", "random", "--verify", "--tokens", "1"],
            2,
            "a loss needs a next token",
        ),
        (["patch"], 2, "nothing was built in this folder yet"),
    ],
)
def test_what_it_cannot_follow_is_refused(given: list[str], code: int, message: str) -> None:
    result = CliRunner().invoke(cli, given)
    assert result.exit_code == code and message in result.output
