"""Every kernel compiles to PTX for two architectures, without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

COUNT_ROWS = ("rms_norm.kernels._backward_kernel", "layer_norm.kernels._backward_kernel")
ROOT = Path(__file__).resolve().parents[2]


def test_every_kernel_compiles(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "kernels"), "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    script = Path(__file__).with_name("compile_kernels.py")
    result = subprocess.run(
        [sys.executable, "-W", "error", str(script)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert not result.stderr, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert not [line["kernel"] for line in lines if line["architecture"] is None], "name variants in compile_kernels.py"
    assert len({line["kernel"] for line in lines}) >= 9
    for line in lines:
        assert line["entry"], line
        assert not line["float64"], f"{line['kernel']} computes in float64 somewhere"
        if line["kernel"] in COUNT_ROWS:
            rows, *few_rows = line["counters"]  # columns are summed beside few rows alone
            assert rows == "i64", f"{line['kernel']} counts rows in 32 bits, where the last step overflows"
            assert few_rows in ([], ["i32"])
