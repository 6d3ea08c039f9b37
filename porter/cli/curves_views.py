"""What porter curves prints: the combinations from the nearest to the farthest, and which is the reference."""

from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from porter.explanation.curves import Curves
from porter.reports.curves_html import HEAD, row, sentence
from porter.reports.curves_plot import heights
from porter.reports.wide import wide_console

_MOST = 16


def print_curves(curves: Curves, page: Path) -> None:
    """The nearest combinations, the sentence, and where the figure is."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in HEAD:
        table.add_column(name, justify="left" if name in (HEAD[0], HEAD[3]) else "right")
    ranked = heights(curves)
    for curve, _ in ranked[:_MOST]:
        style = "bold green" if curve.is_reference else ""
        table.add_row(*(Text(cell, style) for cell in row(curves, curve)))
    wide_console().print(table)
    if len(ranked) > _MOST:
        click.echo(f"and {len(ranked) - _MOST} more, on the page")
    click.echo(f"{sentence(curves)}.")
    click.echo(f"page: {page}")
