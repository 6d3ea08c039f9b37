"""How long a forward and backward of a small norm holds the host, beside torch's own: nothing queued before it.

Run on a GPU: PYTHONPATH=kernels python benchmarks/measure_host.py OUT.json. Times in ms: median, 20th and 80th
percentile of 300, the candidates taking turns. Three rounds a shape: on a shared machine they differ by up to half.
"""

import gc
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch.autograd import grad
from torch.nn import functional as F

from porter_kernels.layer_norm import layer_norm
from porter_kernels.rms_norm import add_rms_norm, rms_norm, rms_norm_reference

SHAPES, ROUNDS, RUNS, IDLE_RUNS, EPS = ((64, 2048), (512, 4096)), 3, 300, 30, 1e-6


def candidates(N: int, D: int) -> dict[str, Callable[[], object]]:
    """Each runs forward and backward in bfloat16."""
    x, residual, dy, dtotal = (torch.randn(N, D, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    w, b = (torch.ones(D, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    for leaf in (x, residual):
        leaf.requires_grad_()
    return {
        "rms_norm": lambda: grad(rms_norm(x, w, EPS), (x, w), dy),
        "rms_norm, eager": lambda: grad(rms_norm_reference(x, w, EPS, math="cast_then_scale"), (x, w), dy),
        "rms_norm, torch": lambda: grad(F.rms_norm(x, (D,), w, EPS), (x, w), dy),
        "add_rms_norm": lambda: grad(add_rms_norm(x, residual, w, EPS), (x, residual, w), (dy, dtotal)),
        "layer_norm": lambda: grad(layer_norm(x, w, b, EPS), (x, w, b), dy),
        "layer_norm, eager": lambda: grad(F.layer_norm(x, (D,), w, b, EPS), (x, w, b), dy),
    }


def measure(runs: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Median, 20th and 80th percentile of each, in ms."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(IDLE_RUNS + RUNS):
        for name, run in runs.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            elapsed = time.perf_counter() - start
            if turn >= IDLE_RUNS:
                found[name].append(1e3 * elapsed)
    ranks = (RUNS // 2, RUNS // 5, 4 * RUNS // 5)
    return {name: [round(sorted(times)[rank], 4) for rank in ranks] for name, times in found.items()}


if __name__ == "__main__":
    gc.disable()
    found = {f"{N}x{D} round {turn}": measure(candidates(N, D)) for N, D in SHAPES for turn in range(ROUNDS)}
    found["on"] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}  # type: ignore[dict-item]
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
