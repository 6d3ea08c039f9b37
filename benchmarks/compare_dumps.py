"""Dumps against live runs: two dumps of one model, written by two processes, must be judged as the live run is.

    python benchmarks/compare_dumps.py --out benchmarks/results/dumps_vs_live.csv

One process dumps the port of every case, with its fault, another HuggingFace; a third judges the pairs, and runs each
case live. OUT has a row a case: the first failing node of the live run, of the dump against HuggingFace, and of the
two dumps. Exit 1 when one differs.
"""

import argparse
import csv
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from porter.comparison.capture import capture
from porter.comparison.diff import diff
from porter.comparison.report import DiffReport
from porter.models.build import Build, plan_build

TOKENS = 160  # past the windows of the tiny sizes, 128
STAGES = {"float32": "semantics", "bfloat16": "precision"}
WINDOW = "patterns.window.cases.sliding_attention"
FAULTS = {
    "gemma": (("float32", "block.mlp.act=gelu"), ("bfloat16", "norm.offset=0")),
    "gemma2": (("float32", "block.attn.softcap=30"), ("bfloat16", "embed.scale=1.0")),
    "gemma3": (("float32", f"{WINDOW}.attn.window=127"), ("bfloat16", "block.mlp.act=silu")),
    "gpt2": (("float32", "block.mlp.act=gelu"), ("bfloat16", "block.attn.scale=0.5")),
    "gpt_neox": (("float32", "block.rope.theta=9000"), ("bfloat16", "block.topology=sequential")),
    "llama": (("float32", "norm.eps=1e-4"), ("bfloat16", "block.rope.style=interleaved")),
    "mistral": (("float32", "block.attn.window=127"), ("bfloat16", "block.mlp.act=gelu")),
    "phi3": (("float32", "weights.block.mlp.gate_up.order=[up, gate]"),
             ("bfloat16", "weights.block.attn.qkv.order=[q, v, k]")),
    "qwen2": (("float32", "block.attn.scale=0.18"), ("bfloat16", "block.rope.theta=500")),
    "qwen3": (("float32", "block.attn.qk_norm.when=after_rope"), ("bfloat16", "block.rope.theta=500")),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    family: str
    dtype: str
    fault: str  # empty: a clean port

    @property
    def name(self) -> str:
        return f"{self.family}-{self.dtype}-{re.sub(r'[^a-z0-9]+', '-', self.fault) or 'clean'}"

    def build(self, *, faulty: bool = True) -> Build:
        return plan_build(
            self.family, size="tiny", weights="random:stress", overrides=(self.fault,) if self.fault and faulty else (),
            dtype=self.dtype, ops="reference", device="cpu", prompt=None, tokens=TOKENS,
        )  # fmt: skip


CLEAN = tuple(Case(family, list(STAGES)[i % 2], "") for i, family in enumerate(FAULTS))
CASES = (*CLEAN, *(Case(family, *fault) for family, faults in FAULTS.items() for fault in faults))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE.csv")
    parser.add_argument("--write", choices=["port", "reference"], help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--case", action="append", metavar="NAME", help="only cases of these names")
    options = parser.parse_args()
    if options.write:
        write(options.write, options.into, options.case)
        return 0
    with tempfile.TemporaryDirectory() as place:
        write_in_processes(Path(place), options.case)
        rows = [judge(case, Path(place)) for case in CASES if not options.case or case.name in options.case]
    with options.out.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("family", "dtype", "fault", "live", "dump against HuggingFace", "two dumps", "alike"))
        table.writerows(rows)
    unlike = [row for row in rows if row[-1] != "yes"]
    print(f"{len(rows) - len(unlike)} of {len(rows)} cases alike; {len(CLEAN)} of them clean")
    for row in unlike:
        print(*row, sep=", ")
    return 1 if unlike else 0


def write_in_processes(place: Path, names: Sequence[str] | None = None) -> None:
    """The dumps of the ports by one process, those of HuggingFace by another."""
    chosen = [part for name in names or () for part in ("--case", name)]
    for side in ("port", "reference"):
        subprocess.run([sys.executable, __file__, "--write", side, "--into", str(place), *chosen], check=True)


def write(side: str, place: Path, names: Sequence[str] | None = None) -> None:
    """The dumps of every case, or of some: of HuggingFace, one of each family and dtype."""
    for case in (case for case in CASES if names is None or case.name in names):
        folder = place / (case.name if side == "port" else f"{case.family}-{case.dtype}")
        if not folder.exists():
            capture(case.build(faulty=side == "port"), out=folder, side=side)


def judge(case: Case, place: Path) -> tuple[str, ...]:
    """The row of one case."""
    port, reference = f"dump:{place / case.name}", f"dump:{place / f'{case.family}-{case.dtype}'}"
    build = case.build(faulty=False)
    found = [
        first(diff(case.build(), stages=[STAGES[case.dtype]])), first(diff(build, port=port)),
        first(diff(build, port=port, reference=reference)),
    ]  # fmt: skip
    print(case, *found, file=sys.stderr, flush=True)
    return case.family, case.dtype, case.fault, *found, "yes" if len(set(found)) == 1 else "no"


def first(report: DiffReport) -> str:
    """FAIL and where first; else that it does not fail."""
    return f"FAIL {report.first_fail.name}" if report.first_fail else "no FAIL"


if __name__ == "__main__":
    sys.exit(main())
