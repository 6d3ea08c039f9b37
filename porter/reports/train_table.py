"""Training benchmarks in the terminal, and the words that the page shares with it."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from porter.bench.training.cases import OURS
from porter.bench.training.results import TrainRow, TrainRun, best_own, best_peer, verdict

COLUMNS = ("trainer", "tokens/s", "20–80 %", "of best peer", "peak GB", "load s", "patch s", "first step s", "losses")


def render_training(run: TrainRun, console: Console) -> None:
    """A table for each case, with a sentence under it."""
    console.print(Text(f"GPU {run.environment['gpu']}, commit {run.environment['commit']}, {run.created}"))
    for case in run.cases:
        rows = run.rows_of(case.name)
        if not rows:
            continue
        console.print()
        console.print(Text(case.name, "bold"))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for column in COLUMNS:
            table.add_column(column, justify="left" if column in ("trainer", "losses") else "right")
        for row in rows:
            table.add_row(*cells(row, rows), style="bold" if row.trainer in OURS else "")
        console.print(table)
        console.print(Text(sentence(rows)), soft_wrap=True)


def cells(row: TrainRow, rows: list[TrainRow]) -> list[str]:
    """A row's texts, in the order of COLUMNS; its status and reason where it has no numbers."""
    losses = ", ".join(f"{loss:.4f}" for loss in row.losses)
    if row.status != "ok":
        losses = "; ".join(filter(None, (row.status, row.note if row.note != row.status else "", losses)))
    seconds = [_number(value, ".1f") for value in (row.load_s, row.patch_s, row.first_step_s)]
    peak = "" if row.peak_bytes is None else f"{row.peak_bytes / 1e9:.1f}"
    spread = "" if row.low is None or row.high is None else f"{row.low:,.0f}–{row.high:,.0f}"
    return [row.trainer, _number(row.tokens_per_s, ",.0f"), spread, _ratio(row, rows), peak, *seconds, losses]


def _number(value: float | None, how: str) -> str:
    return "" if value is None else format(value, how)


def _ratio(row: TrainRow, rows: list[TrainRow]) -> str:
    best = best_peer(rows)
    if best is None or not best.tokens_per_s or row.tokens_per_s is None or row.status != "ok":
        return ""
    return f"{row.tokens_per_s / best.tokens_per_s:.2f}×"


def sentence(rows: list[TrainRow]) -> str:
    """How porter stands beside the best peer, and who ran out of memory."""
    own, peer = best_own(rows), best_peer(rows)
    parts = []
    if own is not None and peer is not None and own.tokens_per_s and peer.tokens_per_s:
        ratio = own.tokens_per_s / peer.tokens_per_s
        parts.append(f"{own.trainer} is {verdict(own, peer)}: {ratio:.2f} × {peer.trainer}, the best peer")
    elif own is not None:
        parts.append(f"{own.trainer} runs, and no peer does")
    liger = next((row for row in rows if row.trainer == "liger"), None)
    if own is not None and own.peak_bytes and liger is not None and liger.peak_bytes:
        parts.append(f"peak {own.peak_bytes / 1e9:.1f} GB beside Liger's {liger.peak_bytes / 1e9:.1f}")
    out = [row.trainer for row in rows if row.status == "out of memory"]
    if out:
        parts.append(f"out of memory: {', '.join(out)}")
    return "; ".join(parts) or "nobody ran"
