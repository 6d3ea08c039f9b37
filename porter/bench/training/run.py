"""Training benchmarks from the first case to the last: checked, timed in turns, saved after each, taken up again."""

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import torch

from porter.bench.clock import no_garbage, summarize
from porter.bench.environment import describe_environment, differences
from porter.bench.training.cases import TrainCase
from porter.bench.training.clock import StepClock
from porter.bench.training.results import TrainRow, TrainRun, judge_losses
from porter.bench.training.steps import Stepper, Weights, several
from porter.bench.training.trainers import TRAINERS, Trainer
from porter.bench.worker import ProviderFailed, blamed, describe

CHECKED_STEPS = 3
DIED = "the process died here, twice"


@dataclass(frozen=True)
class Effort:
    """How long each trainer is looked at.

    Attributes:
        turns: that each has, taken in rotation.
        steps: of a turn that count; one more before them does not.
        setup_s: a trainer whose first steps take longer is left out.
        dtype: of weights and activations.
    """

    turns: int = 3
    steps: int = 4
    setup_s: float = 150.0
    dtype: torch.dtype = torch.bfloat16


def start_train_run(
    cases: Sequence[TrainCase], *, commit: str | None = None, earlier: TrainRun | None = None
) -> tuple[TrainRun, list[str]]:
    """A run to begin with, and what of an earlier one keeps it from being taken up again."""
    distributions = [trainer.distribution for trainer in TRAINERS.values() if trainer.distribution]
    environment = describe_environment(distributions, commit)
    fresh = TrainRun(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S+00:00}", environment, tuple(cases))
    if earlier is None:
        return fresh, []
    changed = differences(earlier.environment, environment)
    return (fresh, changed) if changed else (_taken_up(earlier, cases), [])


def _taken_up(earlier: TrainRun, cases: Sequence[TrainCase]) -> TrainRun:
    """The earlier run with the cases added; a trainer at which the process died twice has failed."""
    known = {case.name for case in earlier.cases}
    rows, running, died = earlier.rows, earlier.running, earlier.died
    if running is not None and running in died:
        rows = (*rows, TrainRow(*running, status="failed", note=DIED))
    elif running is not None:
        died = (*died, running)
    added = tuple(case for case in cases if case.name not in known)
    return replace(earlier, cases=(*earlier.cases, *added), rows=rows, running=None, died=died)


class TrainBench:
    """A run under way."""

    def __init__(
        self,
        run: TrainRun,
        trainers: Sequence[Trainer],
        clock: StepClock,
        *,
        save: Callable[[TrainRun], None],
        say: Callable[[str], None],
        effort: Effort | None = None,
    ) -> None:
        """Takes a run to go on with, who trains, and whom to tell."""
        self.run, self.trainers, self.clock = run, trainers, clock
        self.save, self.say, self.effort = save, say, effort or Effort()

    def measure(self, cases: Sequence[TrainCase], stop_after_s: float = 0.0) -> int:
        """Measures the cases that lack a row; how many were left when the time was up.

        Args:
            cases: of the run.
            stop_after_s: begin no case after that long; 0 for never.
        """
        begun = time.monotonic()
        waiting = [case for case in cases if self._missing(case)]
        for index, case in enumerate(waiting):
            if stop_after_s and time.monotonic() - begun > stop_after_s:
                return len(waiting) - index
            start = time.monotonic()
            rows = self._measure(case)
            self.say(f"[{index + 1}/{len(waiting)}] {case.name}  {time.monotonic() - start:.0f} s  {_line(rows)}")
        return 0

    def _missing(self, case: TrainCase) -> set[str]:
        return {trainer.name for trainer in self.trainers} - {row.trainer for row in self.run.rows_of(case.name)}

    def _measure(self, case: TrainCase) -> list[TrainRow]:
        """All trainers anew, times being compared within a run; not who kills the process."""
        dead = [row for row in self.run.rows_of(case.name) if row.note == DIED]
        kept = tuple(row for row in self.run.rows if row.case != case.name or row in dead)
        alive = [each for each in self.trainers if each.name not in {row.trainer for row in dead}]

        def mark(trainer: str) -> None:
            self._set(rows=kept, running=(case.name, trainer))

        try:
            rows = [*measure_train_case(case, alive, self.clock, self.effort, mark)]
        except KeyboardInterrupt:
            self._set(running=None)
            raise
        self._set(rows=(*kept, *rows), running=None)
        return rows

    def _set(self, **changes: object) -> None:
        self.run = replace(self.run, **changes)  # type: ignore[arg-type]
        self.save(self.run)


def _line(rows: Sequence[TrainRow]) -> str:
    return ", ".join(
        f"{row.trainer} {row.status if row.tokens_per_s is None else f'{row.tokens_per_s:,.0f} tok/s'}" for row in rows
    )


