"""How far a run is: what there is to do, told before it begins, and each unit when it is done."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Work:
    """A part of a stage, whose units take about as long as each other.

    Attributes:
        stage: with its dtype where it has one: semantics float32.
        units: how many there are.
        tokens: that each unit takes; units of one stage are weighed by them.
    """

    stage: str
    units: int
    tokens: int = 1


class Progress(Protocol):
    """Who wants to know."""

    def plan(self, work: Sequence[Work]) -> None:
        """All there is to do, in order; called once."""

    def done(self, stage: str, unit: str) -> None:
        """A unit of a stage is done."""


class Silent:
    """Tells nobody."""

    def plan(self, work: Sequence[Work]) -> None:
        pass

    def done(self, stage: str, unit: str) -> None:
        pass


class Estimate:
    """Share done and time left, from the units done so far.

    Each stage's own units are timed, so one that has not begun is not guessed.
    """

    def __init__(self, work: Sequence[Work], now_s: float) -> None:
        self._left: dict[str, list[int]] = {}  # stage -> tokens of each unit to come
        for part in work:
            self._left.setdefault(part.stage, []).extend([part.tokens] * part.units)
        self._total = sum(map(sum, self._left.values()))
        self._took: dict[str, list[tuple[int, float]]] = {}  # stage -> (tokens, seconds) of each unit done
        self._last_s = now_s

    def done(self, stage: str, now_s: float) -> None:
        """A unit of the stage is done; what was not planned counts for nothing."""
        units = self._left.get(stage)
        self._took.setdefault(stage, []).append((units.pop(0) if units else 0, now_s - self._last_s))
        self._last_s = now_s

    def finished(self, stage: str) -> bool:
        return not self._left.get(stage)

    def seconds(self, stage: str) -> float:
        """What the stage's units took so far."""
        return sum(took_s for _, took_s in self._took.get(stage, ()))

    @property
    def share(self) -> float:
        """Of all units, weighed by tokens: 0 to 1."""
        left = sum(map(sum, self._left.values()))
        return 1.0 - left / self._total if self._total else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds that the rest of the stages that were timed takes; None before any was."""
        known = [sum(self._left[stage]) * rate for stage, rate in self._rates()]
        return sum(known) if known else None

    @property
    def untimed(self) -> bool:
        """Whether there is a stage to come of which nothing is known."""
        timed = {stage for stage, _ in self._rates()}
        return any(units and stage not in timed for stage, units in self._left.items())

    def _rates(self) -> Iterator[tuple[str, float]]:
        """Seconds a token of each stage of which two units are done: the first alone is an embedding, or a loading."""
        for stage, took in self._took.items():
            tokens = sum(each for each, _ in took)
            if tokens and len(took) > 1:
                yield stage, self.seconds(stage) / tokens
