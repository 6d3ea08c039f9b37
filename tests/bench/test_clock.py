"""The clock: jobs take turns, what is overwritten is put back, and nothing but the run is timed."""

import gc

import pytest

from porter.bench import clock as clock_module
from porter.bench.clock import MOST_RUNS, Clock, Job, summarize
from tests.bench.fakes import FakeDevice


class Time:
    """Stands still but for what jobs take: sleep on a busy machine ends when it likes."""

    now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms

    def job(self, name: str, duration_ms: float, journal: list[str]) -> Job:
        def run() -> None:
            journal.append(name)
            self.now_ms += duration_ms

        def restore() -> None:
            journal.append(f"{name} restored")
            self.now_ms += 100.0  # outside the clock

        return Job(run, restore)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(clock_module, "now_ms", made)
    return made


def test_times_are_of_the_run_alone_and_jobs_take_turns(time: Time) -> None:
    journal: list[str] = []
    device = FakeDevice(time)
    jobs = {name: time.job(name, duration, journal) for name, duration in (("a", 2.0), ("b", 4.0))}
    found = Clock(device, window_ms=60.0).device_times(jobs)
    assert [found[name].median for name in "ab"] == pytest.approx([2.0, 4.0])
    assert found["a"].low == pytest.approx(2.0) == found["a"].high
    assert found["a"].runs >= found["b"].runs >= 11
    timed = [each for each in journal if "restored" not in each][6:]  # three runs of each decide how many
    assert max(len(list(run)) for run in _runs(timed)) <= 2  # the order turns, so a job may meet itself
    assert journal.count("a") == journal.count("a restored")
    assert device.calls.count("flush") == device.calls.count("wait") == found["a"].runs + found["b"].runs


def _runs(names: list[str]):
    start = 0
    for index in range(1, len(names) + 1):
        if index == len(names) or names[index] != names[start]:
            yield names[start:index]
            start = index


def test_runs_are_bounded() -> None:
    quick = Clock(FakeDevice(), window_ms=1e6).device_times({"a": Job(lambda: None, lambda: None)})
    assert quick["a"].runs == MOST_RUNS
    slow = Clock(FakeDevice(), window_ms=0.0, least_runs=5).device_times({"a": Job(lambda: None, lambda: None)})
    assert slow["a"].runs == 5
    assert Clock(FakeDevice()).device_times({}) == {}


def test_host_time_waits_for_an_idle_device(time: Time) -> None:
    device = FakeDevice(time)
    found = Clock(device).host_times({"a": time.job("a", 1.0, [])}, runs=5)
    assert found["a"].median == pytest.approx(1.0) and found["a"].runs == 5
    assert device.calls.count("synchronize") >= 5


def test_no_garbage_is_collected_meanwhile() -> None:
    seen = []
    Clock(FakeDevice(), window_ms=0.0).device_times({"a": Job(lambda: seen.append(gc.isenabled()), lambda: None)})
    assert not any(seen) and gc.isenabled()


def test_percentiles() -> None:
    found = summarize([float(n) for n in range(10, -1, -1)])
    assert (found.median, found.low, found.high, found.runs) == (5.0, 2.0, 8.0, 11)
    assert summarize([3.0]).median == pytest.approx(3.0)
