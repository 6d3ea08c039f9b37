"""Measures launches on this machine's GPU and writes the best of each width to porter_kernels/tuning.json.

    python benchmarks/tune_kernels.py [--op rms_norm.backward ...] [--out FILE] [--table FILE]

Time is device time: the second-level cache is flushed before each run, and launches are queued ahead of the clock. A
launch that is within 1 % of the fastest and has fewer warps and programs is preferred. Results are for bfloat16.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from triton.runtime.errors import OutOfResources

from porter_kernels.launch import TUNING, Config
from porter_kernels.layer_norm import op as layer_norm
from porter_kernels.plans import forget_plans
from porter_kernels.rms_norm import op as rms_norm

WIDTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
ELEMENTS = 2**26  # of one input: 134 MB, more than any second-level cache holds
RUNS = 15
FAILURES = (OutOfResources, RuntimeError)  # more registers or shared memory than there are; a compiler that gives up
Launch = Callable[[], object]


def norm_inputs(width: int, rows: int) -> tuple[torch.Tensor, ...]:
    x, dy = (torch.randn(rows, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    w = torch.randn(width, device="cuda", dtype=torch.bfloat16)
    mean, rstd = (torch.rand(rows, device="cuda") for _ in range(2))
    return x, dy, w, mean, rstd


def rms_norm_forward(width: int, rows: int) -> Launch:
    x, _, w, *_ = norm_inputs(width, rows)
    return lambda: rms_norm._launch_forward(x, None, w, 1e-6, 0)


def rms_norm_backward(width: int, rows: int) -> Launch:
    x, dy, w, _, rstd = norm_inputs(width, rows)
    return lambda: rms_norm._launch_backward(dy, None, x, w, rstd, 0, True)


def layer_norm_forward(width: int, rows: int) -> Launch:
    x, _, w, *_ = norm_inputs(width, rows)
    return lambda: layer_norm._launch_forward(x, w, w, 1e-6, 0, 1)


def layer_norm_backward(width: int, rows: int) -> Launch:
    x, dy, w, mean, rstd = norm_inputs(width, rows)
    stats = torch.stack((mean, rstd))
    return lambda: layer_norm._launch_backward(dy, x, w, stats, 0, 1, True, True)


OPS = {
    "rms_norm.forward": (rms_norm, rms_norm_forward),
    "rms_norm.backward": (rms_norm, rms_norm_backward),
    "layer_norm.forward": (layer_norm, layer_norm_forward),
    "layer_norm.backward": (layer_norm, layer_norm_backward),
}


def candidates(op: str, width: int) -> Iterator[Config]:
    """Launches worth a try: 4 to 64 elements a thread, and for backward the programs and stages that keep it fed."""
    backward = op.endswith("backward")
    for rows, warps in itertools.product((1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 16, 32)):
        if 4 <= rows * width // (32 * warps) <= 64:
            kinds = ((1, 0), (2, 0), (1, 1)) if backward and width >= 2048 else ((1, 0),)  # stages, reload
            for programs, (stages, reload) in itertools.product((1, 2, 4, 8) if backward else (1,), kinds):
                if programs * warps <= 64 and rows * width * stages <= 2**15:
                    yield Config(rows, warps, programs, stages, reload)


def with_config(op: str, config: Config, launch: Launch) -> object:
    module = OPS[op][0]
    shipped = module.tuned
    module.tuned = lambda name, *rest: config if name == op else shipped(name, *rest)
    forget_plans()
    try:
        return launch()
    finally:
        module.tuned = shipped
        forget_plans()


def compile_some(jobs: list[tuple[str, int, Config]]) -> None:
    """Fills triton's cache on disk; a launch that does not fit the GPU is left for the measurement to report."""
    for op, width, config in jobs:
        try:
            with_config(op, config, OPS[op][1](width, 64))
        except FAILURES:
            continue


def measure_ms(launch: Launch, flush: torch.Tensor) -> float:
    """Median device time of a run."""
    launch()
    starts, ends = ([torch.cuda.Event(enable_timing=True) for _ in range(RUNS)] for _ in range(2))
    torch.cuda._sleep(4_000_000)  # 2 ms: the host queues all runs meanwhile
    for start, end in zip(starts, ends, strict=True):
        flush.max()
        start.record()
        launch()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in zip(starts, ends, strict=True))


def choose(times: dict[Config, float]) -> Config:
    fastest = min(times.values())
    good = [config for config, time_ms in times.items() if time_ms <= 1.01 * fastest]
    return min(good, key=lambda c: (c.programs * c.warps, c.stages, times[c]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", action="append", choices=OPS, help="only these; all others keep their launches")
    parser.add_argument("--out", type=Path, default=TUNING)
    parser.add_argument("--table", type=Path, help="every measurement, as JSON")
    arguments = parser.parse_args()
    jobs = [(op, width, config) for op in arguments.op or OPS for width in WIDTHS for config in candidates(op, width)]
    workers = max((os.cpu_count() or 2) - 2, 1)
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(compile_some, [jobs[i :: 4 * workers] for i in range(4 * workers)], chunksize=1)
    flush = torch.empty(2**26, device="cuda")
    capability = "{}.{}".format(*torch.cuda.get_device_capability())
    shipped, table = json.loads(TUNING.read_text(encoding="utf-8")), []
    for (op, width), group in itertools.groupby(jobs, key=lambda job: job[:2]):
        launch, times = OPS[op][1](width, ELEMENTS // width if width < 2048 else max(8192, ELEMENTS // width)), {}
        for _, _, config in group:
            try:
                times[config] = with_config(op, config, lambda launch=launch: measure_ms(launch, flush))
            except FAILURES as error:  # not a candidate on this GPU
                table.append({"op": op, "width": width, **config._asdict(), "error": type(error).__name__})
        best = choose(times)
        shipped.setdefault(op, {}).setdefault(capability, {})[str(width)] = best._asdict()
        table += [{"op": op, "width": width, **config._asdict(), "time_ms": time} for config, time in times.items()]
        print(f"{op:20} {width:6} {times[best]:.4f} ms  {best}  fastest {min(times.values()):.4f}", flush=True)
    arguments.out.write_text(json.dumps(shipped, indent=1) + "\n", encoding="utf-8")
    if arguments.table:
        arguments.table.write_text(json.dumps(table), encoding="utf-8")


if __name__ == "__main__":
    main()
