"""benchmarks/measure_floors.py on tiny families: it writes what was measured, all of it and once."""

import csv
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from porter.comparison.diff import diff
from tests.models.commands import ROOT
from tests.models.tiny import porter_cache, tiny  # noqa: F401


@pytest.fixture
def floors(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import measure_floors

    return measure_floors


@pytest.fixture
def tables(floors: ModuleType) -> ModuleType:
    return sys.modules["floor_tables"]


def measure(floors: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path, *options: str) -> list[dict[str, str]]:
    given = ["--device", "cpu", "--tokens", "40", "--out", str(out), *options]
    given = given if "--real" in options else [*given, "--real", "none"]
    monkeypatch.setattr(sys, "argv", ["measure_floors.py", *given])
    assert floors.main() == 0
    with out.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_rows_are_the_nodes_of_a_diff(
    floors: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--families", "mistral", "--ports", "executor,sdpa", "--dtypes", "float32,bfloat16")
    rows = measure(floors, monkeypatch, tmp_path / "o.csv", *options)
    nodes = {(node.dtype, node.name): node for node in diff(tiny("mistral", dtype="bfloat16", tokens=40)).nodes}
    executor = [row for row in rows if row["port"] == "executor" and row["dtype"] == "bfloat16"]
    assert {row["node"] for row in executor} == {name for dtype, name in nodes if dtype == "bfloat16"}
    for row in executor:
        node = nodes["bfloat16", row["node"]]
        assert node.local is not None and (row["status"], row["stage"]) == (node.status, "precision")
        for name in ("e_ref", "e_port", "rho", "rho_tok"):
            assert row[name] == f"{getattr(node.local, name):.4g}"
    for dtype, stage in (("float32", "semantics"), ("bfloat16", "precision")):
        sdpa = {row["node"]: row for row in rows if row["port"] == "sdpa" and row["dtype"] == dtype}
        assert {row["stage"] for row in sdpa.values()} == {stage}
        context = sdpa["layers.2.attn.ctx"]
        assert context["e_port"] != context["e_ref"] and float(context["rho"]) < 2, "sdpa itself ran, and is right"
        same = {row["node"]: row["e_ref"] for row in rows if row["port"] == "executor" and row["dtype"] == dtype}
        assert sdpa.keys() < same.keys() and all(row["e_ref"] == same[name] for name, row in sdpa.items())
    assert "| sdpa     | precision | bfloat16 |" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "o.json").read_text())["quantiles"]) == 4


def test_a_run_in_pieces_has_every_comparison_once(
    floors: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, options = tmp_path / "o.csv", ("--families", "gpt2", "--ports", "executor")
    assert measure(floors, monkeypatch, out, *options, "--seconds", "-1") == []
    assert "time is up, 3 comparisons left" in capsys.readouterr().err
    first = measure(floors, monkeypatch, out, *options, "--resume", "--dtypes", "float32")
    more = measure(floors, monkeypatch, out, *options, "--resume", "--dtypes", "float32,float16")
    assert more[: len(first)] == first and [row["dtype"] for row in more[len(first) :]] == ["float16"] * len(first)
    assert measure(floors, monkeypatch, out, *options, "--resume", "--dtypes", "float32,float16") == more


def test_what_is_not_there_is_said_and_skipped(
    floors: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone.gguf"
    options = ("--families", "gemma2", "--ports", "sdpa", "--dtypes", "float32", "--real", f"gemma-3-270m={gone}")
    assert measure(floors, monkeypatch, tmp_path / "o.csv", *options) == []
    said = capsys.readouterr().err
    assert f"skipped gemma-3-270m={gone}: " in said
    assert "skipped gemma2, sdpa, float32: Gemma2ForCausalLM has no sdpa" in said


def row(tables: ModuleType, rho: float, status: str = "PASS", node: str = "logits") -> object:
    what = ("fused", "llama", "demo", "precision", "bfloat16", node, "observable")
    return tables.Row(*what, 1e-3, 1e-3, rho, rho / 2, status, "cpu", "torch 2", "abc")


def test_quantiles_and_alarms_are_those_of_all_nodes(tables: ModuleType) -> None:
    rows = [row(tables, number / 100) for number in range(100, 0, -1)]
    rows += [row(tables, 2.0, "WARN", "layers.1.attn.q"), row(tables, 9.0, "FAIL", "layers.0.mlp.act")]
    found = tables.summarize([*rows, row(tables, 50.0, "INCONCLUSIVE")])
    assert found["nodes"] == 103 and found["alarms"] == {"FAIL": 1, "WARN": 1, "INCONCLUSIVE": 1}
    assert found["rho"] == {"median": 0.51, "90 %": 0.92, "99 %": 2.0, "max": 9.0, "at": "llama layers.0.mlp.act"}
    assert found["rho_tok"]["max"] == 4.5
    assert [each.rho for each in tables.worst_rows(rows)[:3]] == [9.0, 2.0, 1.0]
    assert "| llama layers.0.mlp.act |" in tables.to_markdown(rows)
