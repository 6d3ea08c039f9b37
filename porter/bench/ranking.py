"""What a benchmark means: who is fastest among those that are right, and where porter is worse than plain torch."""

from collections.abc import Iterator
from dataclasses import dataclass

from porter.bench.cases import Case
from porter.bench.providers.table import EAGER, OURS, PORTER
from porter.bench.results import BenchRun, Metric, Record

DEVICE_TIMES: dict[Metric, str] = {"forward_ms": "forward", "forward_backward_ms": "forward + backward"}
TIMES: dict[Metric, str] = DEVICE_TIMES | {"host_ms": "host"}
MEMORY_SLACK = 1.01  # a rounding of the allocator is no regression


@dataclass(frozen=True)
class Board:
    """All that is known of one case.

    Attributes:
        case: of the run.
        records: by provider and metric.
    """

    case: Case
    records: dict[tuple[str, Metric], Record]

    def value(self, provider: str, metric: Metric) -> float | None:
        record = self.records.get((provider, metric))
        return record.value if record else None

    def is_right(self, provider: str) -> bool:
        record = self.records.get((provider, "error"))
        return record is not None and record.status == "ok"

    def providers(self) -> list[str]:
        return list(dict.fromkeys(provider for provider, _ in self.records))

    def ranked(self, metric: Metric, *, peers_only: bool = False) -> list[Record]:
        """Records of a metric of those that are right, least first."""
        found = [
            record
            for (provider, each), record in self.records.items()
            if each == metric and record.value is not None and self.is_right(provider)
            if not (peers_only and provider in OURS)
        ]
        return sorted(found, key=lambda record: record.value or 0.0)

    def best_peer(self, metric: Metric) -> Record | None:
        return next(iter(self.ranked(metric, peers_only=True)), None)

    def out_of_rank(self) -> list[Record]:
        """Those that are wrong, or failed."""
        return [record for record in self.records.values() if record.status in ("wrong", "failed")]


def boards(run: BenchRun) -> list[Board]:
    """A board for each case that has records, in the order of the cases."""
    found: dict[str, Board] = {case.name: Board(case, {}) for case in run.cases}
    for record in run.records:
        found[record.case].records[record.provider, record.metric] = record
    return [board for board in found.values() if board.records]


def regressions(run: BenchRun) -> list[str]:
    """Where porter is wrong, takes the device longer than eager by more than both spreads or over 1 % more memory.

    The host is no part of it: torch runs its own ops from C++, and porter any of its from Python. It is told by
    longer_on_the_host.
    """
    return [line for board in boards(run) for line in _worse(board)]


def longer_on_the_host(run: BenchRun) -> list[str]:
    """Small cases that hold the host longer than eager does, by more than both spreads."""
    lines = (_slower(board, "host_ms", "host") for board in boards(run) if board.is_right(PORTER))
    return [line for line in lines if line]


def _worse(board: Board) -> Iterator[str]:
    verdict = board.records.get((PORTER, "error"))
    if verdict is not None and verdict.status in ("wrong", "failed"):
        yield f"{board.case.name}: porter {verdict.status}: {verdict.note}"
        return
    for metric, words in DEVICE_TIMES.items():
        if line := _slower(board, metric, words):
            yield line
    mine, theirs = (board.value(name, "peak_bytes") for name in (PORTER, EAGER))
    if mine is not None and theirs is not None and mine > MEMORY_SLACK * theirs:
        yield f"{board.case.name}: {mine / 1e6:,.1f} MB above the inputs, eager {theirs / 1e6:,.1f} MB"


def _slower(board: Board, metric: Metric, words: str) -> str:
    """What there is to say where porter takes longer than eager by more than both spreads, else nothing."""
    ours, eager = (board.records.get((name, metric)) for name in (PORTER, EAGER))
    if not (ours and eager and ours.value and eager.value and ours.low and eager.high and ours.low > eager.high):
        return ""
    ratio = ours.value / eager.value
    return f"{board.case.name}: {words} {ours.value:.4g} ms, eager {eager.value:.4g} ms ({ratio:.2f}x)"