def measure_train_case(
    case: TrainCase, trainers: Sequence[Trainer], clock: StepClock, effort: Effort, mark: Callable[[str], None]
) -> Iterator[TrainRow]:
    """The row of each trainer: checked one by one, then timed in turns."""
    torch._dynamo.reset()  # else graphs of earlier cases count towards its limit, and keep their weights
    gc.collect()
    weights = Weights(case, clock.place, effort.dtype)
    rows: dict[str, TrainRow] = {}
    ready: dict[str, Stepper] = {}
    for trainer in trainers:
        mark(trainer.name)
        if trainer.compiles and clock.place.type == "cpu" and len(trainers) > 1:
            rows[trainer.name] = TrainRow(case.name, trainer.name, "missing", "only on a GPU: it compiles for minutes")
            continue
        try:
            with blamed(trainer.name, effort.setup_s, passing=(ImportError,)):
                ready[trainer.name], rows[trainer.name] = _set_up(case, trainer, weights, clock)
        except (ImportError, ProviderFailed) as error:
            rows[trainer.name] = _without_times(TrainRow(case.name, trainer.name), error)
        _clean(weights, clock)
    times, failures = _take_turns(ready, clock, effort, mark)
    rows |= {name: _without_times(rows[name], error) for name, error in failures.items()}
    rows |= {name: _with_times(rows[name], case, found) for name, found in times.items() if found}
    reference = next((row for row in rows.values() if row.status == "ok"), None)  # HF's own comes first
    for row in rows.values():
        fault = judge_losses(row, reference) if reference is not None and row.status == "ok" else ""
        yield replace(row, status="wrong", note=fault) if fault else row


def _set_up(case: TrainCase, trainer: Trainer, weights: Weights, clock: StepClock) -> tuple[Stepper, TrainRow]:
    """A trainer's model, its first losses, and the peak of a step that has the optimizer's states."""
    start = time.perf_counter()
    model = weights.fresh_model()
    weights.share_with(model)
    clock.clear()
    loaded = time.perf_counter()
    stepper = Stepper(trainer, model, weights)
    patched = time.perf_counter()
    found = []
    first_s = 0.0
    for loss, norm in stepper.first_steps(CHECKED_STEPS):
        found.append((loss, norm))
        first_s = first_s or time.perf_counter() - patched
    if not all(math.isfinite(loss) for loss, _ in found):
        raise ArithmeticError(f"losses {', '.join(f'{loss:.4g}' for loss, _ in found)}")
    gc.collect()
    peak = clock.peak_bytes(stepper.step)
    row = TrainRow(
        case.name, trainer.name, peak_bytes=peak, load_s=loaded - start, patch_s=patched - loaded,
        first_step_s=first_s, losses=tuple(loss for loss, _ in found), gradient_norm=found[0][1],
    )  # fmt: skip
    return stepper, row


def _without_times(row: TrainRow, error: Exception) -> TrainRow:
    """The row of a trainer that could not run."""
    if isinstance(error, ProviderFailed):
        out = error.reason == "out of memory"
        return replace(row, status="out of memory" if out else "failed", note=error.reason)
    return replace(row, status="missing", note=describe(error))


def _clean(weights: Weights, clock: StepClock) -> None:
    weights.optimizer.zero_grad(set_to_none=True)
    gc.collect()
    clock.clear()


def _take_turns(
    ready: dict[str, Stepper], clock: StepClock, effort: Effort, mark: Callable[[str], None]
) -> tuple[dict[str, list[float]], dict[str, ProviderFailed]]:
    """Milliseconds of everybody's steps; every turn begins with another, and who fails is left out of what follows."""
    times: dict[str, list[float]] = {name: [] for name in ready}
    failures: dict[str, ProviderFailed] = {}
    with no_garbage():
        for turn in range(effort.turns):
            for name in _rotated([*ready], turn):
                stepper = ready[name]
                mark(name)
                try:
                    with blamed(name):
                        times[name] += clock.time_ms(several(stepper.step, effort.steps + 1))[1:]
                except ProviderFailed as error:
                    failures[name] = error
                    del ready[name], times[name]
                    _clean(stepper.weights, clock)
    return times, failures


def _rotated(names: list[str], turn: int) -> list[str]:
    first = turn % len(names) if names else 0
    return [*names[first:], *names[:first]]


def _with_times(row: TrainRow, case: TrainCase, times: list[float]) -> TrainRow:
    timing = summarize([1e3 * case.batch * case.tokens / each for each in times])
    return replace(row, tokens_per_s=timing.median, low=timing.low, high=timing.high, steps=timing.runs)
