"""Tables in the terminal about the run itself: the axes it could have shown, and the faults it was tried with."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from porter.comparison.observed import Injected
from porter.comparison.report import DiffReport
from porter.reports.summary import NO_AXES, blind_first, format_ratio, worst_first
from porter.reports.terminal import COLOURS, QUIET

_OUTCOMES = {"missed": COLOURS["FAIL"], "unobservable": COLOURS["WARN"], "caught": ""}


def render_axes(report: DiffReport, console: Console) -> None:
    """Prints each axis with the value tried instead and where it showed; those that could not show come first."""
    table = _table("axis", "value → tried instead", "shows in, or why not")
    for axis in blind_first(report):
        seen = (f"{axis.seen} at {axis.node}", "") if axis.seen else ("not seen: ", COLOURS["WARN"])
        change = f"{axis.value} → {axis.tried}"
        table.add_row(Text(axis.path), Text(change), Text.assemble(seen, (axis.reason, QUIET)))
    console.print(table if report.axes else Text(NO_AXES, QUIET))
    console.print()


def render_self_check(report: DiffReport, console: Console) -> None:
    """Prints each known fault with what caught it, and where; what was not caught comes first."""
    table = _table("fault", "value → tried instead", "caught by, or why not")
    for each in worst_first(report):
        table.add_row(Text(each.path), Text(f"{each.value} → {each.tried}" if each.value else each.tried), _told(each))
    console.print(table)
    console.print()


def _told(fault: Injected) -> Text:
    if fault.outcome != "caught":
        return Text.assemble((f"{fault.outcome}: ", _OUTCOMES[fault.outcome]), (fault.reason, QUIET))
    rho = f", ρ {format_ratio(fault.rho)}" if fault.rho is not None else ""
    first = f"; moves {fault.expected} first" if fault.expected and fault.expected != fault.node else ""
    return Text.assemble(f"{fault.stage} at {fault.node}{rho}", (first, QUIET))


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=QUIET)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, overflow="fold")
    return table
