"""porter curves on the command line: exit codes, page, JSON."""

import json
from pathlib import Path

import pytest

from tests.models.commands import porter, refused
from tests.models.tiny import porter_cache  # noqa: F401

TINY = ("gemma", "--size", "tiny", "--weights", "random:stress", "--tokens", "20")


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_reference_is_among_the_combinations() -> None:
    changes = ("--change", "exact GELU: block.mlp.act=gelu", "--change", "norm.math=cast_then_scale")
    result = porter("curves", *TINY, *changes, "--json", "curves.json")
    assert result.exit_code == 0, result.output
    assert "exact GELU + norm.math=cast_then_scale" in result.stdout and "bit-equal" in result.stdout
    assert "One of 4 combinations is the reference, bit for bit after every layer: nothing changed." in result.stdout
    assert "page: diff_reports/gemma-tiny-curves.html" in result.stdout
    assert "exact GELU" in Path("diff_reports/gemma-tiny-curves.html").read_text(encoding="utf-8")
    assert json.loads(Path("curves.json").read_text(encoding="utf-8"))["schema"] == "porter.curves/1"


def test_no_combination_is_the_reference() -> None:
    result = porter("curves", *TINY, "--set", "norm.offset=0", "--change", "block.mlp.act=gelu", "--json", "-")
    assert result.exit_code == 1 and json.loads(result.stdout)["winners"] == []


def test_refusals() -> None:
    refused(porter("curves", *TINY, "--change", "gelu"), 2, "--change 'gelu' has no =")
    refused(porter("curves", *TINY, "--change", "block.mlp.act=gelu_tanh"), 2, "changes nothing")
    refused(porter("curves", *TINY, "--change", "block.mlp.acts=gelu"), 2, "no axis is called")
