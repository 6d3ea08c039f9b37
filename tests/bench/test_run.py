"""A run from case to case: saved after each, resumed where it stopped, never ended by a provider."""

import json
from dataclasses import replace

import pytest

from porter.bench import run as running
from porter.bench.cases import Case
from porter.bench.clock import Clock
from porter.bench.environment import differences
from porter.bench.measure import DeviceLost
from porter.bench.providers.table import PROVIDERS, Provider, choose_providers
from porter.bench.results import BenchRun, Record, from_document, to_text
from porter.bench.run import DIED, NO_GPU, Bench, Hooks, load_providers, runnable, start_run
from tests.bench.fakes import FakeDevice

CASES = [Case("rms_norm", (4, 8), "float32"), Case("softcap", (4, 8), "float32")]
EAGER = choose_providers(["eager"])


class Saved:
    """Keeps every run that was saved, and what was said."""

    def __init__(self) -> None:
        self.runs: list[BenchRun] = []
        self.lines: list[str] = []

    def hooks(self) -> Hooks:
        return Hooks(self.runs.append, self.lines.append)


def bench(run: BenchRun, saved: Saved, providers: list[Provider] = EAGER) -> Bench:
    return Bench(run, providers, None, saved.hooks())


def test_every_case_is_saved_with_who_runs() -> None:
    saved = Saved()
    run, changed = start_run(CASES)
    assert changed == [] and run.notes == (NO_GPU,)
    assert bench(run, saved).measure(CASES) == 0
    last = saved.runs[-1]
    assert {record.case for record in last.records} == {case.name for case in CASES}
    assert last.running is None
    assert (CASES[1].name, "eager") in [each.running for each in saved.runs]
    assert len(saved.lines) == 2 and saved.lines[0].startswith("[1/2] rms_norm 4x8 fp32")
    assert from_document(json.loads(to_text(last)), "") == last


def test_a_resumed_run_measures_what_is_missing() -> None:
    saved = Saved()
    run, _ = start_run(CASES)
    bench(run, saved).measure(CASES[:1])
    resumed, changed = start_run(CASES, earlier=saved.runs[-1])
    assert changed == [] and resumed.created == run.created
    again = Saved()
    bench(resumed, again).measure(CASES)
    assert again.lines[0] == "1 of 2 cases are there already"
    assert [record.case for record in again.runs[-1].records] == [case.name for case in CASES]


def test_another_provider_runs_beside_those_that_were_there() -> None:
    saved = Saved()
    bench(start_run(CASES)[0], saved).measure(CASES)
    bench(start_run(CASES, earlier=saved.runs[-1])[0], saved, choose_providers(["torch"])).measure(CASES)
    bench(start_run(CASES, earlier=saved.runs[-1])[0], saved, choose_providers(["porter"])).measure(CASES[:1])
    by_case = [(record.case, record.provider) for record in saved.runs[-1].records]
    assert sorted(by_case) == [
        ("rms_norm 4x8 fp32", "eager"),
        ("rms_norm 4x8 fp32", "porter"),
        ("rms_norm 4x8 fp32", "torch"),
        ("softcap 4x8 fp32", "eager"),
    ]


def test_a_run_of_other_code_is_not_resumed() -> None:
    run, _ = start_run(CASES)
    other = replace(run, environment={**run.environment, "sources": "other", "gpu": "NVIDIA H100", "dirty": "yes"})
    fresh, changed = start_run(CASES, earlier=other)
    assert fresh.records == () and len(changed) == 2
    assert f"sources was other, is {run.environment['sources']}" in changed
    assert differences(run.environment, run.environment) == []


def test_who_was_running_at_two_deaths_is_left_out() -> None:
    case = CASES[0].name
    run, _ = start_run(CASES)
    once, _ = start_run(CASES, earlier=replace(run, running=(case, "torch")))
    assert once.records == () and once.died == ((case, "torch"),) and once.running is None
    twice, _ = start_run(CASES, earlier=replace(once, running=(case, "torch")))
    assert twice.records == (Record(case, "torch", "error", status="failed", note=DIED),)
    saved = Saved()
    bench(twice, saved, choose_providers(["torch"])).measure(CASES[:1])
    assert not [each for each in saved.runs if each.running == (case, "torch")]
    assert {(record.provider, record.status) for record in saved.runs[-1].records} == {
        ("torch", "failed"),
        ("eager", "ok"),
    }


def test_a_lost_device_is_saved_before_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Record(CASES[0].name, "torch", "error", status="failed", note="CUDA error")

    def lose(*arguments: object) -> None:
        raise DeviceLost(lost)

    monkeypatch.setattr(running, "measure_case", lose)
    saved = Saved()
    with pytest.raises(DeviceLost):
        bench(start_run(CASES)[0], saved).measure(CASES)
    assert saved.runs[-1].records == (lost,) and saved.runs[-1].running is None


def test_ctrl_c_condemns_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(case: Case, providers: object, clock: object, mark) -> None:
        mark("torch")
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "measure_case", interrupt)
    saved = Saved()
    with pytest.raises(KeyboardInterrupt):
        bench(start_run(CASES)[0], saved).measure(CASES)
    assert saved.runs[-2].running is not None and saved.runs[-1].running is None


def test_time_is_up_between_two_cases() -> None:
    assert bench(start_run(CASES)[0], Saved()).measure(CASES, stop_after_s=1e-9) == 2


def test_who_was_too_slow_once_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measure(case: Case, providers, clock: object, mark: object) -> list[Record]:
        asked.append({each.name: each.missing for each in providers})
        return [Record(case.name, "torch", "error", status="failed", note="not ready after 90 s")]

    monkeypatch.setattr(running, "measure_case", measure)
    cases = [CASES[0], replace(CASES[0], shape=(4, 16))]
    bench(start_run(cases)[0], Saved(), choose_providers(["torch"])).measure(cases)
    assert [each["torch"] for each in asked] == ["", "not ready after 90 s at 4x8"]


def test_on_a_gpu_the_roofline_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    from porter.bench import roofline

    monkeypatch.setattr(roofline, "MEGABYTES", (1,))
    monkeypatch.setattr(roofline, "PRODUCTS", ((8, 8, 8),))
    saved = Saved()
    clock = Clock(FakeDevice(), window_ms=0.0, least_runs=2)
    Bench(start_run(CASES)[0], EAGER, clock, saved.hooks()).measure(CASES)
    assert saved.runs[0].rates and not saved.runs[0].records
    last = saved.runs[-1]
    assert [floor.case for floor in last.floors] == [case.name for case in CASES]
    assert {record.metric for record in last.records} == {"error", "peak_bytes", "forward_ms", "forward_backward_ms"}


def test_providers_that_cannot_be_loaded_have_their_reason() -> None:
    broken = Provider("broken", "nowhere:ops", ("rope",))
    (absent, compiled, quack) = load_providers([broken, PROVIDERS["compile"], PROVIDERS["quack"]], None)
    assert "No module named 'porter.bench.providers.nowhere'" in absent.missing
    assert compiled.missing.startswith("only on a GPU: torch.compile takes longer")
    assert quack.missing == "only on a GPU: it has no interpreter"


def test_a_cpu_runs_shrunken_cases() -> None:
    full = [Case("rms_norm", (8192, 2048))]
    assert runnable(full, FakeDevice()) == full
    assert runnable(full, None) == [Case("rms_norm", (8, 16), "float32")]
