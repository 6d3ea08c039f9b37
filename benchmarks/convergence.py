"""Patched against plain training, every family: 32 steps on real text, float32 and bfloat16, each side its own process.

    python benchmarks/convergence.py --device cuda --jobs 12 --out benchmarks/results/convergence_h200

Writes OUT.csv, a row a family, dtype and kind of quantity, and OUT.md, the summary. Exit 1 when a row fails, or when
the planted mistake (--fault contiguity) is not caught.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from porter.bench.convergence.judge import Row, as_row
from porter.bench.convergence.run import checkpoint_of, compare_trainings
from porter.bench.convergence.training import Course
from porter.bench.environment import describe_environment
from porter.errors import PorterError
from porter.specs.tree import builtin_spec_names

KINDS = ("losses", "log_probs", "layers", "gradients", "updates")


def main() -> int:
    """Runs and writes; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=[*builtin_spec_names()])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", action="append", dest="dtypes", choices=("float32", "bfloat16"))
    parser.add_argument("--steps", type=int, default=Course.steps)
    parser.add_argument("--batch", type=int, default=Course.batch)
    parser.add_argument("--length", type=int, default=Course.length)
    parser.add_argument("--jobs", type=int, default=1, help="families at once")
    parser.add_argument("--fault", help="a mistake to make in the patched side, which must fail")
    parser.add_argument("--commit", help="to record where there is no git")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    course, dtypes = Course(given.steps, given.batch, given.length), given.dtypes or ["float32", "bfloat16"]

    def compare(family: str) -> tuple[str, list[Row] | str]:
        try:
            return family, compare_trainings(family, dtypes, given.device, course, fault=given.fault)
        except PorterError as error:
            return family, error.wrong

    for family in given.families:
        checkpoint_of(family)  # one after another, before several read them
    with ThreadPoolExecutor(given.jobs) as pool:
        found = []
        for family, rows in pool.map(compare, given.families):
            print(family, rows if isinstance(rows, str) else _verdicts(rows, dtypes), flush=True)
            found.append((family, rows))
    rows = [row for _, each in found if not isinstance(each, str) for row in each]
    broken = [(family, why) for family, why in found if isinstance(why, str)]
    write(given.out, rows, broken, course, given.commit)
    failed = {row.family for row in rows if row.status == "FAIL"}
    if given.fault:
        return 0 if len(failed) == len(given.families) else 1
    return 1 if failed or broken else 0


def write(
    out: Path, rows: Sequence[Row], broken: Sequence[tuple[str, object]], course: Course, commit: str | None
) -> None:
    """The two files."""
    with out.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [*as_row(rows[0])], lineterminator="\n")
        table.writeheader()
        table.writerows(map(as_row, rows))
    where = describe_environment(["transformers"], commit)
    lines = [", ".join(f"{name} {where[name]}" for name in ("gpu", "torch", "triton", "transformers", "commit"))]
    lines += [f"{course.steps} steps of {course.batch} x {course.length} bytes of text", ""]
    lines += [
        "| kind | dtype | models | PASS | WARN | FAIL | INCONCLUSIVE | ρ median | ρ max | of |",
        "|---|---|" + "---:|" * 7 + "---|",
    ]
    for what in KINDS:
        for dtype in dict.fromkeys(row.dtype for row in rows):
            mine = sorted((row for row in rows if (row.what, row.dtype) == (what, dtype)), key=lambda row: row.rho)
            counts = [sum(row.status == status for row in mine) for status in ("PASS", "WARN", "FAIL", "INCONCLUSIVE")]
            numbers = " | ".join(map(str, counts))
            lines.append(
                f"| {what} | {dtype} | {len(mine)} | {numbers} | {mine[len(mine) // 2].rho:.2f} | {mine[-1].rho:.2f} "
                f"| {mine[-1].family} {mine[-1].where} |"
            )
    lines += ["", *(f"- {family}: {why}" for family, why in broken)]
    out.with_suffix(".md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _verdicts(rows: Sequence[Row], dtypes: Sequence[str]) -> str:
    """Of each dtype the kinds with their ratios."""
    return "; ".join(
        f"{dtype} " + " ".join(f"{row.what} {row.status} {row.rho:.2f}" for row in rows if row.dtype == dtype)
        for dtype in dtypes
    )


if __name__ == "__main__":
    sys.exit(main())
