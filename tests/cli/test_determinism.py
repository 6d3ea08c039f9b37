"""Two processes, given the same, write the same report but for its times; hashes of str differ between the two."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.models.commands import ENVIRONMENT

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5]]


def report_of(folder: Path, ops: str, hash_seed: str) -> dict[str, Any]:
    """The JSON of a run in a process of its own; the first in a folder draws the weights, others find them."""
    command = [
        sys.executable, "-m", "porter", "diff", "qwen3", "--size", "tiny", "--set", "block.mlp.act=gelu",
        "--prompts", "two.jsonl", "--ops", ops, "--device", "cpu", "--json", "report.json",
    ]  # fmt: skip
    environment = ENVIRONMENT | {"PYTHONHASHSEED": hash_seed, "XDG_CACHE_HOME": str(folder / "cache")}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ran.returncode == 1, ran.stderr
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


@pytest.mark.parametrize("ops", ["reference", "triton"])
def test_two_processes_write_the_same_report_but_for_times(tmp_path: Path, ops: str) -> None:
    lines = "".join(json.dumps({"ids": ids}) + "\n" for ids in PROMPTS)
    (tmp_path / "two.jsonl").write_text(lines)
    first, second = (report_of(tmp_path, ops, seed) for seed in ("1", "2"))
    for report in (first, second):
        assert {stage["name"] for stage in report["stages"]} == {"exact", "semantics", "precision", "behaviour"}
        assert report["axes"] and "seed" not in report["run"]
        assert all(seconds >= 0 for seconds in report["timings"].values())
        report["timings"] = list(report["timings"])
        del report["run"]["created"]
    assert json.dumps(first) == json.dumps(second), "values, and the order of keys"
