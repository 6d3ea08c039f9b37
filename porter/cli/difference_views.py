"""What porter specs diff prints: the axes that differ, by parts of the model; and the same as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

import click

from porter.specs.difference import AxisDifference

SCHEMA = "porter.specs.diff/1"


def print_differences(one: str, other: str, found: Sequence[AxisDifference]) -> None:
    """The axes under the part of the model they belong to, each with what it means."""
    if not found:
        click.echo(f"{one} and {other} do not differ in any axis")
        return
    for group, rows in groupby(found, key=lambda row: row.group):
        click.secho(group, bold=True)
        for row in rows:
            click.echo(f"  {row.path}")
            click.echo(f"    {one}: {row.one}")
            click.echo(f"    {other}: {row.other}")
            if row.meaning:
                click.secho(f"    {row.meaning}", dim=True)
    click.echo(f"{len(found)} differ")


def to_text(one: str, other: str, found: Sequence[AxisDifference]) -> str:
    """The differences as JSON."""
    document = {"schema": SCHEMA, "one": one, "other": other, "axes": [asdict(row) for row in found]}
    return json.dumps(document, indent=1, ensure_ascii=False)
