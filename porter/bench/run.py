"""A benchmark from its first case to its last, saved after each, and taken up again where it stopped."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import torch

from porter.bench.cases import Case, shrink
from porter.bench.clock import Clock
from porter.bench.device import Device
from porter.bench.environment import describe_environment, differences
from porter.bench.measure import DeviceLost, Loaded, measure_case
from porter.bench.providers.table import PROVIDERS, Provider
from porter.bench.results import BenchRun, Record
from porter.bench.roofline import find_floor, measure_rates
from porter.bench.worker import NOT_READY, describe

NO_GPU = (
    "No GPU here: device times, host times, memory and the roofline were not measured. What was checked is whether "
    "each provider is right, on shrunken shapes in float32, porter's kernels in Triton's interpreter."
)
DIED = "the process died here, twice"


@dataclass(frozen=True)
class Hooks:
    """What a run reports to: save gets the run after every change, say a line for people."""

    save: Callable[[BenchRun], None]
    say: Callable[[str], None]


def runnable(cases: Sequence[Case], device: Device | None) -> list[Case]:
    """The cases on a GPU; on a CPU, shapes that the interpreter gets through."""
    return shrink(cases) if device is None else list(cases)


def start_run(
    cases: Sequence[Case], *, commit: str | None = None, earlier: BenchRun | None = None
) -> tuple[BenchRun, list[str]]:
    """A run to begin with, and what of an earlier one keeps it from being taken up again.

    Args:
        cases: as they will be run.
        commit: to record where there is no git.
        earlier: to take up: its records count if GPU, versions, commit and sources are the same.
    """
    distributions = [provider.distribution for provider in PROVIDERS.values() if provider.distribution]
    environment = describe_environment(distributions, commit)
    notes = () if torch.cuda.is_available() else (NO_GPU,)
    fresh = BenchRun(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S+00:00}", environment, tuple(cases), notes=notes)
    if earlier is None:
        return fresh, []
    changed = differences(earlier.environment, environment)
    return (fresh, changed) if changed else (_taken_up(earlier, cases), [])


def _taken_up(earlier: BenchRun, cases: Sequence[Case]) -> BenchRun:
    """The earlier run with the cases added; a provider at which the process died twice has failed."""
    known = {case.name for case in earlier.cases}
    records, running = earlier.records, earlier.running
    if running is not None and running in earlier.died:
        records = (*records, Record(*running, "error", status="failed", note=DIED))
    died = earlier.died if running is None else (*earlier.died, running)
    added = tuple(case for case in cases if case.name not in known)
    return replace(earlier, cases=(*earlier.cases, *added), records=records, running=None, died=died)


def load_providers(providers: Sequence[Provider], device: Device | None) -> list[Loaded]:
    """Each with its ops, or with the reason why it has none here."""
    loaded = []
    for provider in providers:
        if provider.needs_gpu and device is None:
            loaded.append(Loaded(provider.name, provider.ops, missing=f"only on a GPU: {provider.needs_gpu}"))
            continue
        try:
            loaded.append(Loaded(provider.name, provider.ops, provider.load()))
        except Exception as error:  # a peer may raise anything while it is imported
            loaded.append(Loaded(provider.name, provider.ops, missing=describe(error)))
    return loaded


class Bench:
    """A run under way."""

    def __init__(self, run: BenchRun, providers: Sequence[Provider], clock: Clock | None, hooks: Hooks) -> None:
        """Loads the providers.

        Args:
            run: to go on with.
            providers: asked for.
            clock: None where there is no GPU.
            hooks: what to tell.
        """
        self.run, self.clock, self.hooks = run, clock, hooks
        self.loaded = load_providers(providers, clock.device if clock else None)
        self.slow: dict[tuple[str, str], str] = {}  # by provider and op: would not be ready in time again

    def measure(self, cases: Sequence[Case], stop_after_s: float = 0.0) -> int:
        """Measures the cases that have no records yet; how many were left when the time was up.

        Args:
            cases: of the run.
            stop_after_s: begin no case after that long; 0 for never.
        Raises: DeviceLost: a provider left the GPU unusable; what came before is saved.
        """
        begun = time.monotonic()
        self._measure_roofline()
        waiting = [case for case in cases if self._missing(case)]
        if len(waiting) < len(cases):
            self.hooks.say(f"{len(cases) - len(waiting)} of {len(cases)} cases are there already")
        for index, case in enumerate(waiting):
            if stop_after_s and time.monotonic() - begun > stop_after_s:
                return len(waiting) - index
            start = time.monotonic()
            self._measure_case(case)
            self.hooks.say(f"[{index + 1}/{len(waiting)}] {case.name}  {time.monotonic() - start:.1f} s")
        return 0

    def _measure_roofline(self) -> None:
        if self.clock is None:
            return
        if not self.run.rates:
            self._set(rates=tuple(measure_rates(self.clock)))
        self._set(floors=tuple(find_floor(case, self.run.rates) for case in self.run.cases))

    def _missing(self, case: Case) -> set[str]:
        """The providers that have the op and no record at the case."""
        there = {record.provider for record in self.run.records if record.case == case.name}
        return {provider.name for provider in self.loaded if case.op in provider.ops} - there

    def _measure_case(self, case: Case) -> None:
        """All providers that were asked for anew, times being compared within a session; not who kills the process."""
        before = [record for record in self.run.records if record.case == case.name]
        dead = {record.provider for record in before if record.status == "failed"}
        here = [each for each in self.loaded if case.op in each.ops and each.name not in dead]
        alive = [replace(each, missing=self.slow.get((each.name, case.op), each.missing)) for each in here]
        anew = {each.name for each in alive}
        kept = [record for record in self.run.records if record.case != case.name or record.provider not in anew]

        def mark(provider: str) -> None:
            self._set(records=tuple(kept), running=(case.name, provider))

        try:
            found = measure_case(case, alive, self.clock, mark)
        except DeviceLost as error:
            self._set(records=(*kept, error.record), running=None)
            raise
        except KeyboardInterrupt:
            self._set(running=None)
            raise
        self._set(records=(*kept, *found), running=None)
        slow = {(each.provider, case.op): f"{each.note} at {case.size}" for each in found if NOT_READY in each.note}
        self.slow.update(slow)
        if self.clock is not None:
            self.clock.device.free_bytes()

    def _set(self, **changes: object) -> None:
        self.run = replace(self.run, **changes)  # type: ignore[arg-type]
        self.hooks.save(self.run)
