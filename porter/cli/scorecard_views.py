"""What porter zoo --explain prints: a row for each port, how often explain was right, and the same as JSON."""

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from porter.cli.progress import stage_progress
from porter.cli.zoo_views import shorten, versions
from porter.comparison.progress import Work
from porter.explanation.scorecard import (
    NEEDED,
    PAIRS,
    Given,
    Scorecard,
    Scored,
    chosen_mistakes,
    draw_pairs,
    score_explain,
)
from porter.explanation.zoo_file import Zoo
from porter.reports.wide import wide_console
from porter.reports.write import write_file
from porter.specs import builtin_spec_names

SCHEMA = "porter.zoo-explain/1"


def run_scorecard(zoo: Zoo, names: tuple[str, ...], json_path: str | None, given: Given) -> Scorecard:
    """Scores explain, and prints or writes what became of it. With rows named, those alone and their families."""
    rows = chosen_mistakes(zoo, names, given)
    pairs = len(draw_pairs(rows, PAIRS)) if not names else 0
    clean = sorted({row.family for row in rows.values()}) if names else builtin_spec_names()
    with stage_progress(quiet=json_path == "-") as progress:
        progress.plan([Work("port", len(rows) + pairs + len(clean))])
        card = Scorecard(tuple(score_explain(
            zoo, names, pairs=pairs, clean=clean, given=given, progress=lambda name: progress.done("port", name)
        )))  # fmt: skip
    if json_path == "-":
        click.echo(to_text(card), nl=False)
        return card
    print_scorecard(card)
    if json_path:
        write_file(Path(json_path), to_text(card).encode())
    return card


def print_scorecard(card: Scorecard) -> None:
    """The ports, and the shares with what is needed of each."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("row", "family", "the port has", "explain names", ""):
        table.add_column(name, overflow="fold")
    for each in card.scored:
        has = "\n".join(shorten(change) for fault in each.faults for change in fault)
        told = "\n".join(map(shorten, each.told)) or each.outcome
        table.add_row(*map(Text, (each.name, each.family, has or "nothing wrong", told)), _verdict(each))
    wide_console().print(table)
    _print_share("the right axis is named first", card.axis, NEEDED["axis"])
    _print_share("and has the right value", card.value, NEEDED["value"])
    if card.of(2):
        _print_share("both of a pair are named", card.pairs, NEEDED["pairs"])
    click.echo(f"{len(card.accused)} of {len(card.of(0))} clean ports are accused (needed: 0)")


def to_text(card: Scorecard) -> str:
    """The scorecard as JSON."""
    document = {
        "schema": SCHEMA, "versions": versions(), "ports": [_row(each) for each in card.scored],
        "score": {
            "axis": card.axis, "value": card.value, "pairs": card.pairs, "accused": len(card.accused),
            "clean": len(card.of(0)), "needed": NEEDED, "passed": card.passed,
        },
    }  # fmt: skip
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _row(each: Scored) -> dict[str, Any]:
    return {**vars(each), "right": each.right, "seconds": round(each.seconds, 1)}


def _verdict(each: Scored) -> Text:
    if not each.right:
        return Text("wrong" if each.told else "missed", "bold red")
    return Text("right", "green") if all(each.valued) else Text("right axis, other value", "yellow")


def _print_share(what: str, found: tuple[int, int], needed: float) -> None:
    click.echo(f"{what}: {found[0]} of {found[1]} (needed: {needed:.0%})")
