"""What porter specs axes prints: axes by families, caught or not, and why not; and the same as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from porter.comparison.axis_table import FamilyAxes
from porter.comparison.observability import NO_BIT

SCHEMA = "porter.specs.axes/1"
_MARKS = {"semantics": "fp32", "exact": "bits", None: "HIDDEN"}


def print_axes_table(rows: Sequence[FamilyAxes], *, every: bool) -> None:
    """A line an axis: the families it is caught in, by float32 or by bits, and those where it stays hidden."""
    by_axis: dict[str, dict[str | None, list[str]]] = {}
    reasons: list[str] = []
    for row in rows:
        for axis in row.axes:
            if every or axis.path in row.own:
                by_axis.setdefault(axis.path, {}).setdefault(axis.seen, []).append(row.family)
                if axis.seen is None:
                    reasons.append(f"{row.family} {axis.path} {axis.value} → {axis.tried}: {axis.reason}")
    for path, found in sorted(by_axis.items()):
        click.echo(path)
        for seen, mark in _MARKS.items():
            if names := list(dict.fromkeys(found.get(seen, []))):
                click.echo(f"  {mark:<7} {len(names):>3}  {', '.join(names)}")
    for text in reasons:
        click.echo(f"hidden: {text}")
    untried = {row.family: row.untried for row in rows if row.untried}
    for family, paths in untried.items():
        click.echo(f"no wrong value tried: {family} {', '.join(paths)}")
    own = [axis for row in rows for axis in row.axes if axis.path in row.own]
    caught = sum(axis.seen is not None for axis in own)
    click.echo(f"{len(rows)} families: {caught} of {len(own)} changes of their own axes caught")


def unexplained(rows: Sequence[FamilyAxes]) -> list[str]:
    """Own axes that stay hidden, and nobody knows why."""
    return [f"{row.family} {axis.path}" for row in rows for axis in row.missed if axis.reason == NO_BIT]


def to_text(rows: Sequence[FamilyAxes]) -> str:
    """The rows as JSON."""
    families = [
        {
            "family": row.family,
            "own": sorted(row.own),
            "untried": row.untried,
            "axes": [asdict(axis) for axis in row.axes],
        }
        for row in rows
    ]
    return json.dumps({"schema": SCHEMA, "families": families}, indent=1, ensure_ascii=False) + "\n"
