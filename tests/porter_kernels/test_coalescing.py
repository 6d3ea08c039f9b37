"""Element-wise kernels read and write 16 bytes at a time, and compute the same whatever the strides. Without a GPU."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
Counts = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Counts:
    cache = str(tmp_path_factory.mktemp("triton"))
    environment = os.environ | {"PYTHONPATH": str(ROOT / "kernels"), "TRITON_CACHE_DIR": cache}
    environment.pop("TRITON_INTERPRET", None)
    script = Path(__file__).with_name("coalescing.py")
    result = subprocess.run(
        [sys.executable, "-W", "error", str(script)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert (result.returncode, result.stderr) == (0, "")
    return {line["kernel"]: line for line in map(json.loads, result.stdout.splitlines())}


def test_accesses_are_as_wide_as_the_hardware_has_them(counts: Counts) -> None:
    for label, line in counts.items():
        if label == "rope half, strided":
            continue
        # A pair of features is 4 of its 16 bytes, so a row of the tables is read 8 bytes at a time.
        widths = [8, 16] if label.startswith("rope interleaved") else [16]
        assert line["access bytes"] == widths, label


older = pytest.mark.skipif(
    tuple(map(int, version("triton").split(".")[:2])) < (3, 9), reason="Triton 3.6 lays strided tiles out otherwise"
)


@older
def test_tiles_stay_in_registers(counts: Counts) -> None:
    for label, line in counts.items():
        pairs = label.startswith("glu of pairs")  # their output has half their width: one exchange
        assert (line["through shared memory"] > 0) == pairs, label


@older
def test_a_rotation_is_the_same_arithmetic_for_every_stride(counts: Counts) -> None:
    """A product and a fused multiply-add for each of two features, and nothing that could be fused another way."""
    for label, line in counts.items():
        if label.startswith("rope"):
            assert line["added"] == 0 and line["fused"] == line["multiplied"], label
    assert counts["rope half, strided"]["fused"] == counts["rope half"]["fused"]
