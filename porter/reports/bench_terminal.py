"""A benchmark in the terminal: a table an op, then what is not ranked, then where porter is worse than plain torch."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from porter.bench.cases import SHORT
from porter.bench.ranking import DEVICE_TIMES, Board, boards, longer_on_the_host, regressions
from porter.bench.results import BenchRun, Metric, Record
from porter.reports.bench_rows import (
    Row,
    Tone,
    format_megabytes,
    format_ms,
    format_peer,
    format_ratio,
    ops,
    rows,
    tone,
    unranked,
)

QUIET, LEAST_WIDTH = "dim", 120
COLOURS: dict[Tone, str] = {"ahead": "green", "level": "", "behind": "red"}


def render_bench(run: BenchRun, console: Console) -> None:
    """Prints the run; the last lines name every row in which porter is worse than plain torch."""
    if not console.is_terminal:
        console.width = max(console.width, LEAST_WIDTH)
    facts = run.environment
    _line(console, (f"GPU {facts['gpu']}", "bold"), f"  torch {facts['torch']}, triton {facts['triton']}")
    _line(console, (f"commit {facts['commit']}, dirty: {facts['dirty']}, {run.created}", QUIET))
    for note in run.notes:
        _line(console, ("note ", "yellow"), note)
    for op in ops(run):
        console.print()
        _line(console, (op, "bold"))
        console.print(_table(run, op) if run.floors else _accuracy_table(run, op))
    console.print()
    for record in unranked(run):
        where = "" if record.status == "missing" else f" at {record.case}"
        _line(console, (f"{record.status} ", "yellow"), f"{record.provider}{where}: {record.note}")
    _print_regressions(run, console)


def _line(console: Console, *parts: str | tuple[str, str] | Text) -> None:
    console.print(Text.assemble(*parts), soft_wrap=True, highlight=False)


def _plain_table(first: str, others: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=QUIET)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True, min_width=min(len(name), 5))
    return table


def _table(run: BenchRun, op: str) -> Table:
    """Times of forward and backward, the share of the floor; ratios for both, for forward alone and for the host."""
    columns = ["ms", "floor", "best peer ms", "ratio", "fwd", "host", "MB", "best peer MB"]
    table = _plain_table("forward + backward", columns)
    for row in rows(run, op):
        time = format_ms(row.both_ms) or row.status
        table.add_row(
            row.label,
            Text(time, "" if row.status == "ok" else "red"),
            "" if row.share is None else f"{row.share:.0%}",
            format_peer(row.peer),
            *(_ratio(row, metric) for metric in ("forward_backward_ms", "forward_ms", "host_ms")),
            format_megabytes(row.peak_bytes),
            format_peer(row.peer_bytes),
        )
    return table


def _ratio(row: Row, metric: Metric) -> Text:
    ratio = row.ratios.get(metric)
    return Text("") if ratio is None else Text(format_ratio(ratio), COLOURS[tone(ratio)])


def _accuracy_table(run: BenchRun, op: str) -> Table:
    """Errors alone, where nothing could be timed."""
    group = [board for board in boards(run) if board.case.op == op]
    names = list(dict.fromkeys(name for board in group for name in board.providers() if _has_error(board, name)))
    table = _plain_table("worst relative error", names)
    for board in group:
        cells = (_error(board.records.get((name, "error"))) for name in names)
        table.add_row(f"{board.case.size} {SHORT[board.case.dtype]}", *cells)
    return table


def _has_error(board: Board, provider: str) -> bool:
    return board.value(provider, "error") is not None


def _error(record: Record | None) -> Text:
    if record is None or record.value is None:
        return Text(record.status if record else "", "red" if record and record.status == "failed" else QUIET)
    return Text(f"{record.value:.1e}", "red" if record.status == "wrong" else "")


def _print_regressions(run: BenchRun, console: Console) -> None:
    console.print()
    lines = regressions(run)
    if not lines:
        what = f"{', '.join(DEVICE_TIMES.values())}, memory" if run.floors else "correctness alone"
        _line(console, ("no row in which porter is worse than eager", "green"), (f" ({what})", QUIET))
    for line in lines:
        _line(console, ("regression  ", "red"), line)
    for line in longer_on_the_host(run):
        _line(console, ("longer on the host  ", "yellow"), line)
