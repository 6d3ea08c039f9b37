"""A benchmark in the terminal: a table an op, then what is not ranked, then where porter is worse than plain torch."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from porter.bench.cases import SHORT
from porter.bench.providers.table import OURS, PORTER
from porter.bench.ranking import TIMES, Board, boards, regressions
from porter.bench.results import BenchRun, Floor, Metric, Record

QUIET, LEAST_WIDTH = "dim", 110
LEVEL = 0.03  # a ratio within 3 % of 1 is a tie


def render_bench(run: BenchRun, console: Console) -> None:
    """Prints the run; the last lines name every row in which porter is worse than plain torch."""
    if not console.is_terminal:
        console.width = max(console.width, LEAST_WIDTH)
    facts = run.environment
    _line(console, (f"{facts['gpu']}", "bold"), f"  torch {facts['torch']}, triton {facts['triton']}")
    _line(console, (f"commit {facts['commit']}, dirty: {facts['dirty']}, {run.created}", QUIET))
    for note in run.notes:
        _line(console, ("note ", "yellow"), note)
    measured = boards(run)
    floors = {floor.case: floor for floor in run.floors}
    for op in dict.fromkeys(board.case.op for board in measured):
        group = [board for board in measured if board.case.op == op]
        console.print()
        _line(console, (op, "bold"))
        console.print(_table(group, floors) if run.floors else _accuracy_table(group))
    _print_unranked(measured, console)
    _print_regressions(run, console)


def _line(console: Console, *parts: str | tuple[str, str] | Text) -> None:
    console.print(Text.assemble(*parts), soft_wrap=True, highlight=False)


def _table(group: list[Board], floors: dict[str, Floor]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=QUIET)
    table.add_column("case, forward + backward", no_wrap=True)
    for name in ("porter ms", "of floor", "best peer ms", "ratio", "forward", "host", "MB, porter", "best peer"):
        table.add_column(name, justify="right", no_wrap=True)
    for board in group:
        for provider in OURS:
            if (provider, "error") in board.records:
                _add_row(table, board, provider, floors.get(board.case.name))
    return table


def _add_row(table: Table, board: Board, provider: str, floor: Floor | None) -> None:
    label = f"{board.case.size} {SHORT[board.case.dtype]}" if provider == PORTER else f"  {provider}"
    verdict = board.records[provider, "error"]
    if verdict.status not in ("ok", "wrong"):
        table.add_row(label, Text(verdict.status, "red"), "", *_peer(board, "forward_backward_ms"))
        return
    both = board.value(provider, "forward_backward_ms")
    share = f"{floor.forward_backward_ms / both:.0%}" if floor and both else ""
    table.add_row(
        label,
        Text(_ms(both), "red" if verdict.status == "wrong" else ""),
        share,
        *_peer(board, "forward_backward_ms"),
        *(_ratio(board, provider, metric) for metric in ("forward_backward_ms", "forward_ms", "host_ms")),
        _megabytes(board.value(provider, "peak_bytes")),
        " ".join(_peer(board, "peak_bytes")),
    )


def _peer(board: Board, metric: Metric) -> list[str]:
    best = board.best_peer(metric)
    if best is None:
        return [""]
    return [f"{best.provider} {_megabytes(best.value) if metric == 'peak_bytes' else _ms(best.value)}"]


def _ratio(board: Board, provider: str, metric: Metric) -> Text:
    """How many times faster than the best peer."""
    mine, best = board.value(provider, metric), board.best_peer(metric)
    if not mine or best is None or not best.value:
        return Text("")
    ratio = best.value / mine
    return Text(f"{ratio:.2f}x", "green" if ratio > 1 + LEVEL else "red" if ratio < 1 - LEVEL else "")


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}" if value < 1 else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _megabytes(value: float | None) -> str:
    return "" if value is None else f"{value / 1e6:,.1f}" if value < 1e7 else f"{value / 1e6:,.0f}"


def _accuracy_table(group: list[Board]) -> Table:
    """Errors alone, where nothing could be timed."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=QUIET)
    names = list(dict.fromkeys(name for board in group for name in board.providers()))
    names = [name for name in names if any(board.value(name, "error") is not None for board in group)]
    table.add_column("case, worst relative error", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for board in group:
        cells = (_error(board.records.get((name, "error"))) for name in names)
        table.add_row(f"{board.case.size} {SHORT[board.case.dtype]}", *cells)
    return table


def _error(record: Record | None) -> Text:
    if record is None or record.value is None:
        return Text(record.status if record else "", "red" if record and record.status == "failed" else QUIET)
    return Text(f"{record.value:.1e}", "red" if record.status == "wrong" else "")


def _print_unranked(measured: list[Board], console: Console) -> None:
    console.print()
    for board in measured:
        for record in board.out_of_rank():
            _line(console, (f"{record.status} ", "yellow"), f"{record.provider} at {board.case.name}: {record.note}")
    records = [record for board in measured for record in board.records.values()]
    missing = {record.provider: record.note for record in records if record.status == "missing"}
    for provider, note in missing.items():
        _line(console, ("missing ", QUIET), (f"{provider}: {note}", QUIET))


def _print_regressions(run: BenchRun, console: Console) -> None:
    console.print()
    lines = regressions(run)
    if not lines:
        what = ", ".join(TIMES.values()) if run.floors else "correctness alone"
        _line(console, ("no row in which porter is worse than eager", "green"), (f" ({what})", QUIET))
    for line in lines:
        _line(console, ("worse than eager  ", "red"), line)
