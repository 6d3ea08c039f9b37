"""Device time and host time of several providers, taken in turn so that a drift of the card meets all of them.

A device time is that of one run between two events: the L2 is flushed by a read before it, and a waiting kernel keeps
the device busy until the host has queued the run, so that the host's own time does not count. What a provider
overwrites is restored after the run, outside the clock. A provider that waits for the device in the middle of a run
keeps that stall in its time.
"""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from porter.bench.device import Device, now_ms

MOST_RUNS = 100
HOST_RUNS = 200
Item = TypeVar("Item")


@dataclass(frozen=True)
class Job:
    """A provider at work: run it; then put back what it overwrote."""

    run: Callable[[], object]
    restore: Callable[[], None]


@dataclass(frozen=True)
class Timing:
    """Median, 20th and 80th percentile of so many runs, in milliseconds."""

    median: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class Clock:
    """Times jobs on a device.

    Attributes:
        window_ms: how long each is run in all, waits included,
        least_runs: but at least so often, and at most MOST_RUNS times.
    """

    device: Device
    window_ms: float = 100.0
    least_runs: int = 11

    def device_times(self, jobs: Mapping[str, Job]) -> dict[str, Timing]:
        """Device time of each, the jobs taking turns."""
        with no_garbage():
            plans = {name: self._plan(job) for name, job in jobs.items()}
            found: dict[str, list[float]] = {name: [] for name in jobs}
            for turn in range(max((runs for runs, _ in plans.values()), default=0)):
                pending = [
                    (name, self._timed(jobs[name], wait_ms))
                    for name, (runs, wait_ms) in _rotated(plans, turn)
                    if turn * runs // _longest(plans) != (turn + 1) * runs // _longest(plans)
                ]
                for name, elapsed_ms in pending:
                    found[name].append(elapsed_ms())
        return {name: summarize(times) for name, times in found.items()}

    def _plan(self, job: Job) -> tuple[int, float]:
        """How many runs fill the window, and how long the device must wait while the host queues one."""
        host_ms, device_ms = [], []
        for _ in range(3):
            self.device.synchronize()
            start = now_ms()
            elapsed_ms = self.device.between(job.run)
            host_ms.append(now_ms() - start)
            device_ms.append(elapsed_ms())
            job.restore()
        wait_ms = 2.0 * min(host_ms) + 0.1
        runs = int(self.window_ms / (min(device_ms) + wait_ms))
        return min(max(runs, self.least_runs), MOST_RUNS), min(wait_ms, 20.0)

    def _timed(self, job: Job, wait_ms: float) -> Callable[[], float]:
        self.device.wait_ms(wait_ms)
        self.device.flush()
        elapsed_ms = self.device.between(job.run)
        job.restore()
        return elapsed_ms

    def host_times(self, jobs: Mapping[str, Job], runs: int = HOST_RUNS) -> dict[str, Timing]:
        """How long each holds the host for one run, with nothing queued before it."""
        found: dict[str, list[float]] = {name: [] for name in jobs}
        with no_garbage():
            for turn in range(runs):
                for name, job in _rotated(jobs, turn):
                    self.device.synchronize()
                    start = now_ms()
                    job.run()
                    found[name].append(now_ms() - start)
                    job.restore()
        self.device.synchronize()
        return {name: summarize(times) for name, times in found.items()}


def _longest(plans: Mapping[str, tuple[int, float]]) -> int:
    return max(runs for runs, _ in plans.values())


def _rotated(items: Mapping[str, Item], turn: int) -> Iterator[tuple[str, Item]]:
    """Each turn begins with another, so that nobody always follows the same neighbour."""
    pairs = list(items.items())
    first = turn % len(pairs) if pairs else 0
    yield from (*pairs[first:], *pairs[:first])


def summarize(times: list[float]) -> Timing:
    ordered = sorted(times)
    last = len(ordered) - 1
    return Timing(median(ordered), ordered[round(0.2 * last)], ordered[round(0.8 * last)], len(ordered))


@contextmanager
def no_garbage() -> Iterator[None]:
    """No garbage collection inside, which would fall into one provider's time."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
