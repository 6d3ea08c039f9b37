"""Patched against plain training, every family: 32 steps on real text, float32 and bfloat16, each side its own process.

    python benchmarks/convergence.py --device cuda --jobs 12 --out benchmarks/results/convergence_h200

Writes OUT.csv, a row a family, dtype and kind of quantity, and OUT.md, the summary; families that OUT.csv has are not
trained again. Exit 1 when a row fails, or when the planted mistake (--fault contiguity) is not caught in every family.
"""

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from porter.bench.convergence.judge import Row, as_row
from porter.bench.convergence.run import checkpoint_of, compare_trainings
from porter.bench.convergence.training import Course
from porter.bench.environment import describe_environment
from porter.errors import PorterError
from porter.specs.tree import builtin_spec_names

STATUSES = ("PASS", "WARN", "FAIL", "INCONCLUSIVE")
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

    rows, broken = read(given.out), {}
    left = [family for family in given.families if family not in {row["family"] for row in rows}]
    for family in left:
        checkpoint_of(family)  # one after another, before several read them
    where = describe_environment(["transformers"], given.commit)
    with ThreadPoolExecutor(given.jobs) as pool:
        for ended in as_completed([pool.submit(compare, family) for family in left]):
            family, found = ended.result()
            print(family, found if isinstance(found, str) else _verdicts(found, dtypes), flush=True)
            if isinstance(found, str):
                broken[family] = found
            else:
                rows += [as_row(row, where["commit"]) for row in found]
            write(given.out, rows, broken, course, where)
    failed = {row["family"] for row in rows if row["status"] == "FAIL"}
    if given.fault:
        return 0 if failed >= set(given.families) else 1
    return 1 if failed or broken else 0


def read(out: Path) -> list[dict[str, str]]:
    """The rows of an earlier run, whose families are not trained again."""
    path = out.with_suffix(".csv")
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def write(
    out: Path, rows: list[dict[str, str]], broken: Mapping[str, str], course: Course, where: Mapping[str, str]
) -> None:
    """The two files."""
    rows.sort(key=lambda row: row["family"])
    if rows:
        with out.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
    commits = ", ".join(sorted({row["commit"] for row in rows}))
    lines = [", ".join(f"{name} {where[name]}" for name in ("gpu", "torch", "triton", "transformers"))]
    lines += [f"commit {commits}; {course.steps} steps of {course.batch} x {course.length} bytes of text", ""]
    lines += ["| kind | dtype | models | PASS | WARN | FAIL | INCONCLUSIVE | ρ median | ρ max | of |"]
    lines += ["|---|---|" + "---:|" * 7 + "---|"]
    for what in KINDS:
        for dtype in dict.fromkeys(row["dtype"] for row in rows):
            mine = [row for row in rows if (row["what"], row["dtype"]) == (what, dtype)]
            counts = [sum(row["status"] == status for row in mine) for status in STATUSES]
            judged = sorted((row for row in mine if row["status"] != "INCONCLUSIVE"), key=lambda row: float(row["rho"]))
            median, most = judged[len(judged) // 2], judged[-1]
            lines.append(
                f"| {what} | {dtype} | {len(mine)} | {' | '.join(map(str, counts))} | {float(median['rho']):.2f} "
                f"| {float(most['rho']):.2f} | {most['family']} {most['where']} |"
            )
    lines += ["", *(f"- {family}: {why}" for family, why in broken.items())]
    lines += [
        f"- {row['family']} {row['dtype']} {row['what']} {row['where']}: {row['status']}, ρ {row['rho']} of "
        f"{row['e_plain']}"
        + (f", {row['flips']} choices of experts are other than golden's" if row["flips"] != "0" else "")
        for row in rows
        if row["status"] != "PASS"
    ]
    out.with_suffix(".md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _verdicts(rows: Sequence[Row], dtypes: Sequence[str]) -> str:
    """Of each dtype the kinds with their ratios."""
    return "; ".join(
        f"{dtype} " + " ".join(f"{row.what} {row.status} {row.rho:.2f}" for row in rows if row.dtype == dtype)
        for dtype in dtypes
    )


if __name__ == "__main__":
    sys.exit(main())
