"""benchmarks/measure_memory.py and measure_offload.py on tiny models: what a GPU will be asked, on a CPU."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.models.commands import ROOT


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import measure_memory
    import measure_offload

    return {"memory": measure_memory, "offload": measure_offload}


def test_there_are_enough_rows_and_each_can_be_predicted(scripts: dict[str, ModuleType]) -> None:
    memory = scripts["memory"]
    settings = memory.settings()
    assert len({setting.name for setting in settings}) == len(settings) >= 20
    assert len(list(memory.pairs([]))) == 4  # the head of the table alone
    assert {setting.plan.dtype for setting in settings} == {"bfloat16"}


def test_rows_are_written_once_and_judged(
    scripts: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = scripts["memory"]
    shapes = (("llama-3-8b", 8, 2, 4096, (memory.HF, memory.PLAIN)), ("qwen3-8b", 8, 2, 4096, (memory.HF,)))
    monkeypatch.setattr(memory, "SHAPES", shapes)
    monkeypatch.setattr(sys, "argv", ["measure_memory.py", "--tiny", "--out", str(tmp_path)])
    memory.main()
    rows = memory.read_rows(tmp_path / "memory_steps.csv")
    assert [row[0] for row in rows] == [setting.tiny.name for setting in memory.settings()]
    assert all(abs(float(row[4])) < 3 for row in rows)
    assert "Within 10 %: 3 of 3 rows" in (tmp_path / "memory_steps.md").read_text()
    monkeypatch.setattr(memory, "measure_peak", lambda *_: pytest.fail("measured again"))
    memory.main()


def test_pairs_say_what_the_fused_loss_saved(scripts: dict[str, ModuleType]) -> None:
    memory = scripts["memory"]
    naive = ("gemma-7b/8 2x4096 sdpa hf naive none", "67", "loss, backward", "67.0", "+0.1", "400")
    fused = ("gemma-7b/8 2x4096 sdpa hf fused none", "50", "loss", "50.0", "+0.1", "360")
    lines = [*memory.pairs([naive, fused])]
    assert lines[4].startswith("| gemma-7b/8 2x4096 | 25.4 | 10.0 | yes | ")
    assert lines[4].endswith(" | yes |")


def test_offloading_is_measured(
    scripts: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "offload.json"
    monkeypatch.setattr(sys, "argv", ["measure_offload.py", "--tiny", "--turns", "1", "--out", str(out)])
    scripts["offload"].main()
    document = json.loads(out.read_text())
    assert document["gradients"]["differing"] == {"plain again": [], "offloaded": []}
    assert document["gradients"]["parameters"] > 20
    assert set(document["steps"]) == {"plain", "offloaded", "save_on_cpu"}


def test_the_verdict_of_offloading(scripts: dict[str, ModuleType]) -> None:
    document = {
        "layer_inputs_bytes": 8 * 10**9,
        "memory": {"plain": {"kept": 20 * 10**9}, "offloaded": {"kept": 14 * 10**9}},
        "steps": {"plain": {"median": 100.0}, "offloaded": {"median": 102.0}},
        "gradients": {"parameters": 3, "differing": {"offloaded": ["a"], "plain again": []}},
        "profile": {"share": 0.9, "copy_ms": 30.0},
    }
    found = scripts["offload"].verdict(document)
    assert found["layer inputs on the device at the end of forward"].startswith("25.0% of plain's 8.000 GB")
    assert found["step"].startswith("+2.00% beside plain")
    assert found["gradients"].startswith("1 differ; plain beside itself bit-equal")
