"""What porter zoo prints: a row for each bug, the score, and the outcomes as JSON."""

import json
from collections import Counter
from typing import Any

import click
import torch
import transformers
from rich.table import Table
from rich.text import Text

from porter import __version__
from porter.explanation.zoo import NEEDED, Outcome, Score, Status
from porter.explanation.zoo_file import Mistake, Outside
from porter.reports.wide import wide_console

SCHEMA = "porter.zoo/1"
_LONGEST = 66  # patterns.window.cases.sliding_attention.rope.theta==cfg.rope_theta is 66
_FEW = 10  # rows outside that are told one by one
_COLOURS: dict[Status, str] = {
    "caught": "green", "quiet": "green", "elsewhere": "bold red", "false alarm": "bold red", "unobservable": "yellow",
    "inconclusive": "magenta", "outside": "bright_black",
}  # fmt: skip


def print_outcomes(score: Score) -> None:
    """The rows that were run: what was changed, where it had to show, where it did."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("row", "family", "change", "expected", "found", "ρ", ""):
        table.add_column(name, justify="right" if name == "ρ" else "left", overflow="fold")
    for outcome in score.outcomes:
        if not isinstance(outcome.row, Outside):
            table.add_row(*_cells(outcome))
    if table.row_count:
        wide_console().print(table)


def print_score(score: Score) -> None:
    """How many mistakes were caught, how many false alarms stayed quiet, what is outside and why."""
    missed = [outcome for outcome in score.outcomes if outcome.status not in ("caught", "quiet", "outside")]
    for outcome in missed:
        detail = outcome.found.detail if outcome.found else ""
        click.echo(f"row {outcome.name}, {outcome.status}: {_told(outcome)} {detail}".rstrip())
    outside = [outcome for outcome in score.outcomes if outcome.status == "outside"]
    for outcome in outside if len(outside) <= _FEW else ():
        click.echo(f"row {outcome.name}, outside: {_told(outcome)}")
    stages = Counter(outcome.row.stage for outcome in score.outcomes if isinstance(outcome.row, Mistake))
    if stages:
        told = ", ".join(f"{count} by {stage}" for stage, count in stages.most_common())
        click.echo(f"{score.caught} of {score.mistakes} mistakes caught (needed: {NEEDED:.0%}); to be seen: {told}")
    quiet, alarms = score.count("quiet"), score.count("false alarm")
    if quiet or alarms:
        click.echo(f"{quiet} of {quiet + alarms} false alarms stay quiet")
    if outside:
        reasons = Counter(each.row.outside for each in outside if isinstance(each.row, Outside)).most_common()
        click.echo(f"{len(outside)} rows outside: {', '.join(f'{count} {reason}' for reason, count in reasons)}")


def to_text(score: Score) -> str:
    """The outcomes as JSON: rows in order, then the score."""
    counts = Counter(outcome.status for outcome in score.outcomes)
    document = {
        "schema": SCHEMA,
        "versions": versions(),
        "rows": [_row(outcome) for outcome in score.outcomes],
        "score": {
            "mistakes": score.mistakes, "caught": score.caught, "needed": NEEDED, "passed": score.passed,
            "counts": dict(counts), "seconds": round(sum(outcome.seconds for outcome in score.outcomes), 1),
        },
    }  # fmt: skip
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def versions() -> dict[str, str]:
    """Of what made the numbers."""
    return {"porter": __version__, "torch": torch.__version__, "transformers": transformers.__version__}


def _row(outcome: Outcome) -> dict[str, Any]:
    found = outcome.found
    return {
        "row": outcome.name,
        "kind": type(outcome.row).__name__,
        **outcome.row.model_dump(exclude_defaults=True),
        "status": outcome.status,
        "found": None if found is None else vars(found),
        "seconds": round(outcome.seconds, 2),
    }


def _cells(outcome: Outcome) -> list[Text]:
    row, found = outcome.row, outcome.found
    assert found is not None and not isinstance(row, Outside)
    changes = [shorten(change) for change in row.set] or ["none"]
    expected = f"{row.stage} {row.node}" if isinstance(row, Mistake) else "no FAIL"
    shown = f"{found.stage} {found.node}" if found.stage else found.verdict
    rho = "" if found.rho is None else f"{found.rho:.3g}"
    cells = [outcome.name, row.family, "\n".join(changes), expected, shown, rho]
    return [*map(Text, cells), Text(outcome.status, _COLOURS[outcome.status])]


def shorten(change: str) -> str:
    """A change on one line; scalings are longer, and whole in the JSON."""
    return change if len(change) <= _LONGEST else f"{change[: _LONGEST - 1]}…"


def _told(outcome: Outcome) -> str:
    row = outcome.row
    if isinstance(row, Mistake):
        return row.mistake
    return f"{row.outside}: {row.missing}" if isinstance(row, Outside) else row.claim
