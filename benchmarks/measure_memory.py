"""The peak of training steps on a GPU beside porter memory's, as CSV, and as a table in Markdown.

A row is a model, a batch and a way to train: bf16, fused AdamW, the third step. Rows are written as they come, and a
second run goes on with the file. Pairs that differ in the loss alone say whether the fused one pays, and whether porter
memory says so too. Without a GPU, tiny models are trained on the CPU and the storages of torch's operations counted.

    python benchmarks/measure_memory.py --out benchmarks/results --commit $(git rev-parse --short=12 HEAD)
    python benchmarks/measure_memory.py --out /tmp/dry --tiny          # on a CPU
"""

import argparse
import csv
import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from porter.bench.environment import describe_environment
from porter.bench.files import write_whole
from porter.bench.footprint.plan import Plan
from porter.bench.footprint.worth import LEAST, judge_fused_loss
from porter.bench.training.peaks import Peak, Setting, measure_peak, predict_peak
from porter_kernels import use_interpreter_on_cpu

HF, PORTER, LOSS = {}, {"fused": True, "loss": "fused"}, {"loss": "fused"}
LEAN = {**PORTER, "loss": "fused-lean"}
PLAIN, OFFLOADED = {"checkpointing": "plain"}, {"checkpointing": "offloaded"}
SHAPES = (  # model, layers, batch, tokens, and the ways to train it
    ("llama-3-8b", 8, 2, 4096, (HF, LOSS, PORTER, LEAN, PLAIN, {**PORTER, **PLAIN})),
    ("llama-3-8b", 8, 16, 512, (HF, PORTER)),
    ("llama-3-8b", 8, 4, 4096, ({**PORTER, **PLAIN}, {**PORTER, **OFFLOADED})),
    ("llama-3-8b", 8, 8, 512, ({"attention": "eager"},)),
    ("gemma-7b", 8, 2, 4096, (HF, LOSS, PORTER)),
    ("gemma-7b", 8, 1, 8192, ({**PORTER, **PLAIN},)),
    ("qwen3-8b", 8, 2, 4096, (HF, PORTER)),
    ("qwen2.5-7b", 8, 4, 2048, (HF, LOSS, PORTER)),
    ("llama-2-7b", 8, 1, 128, (HF, LOSS)),
    ("llama-2-7b", 8, 2, 4096, (HF, PORTER)),
    ("gemma-3-270m", None, 4, 2048, (HF, PORTER)),
)
HEAD = ("setting", "predicted GB", "moment", "measured GB", "error %", "step ms")


def settings() -> list[Setting]:
    """All rows, in order."""
    return [
        Setting(model, layers, Plan(batch, tokens, **way))  # type: ignore[arg-type]
        for model, layers, batch, tokens, ways in SHAPES
        for way in ways
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--name", default="memory_steps", help="Of the files, without their ends.")
    parser.add_argument("--commit")
    parser.add_argument("--tiny", action="store_true", help="The families' tiny sizes, on the CPU.")
    options = parser.parse_args()
    use_interpreter_on_cpu()
    device = torch.device("cpu" if options.tiny else "cuda")
    path: Path = options.out / f"{options.name}.csv"
    rows = read_rows(path)
    environment = describe_environment((), options.commit)
    for setting in settings():
        setting = setting.tiny if options.tiny else setting
        if setting.name in {row[0] for row in rows}:
            continue
        rows.append(as_row(measure_or_say(setting, device), setting, device))
        print(", ".join(rows[-1]), flush=True)
        write_whole(path, "".join(to_lines([HEAD, *rows])))
        write_whole(path.with_suffix(".md"), to_markdown(rows, environment))
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def read_rows(path: Path) -> list[tuple[str, ...]]:
    """What an earlier run wrote."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [tuple(row) for row in csv.reader(file)][1:]


def measure_or_say(setting: Setting, device: torch.device) -> Peak | str:
    """The peak, or why there is none: out of memory is a result as well."""
    try:
        return measure_peak(setting, device)
    except torch.OutOfMemoryError:
        return "out of memory"


def as_row(found: Peak | str, setting: Setting, device: torch.device) -> tuple[str, ...]:
    predicted, at = predict_peak(setting, device)
    size = f"{predicted / 1e9:.4f}"
    if isinstance(found, str):
        return setting.name, size, at, found, "", ""
    return setting.name, size, at, f"{found.measured / 1e9:.4f}", f"{100 * found.error:+.2f}", f"{found.step_ms:.2f}"


def to_lines(rows: list[tuple[str, ...]]) -> Iterator[str]:
    for row in rows:
        yield ",".join(row) + "\n"


def to_markdown(rows: list[tuple[str, ...]], environment: dict[str, str]) -> str:
    """The table, how many rows are within 10 %, and what the pairs say of the fused loss."""
    errors = [abs(float(row[4])) for row in rows if row[4]]
    close = sum(error <= 10 for error in errors)
    where = ", ".join(f"{name} {environment[name]}" for name in ("gpu", "torch", "triton", "transformers", "commit"))
    table = ["| " + " | ".join(HEAD) + " |", "|---|---:|---|---:|---:|---:|"]
    table += ["| " + " | ".join(row) + " |" for row in rows]
    within = f"Within 10 %: {close} of {len(errors)} rows; the largest error is {max(errors, default=0):.1f} %."
    return "\n".join(["# Peak of a training step", "", where, "", *table, "", within, "", *pairs(rows), ""])


def pairs(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """For each model trained with HF's loss and with the fused one, all else alike: what that saved."""
    found = {row[0]: row for row in rows}
    yield "## Whether the fused linear cross-entropy pays: peak or step 2 % lower, neither as much higher"
    yield ""
    yield "| model | peak saved % | step saved % | pays | predicted peak % | time % | pays |"
    yield "|---|---:|---:|---|---:|---:|---|"
    for setting in settings():
        for each in (setting, setting.tiny):
            fused, naive = found.get(each.name), found.get(replace(each, plan=replace(each.plan, loss="naive")).name)
            if each.plan.loss != "fused" or each.plan.fused or not fused or not naive or not (fused[4] and naive[4]):
                continue
            peak, time = (1 - float(fused[i]) / float(naive[i]) for i in (3, 5))
            pays = max(peak, time) >= LEAST and min(peak, time) > -LEAST
            said = judge_fused_loss(each.shape.blueprint, replace(each.plan, loss="naive"))
            name, yes = naive[0].rsplit(" ", 4)[0], ("no", "yes")
            measured = (f"{100 * peak:.1f}", f"{100 * time:.1f}", yes[pays])
            predicted = (f"{100 * said.peak:.1f}", f"{100 * said.time:.1f}", yes[said.pays])
            yield f"| {' | '.join((name, *measured, *predicted))} |"


if __name__ == "__main__":
    main()
