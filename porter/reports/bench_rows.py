"""The numbers of a benchmark as the terminal and the page show them: porter's rows, and how a number is written."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from porter.bench.cases import SHORT
from porter.bench.providers.table import OURS, PORTER
from porter.bench.ranking import Board, boards
from porter.bench.results import BenchRun, Floor, Metric, Record

LEVEL = 0.03  # ratios within 3 % of 1 are a tie
Tone = Literal["ahead", "level", "behind"]


@dataclass(frozen=True)
class Row:
    """One of porter's variants at one case.

    Attributes:
        label: the case's size and dtype; for another variant than porter, its name.
        status: of the variant: ok, wrong, failed, ...
        both_ms: forward and backward.
        share: of what the card allows, 1 being all.
        peer: the best correct peer, forward and backward.
        ratios: how many times faster than the best correct peer, by metric; above 1 is better.
        peak_bytes: above the inputs.
        peer_bytes: the record of the correct peer that takes least.
    """

    label: str
    status: str
    both_ms: float | None
    share: float | None
    peer: Record | None
    ratios: dict[Metric, float]
    peak_bytes: float | None
    peer_bytes: Record | None


def rows(run: BenchRun, op: str) -> Iterator[Row]:
    """porter's rows of an op, in the order of the cases."""
    floors = {floor.case: floor for floor in run.floors}
    for board in boards(run):
        if board.case.op == op:
            for provider in OURS:
                if (provider, "error") in board.records:
                    yield _row(board, provider, floors.get(board.case.name))


def _row(board: Board, provider: str, floor: Floor | None) -> Row:
    both = board.value(provider, "forward_backward_ms")
    label = f"{board.case.size} {SHORT[board.case.dtype]}" if provider == PORTER else f"{PORTS_INDENT}{provider}"
    metrics: tuple[Metric, ...] = ("forward_backward_ms", "forward_ms", "host_ms")
    return Row(
        label=label,
        status=board.records[provider, "error"].status,
        both_ms=both,
        share=floor.forward_backward_ms / both if floor and both else None,
        peer=board.best_peer("forward_backward_ms"),
        ratios=dict(_ratios(board, provider, metrics)),
        peak_bytes=board.value(provider, "peak_bytes"),
        peer_bytes=board.best_peer("peak_bytes"),
    )


PORTS_INDENT = "\u2003"  # an em space: a variant stands under its case


def _ratios(board: Board, provider: str, metrics: Iterable[Metric]) -> Iterator[tuple[Metric, float]]:
    for metric in metrics:
        mine, best = board.value(provider, metric), board.best_peer(metric)
        if mine and best is not None and best.value:
            yield metric, best.value / mine


def tone(ratio: float) -> Tone:
    return "ahead" if ratio > 1 + LEVEL else "behind" if ratio < 1 - LEVEL else "level"


def tally(run: BenchRun) -> dict[Tone, int]:
    """In how many cases porter's forward and backward is ahead of, level with and behind the best correct peer."""
    counts: dict[Tone, int] = {"ahead": 0, "level": 0, "behind": 0}
    for board in boards(run):
        for _, ratio in _ratios(board, PORTER, ("forward_backward_ms",)):
            counts[tone(ratio)] += 1
    return counts


def ops(run: BenchRun) -> list[str]:
    """Those that have records, in the order of the cases."""
    return list(dict.fromkeys(board.case.op for board in boards(run)))


def unranked(run: BenchRun) -> list[Record]:
    """Who is wrong or failed, and where; then who was missing, once each."""
    found = [record for board in boards(run) for record in board.out_of_rank()]
    missing = {record.provider: record for record in run.records if record.status == "missing"}
    return [*found, *missing.values()]


def format_ms(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if value < 1 else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def format_megabytes(value: float | None) -> str:
    return "" if value is None else f"{value / 1e6:,.1f}" if value < 1e7 else f"{value / 1e6:,.0f}"


def format_ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}×"


def format_peer(record: Record | None) -> str:
    """Who, and how much."""
    if record is None:
        return ""
    number = format_megabytes(record.value) if record.metric == "peak_bytes" else format_ms(record.value)
    return f"{record.provider} {number}"
