"""porter zoo on the command line: exit codes, table, JSON."""

import json
from pathlib import Path

import pytest

from porter.explanation.zoo_file import PATH
from tests.models.commands import porter, refused
from tests.models.tiny import porter_cache  # noqa: F401


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def planted(old: str, new: str) -> Path:
    """The zoo's file with one place changed."""
    text = PATH.read_text(encoding="utf-8")
    assert old in text
    Path("planted.yaml").write_text(text.replace(old, new, 1), encoding="utf-8")
    return Path("planted.yaml")


def test_rows_that_are_caught_exit_with_0() -> None:
    result = porter("zoo", "--row", "3", "--row", "8", "--row", "N3a", "--row", "101", "--json", "deep/zoo.json")
    assert result.exit_code == 0, result.output
    assert "2 of 2 mistakes caught" in result.stdout and "1 of 1 false alarms stay quiet" in result.stdout
    assert "1 rows outside: 1 experts" in result.stdout and "layers.0.mlp.act" in result.stdout
    document = json.loads(Path("deep/zoo.json").read_text(encoding="utf-8"))
    assert document["schema"] == "porter.zoo/1" and document["score"]["passed"] is True
    assert [row["row"] for row in document["rows"]] == ["3", "8", "101", "N3a"]
    assert [row["status"] for row in document["rows"]] == ["caught", "caught", "outside", "quiet"]
    assert document["rows"][0]["found"]["stage"] == "exact" and document["rows"][0]["set"] == [
        "embed.scale_rounding=none"
    ]


def test_a_wrong_expectation_exits_with_1() -> None:
    path = planted("stage: exact\n    node: embed.out", "stage: exact\n    node: layers.0.attn.norm")
    result = porter("zoo", "--file", path, "--row", "3")
    assert result.exit_code == 1, result.output
    assert "0 of 1 mistakes caught" in result.stdout and "row 3, elsewhere: " in result.stdout


def test_a_false_alarm_exits_with_1() -> None:
    path = planted("family: gemma2\n    set: [block.attn.scale_on=query]", "family: gemma2\n    set: [norm.offset=0]")
    result = porter("zoo", "--file", path, "--row", "N5", "--json", "-")
    assert result.exit_code == 1, result.output
    document = json.loads(result.stdout)
    assert document["rows"][0]["status"] == "false alarm" and document["score"]["passed"] is False


def test_a_row_outside_says_what_is_missing() -> None:
    result = porter("zoo", "--row", "113", "--row", "9")
    assert result.exit_code == 0 and "row 113, outside: decoding: positions wrong" in result.stdout


def test_refusals() -> None:
    refused(porter("zoo", "--row", "2"), 2, "--row 2: the zoo has no such row")
    refused(porter("zoo", "--file", "gone.yaml"), 2, "gone.yaml: No such file")
    refused(porter("zoo", "--file", planted("family: gemma\n", "family: gema\n"), "--row", "3"), 2, "planted.yaml:", "row 3: ", "did you mean gemma")  # fmt: skip  # noqa: E501
    refused(porter("zoo", "--row", "3", "--json", "."), 2, "it is a folder")
    assert list(Path().iterdir()) == [Path("planted.yaml")]
