"""Memory curves in the terminal, and the words that the page shares with it."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from porter.bench.curves import MemoryRun, Point


def render_memory(run: MemoryRun, console: Console) -> None:
    """A table for each head, then what the fused loss saves."""
    console.print(Text(f"GPU {run.environment['gpu']}, commit {run.environment['commit']}, {run.created}"))
    for head in heads(run):
        points = points_of(run, head)
        console.print()
        console.print(Text(f"{head[0]} features, {head[1]:,} classes: GB above the inputs, and ms", "bold"))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("tokens", justify="right")
        for method in methods_of(points):
            table.add_column(method, justify="right")
        for count in tokens_of(points):
            found = {point.method: point for point in points if point.tokens == count}
            table.add_row(str(count), *(_cell(found.get(method)) for method in methods_of(points)))
        console.print(table)
    console.print()
    console.print(Text(saving(run)), soft_wrap=True)


def _cell(point: Point | None) -> Text:
    if point is None:
        return Text("")
    if point.status != "ok":
        return Text(point.status, "red")
    return Text(f"{format_cell(point, 'peak')}, {format_cell(point, 'time')}")


def heads(run: MemoryRun) -> list[tuple[int, int]]:
    return list(dict.fromkeys((point.features, point.vocabulary) for point in run.points))


def points_of(run: MemoryRun, head: tuple[int, int]) -> list[Point]:
    return [point for point in run.points if (point.features, point.vocabulary) == head]


def methods_of(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(point.method for point in points))


def tokens_of(points: Sequence[Point]) -> list[int]:
    return sorted({point.tokens for point in points})


def format_cell(point: Point, what: str) -> str:
    """Peak memory in GB, or time in ms; nothing where there is no number."""
    if what == "peak":
        return "" if point.peak_bytes is None else f"{point.peak_bytes / 1e9:.2f}"
    return "" if point.time_ms is None else f"{point.time_ms:.1f}"


def saving(run: MemoryRun) -> str:
    """One sentence: the fused loss beside the naive one, at the most tokens at which both have a number."""
    parts = []
    for features, vocabulary in heads(run):
        points = {(point.method, point.tokens): point for point in points_of(run, (features, vocabulary))}
        for tokens in reversed(tokens_of(list(points.values()))):
            naive, fused = points.get(("naive", tokens)), points.get(("fused", tokens))
            if naive and fused and naive.peak_bytes and fused.peak_bytes:
                times = naive.peak_bytes / fused.peak_bytes
                parts.append(f"{times:.1f} times less at {tokens} tokens and {vocabulary:,} classes")
                break
    if not parts:
        return "No method has a number beside another's"
    return f"Memory above the inputs, the fused loss beside the naive one: {', '.join(parts)}"
