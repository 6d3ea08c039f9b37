"""What a run found: a table, the survivors, and whether each has its reason in equivalent.json."""

import difflib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.mutants.find import Mutant
from tests.mutants.wiring import KINDS

Verdicts = dict[str, dict[str, Any]]
REASONS = Path("tests/mutants/equivalent.json")


def read_reasons(root: Path) -> dict[str, str]:
    """Why a mutant changes no result, by its id. The file lists, for each reason, mutants and their diffs."""
    path = root / REASONS
    groups = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {mutant: reason for reason, mutants in groups.items() for mutant in mutants}


def show_diff(mutant: Mutant) -> str:
    lines = (text.splitlines(keepends=True) for text in (mutant.original, mutant.text))
    return "".join(difflib.unified_diff(*lines, str(mutant.path), mutant.id, n=2))


def show_results(mutants: Sequence[Mutant], verdicts: Verdicts, reasons: dict[str, str]) -> str:
    """The table of ops and kinds, then every survivor without a reason."""
    lines = [f"{'op':28} {'kind':10} {'mutants':>8} {'killed':>8} {'timeout':>8} {'survived':>8} {'equivalent':>10}"]
    rows: dict[tuple[str, str], Counter[str]] = {}
    for m in mutants:
        verdict = verdicts[m.id]["verdict"]
        if verdict == "survived" and m.id in reasons:
            verdict = "equivalent"
        for kind in (m.kind, "all"):
            for op in (m.op, "all"):
                rows.setdefault((op, kind), Counter())[verdict] += 1
    for op in [*dict.fromkeys(m.op for m in mutants), "all"]:
        for kind in [*KINDS, "all"]:
            if (op, kind) in rows:
                row = rows[op, kind]
                counts = [row.total(), *(row[v] for v in ("killed", "timeout")), row["survived"], row["equivalent"]]
                lines.append(f"{op:28} {kind:10} " + " ".join(f"{n:8}" for n in counts[:-1]) + f" {counts[-1]:10}")
    seconds = sum(verdicts[m.id]["seconds"] for m in mutants)
    lines.append(f"{seconds / len(mutants):.2f} s a mutant")
    survivors = [m for m in mutants if verdicts[m.id]["verdict"] == "survived" and m.id not in reasons]
    return "\n".join([*lines, *(f"survived: {m.path}:{m.lines[0]} {m.id}\n  {m.diff}" for m in survivors)])


def check_reasons(
    everything: Sequence[Mutant], judged: Sequence[Mutant], verdicts: Verdicts, reasons: dict[str, str]
) -> list[str]:
    """What is wrong: survivors without a reason, reasons without a mutant, reasons for mutants that tests kill."""
    ids = {m.id for m in everything}
    problems = [f"equivalent.json: {i} is no mutant. Remove it." for i in reasons if i not in ids]
    for m in judged:
        survived = verdicts[m.id]["verdict"] == "survived"
        if survived and m.id not in reasons:
            problems.append(f"{m.id} survives. Write a test that kills it, or say in {REASONS} why it changes nothing.")
        if not survived and m.id in reasons:
            problems.append(f"equivalent.json: {m.id} is killed by {verdicts[m.id]['by']}. Remove it.")
    return problems
