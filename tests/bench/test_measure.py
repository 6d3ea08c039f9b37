"""A case with providers of every kind: no peer ends the run, and nobody who is wrong is ranked."""

from dataclasses import replace

import pytest
import torch

from porter.bench.clock import Clock
from porter.bench.measure import DeviceLost, Loaded, measure_case
from porter.bench.operators import OPERATORS, draw_inputs
from tests.bench.fakes import RMS_NORM, FakeDevice, crashing, loaded, overwriting, right, scaled, unsupported


def clock(device: FakeDevice | None = None) -> Clock:
    return Clock(device or FakeDevice(), window_ms=0.0, least_runs=2)


def test_every_kind_of_provider_has_its_records() -> None:
    marks: list[str] = []
    peers = [
        *loaded(eager=right, wrong=scaled, broken=crashing, narrow=unsupported, rude=overwriting),
        Loaded("absent", tuple(OPERATORS), missing="ModuleNotFoundError: No module named 'peer'"),
    ]
    records = measure_case(RMS_NORM, peers, clock(), marks.append)
    assert marks == ["eager", "wrong", "broken", "narrow", "rude", "absent"]
    verdicts = {record.provider: record for record in records if record.metric == "error"}
    assert {name: record.status for name, record in verdicts.items()} == {
        "eager": "ok", "wrong": "wrong", "broken": "failed", "narrow": "unsupported", "rude": "ok", "absent": "missing",
    }  # fmt: skip
    assert verdicts["broken"].note == "RuntimeError: no kernel image"
    assert verdicts["narrow"].note == "it has no such width"
    assert verdicts["absent"].note == "ModuleNotFoundError: No module named 'peer'"
    assert verdicts["rude"].note.endswith("; overwrites x")
    assert verdicts["wrong"].note.startswith("y is off by 0.0") and 0.01 < (verdicts["wrong"].value or 0) < 0.05
    timed = {record.provider for record in records if record.metric == "forward_backward_ms"}
    assert timed == {"eager", "wrong", "rude"}
    metrics = [record.metric for record in records if record.provider == "rude"]
    assert metrics == ["error", "peak_bytes", "forward_ms", "forward_backward_ms"]


def test_without_a_clock_only_errors_are_found() -> None:
    records = measure_case(RMS_NORM, loaded(eager=right), None, lambda name: None)
    assert [(record.metric, record.status) for record in records] == [("error", "ok")]


def test_a_small_case_has_host_times() -> None:
    records = measure_case(replace(RMS_NORM, small=True), loaded(eager=right), clock(), lambda name: None)
    assert [(record.metric, record.runs) for record in records][-1] == ("host_ms", 200)


def test_who_fails_while_timed_is_dropped_and_the_others_are_not() -> None:
    calls = 0

    def breaking(case):
        def function(x, w):
            nonlocal calls
            calls += 1
            if calls > 6:
                raise RuntimeError("late")
            return right(case)(x, w)

        return function

    records = measure_case(RMS_NORM, loaded(eager=right, late=breaking), clock(), lambda name: None)
    failed = [record for record in records if record.status == "failed"]
    assert [(record.provider, record.note) for record in failed] == [("late", "RuntimeError: late")]
    assert any(record.provider == "eager" and record.metric == "forward_backward_ms" for record in records)


def test_a_lost_device_ends_the_process_and_says_who_lost_it() -> None:
    device = FakeDevice()

    def killing(case):
        def function(*tensors):
            device.alive = False
            raise RuntimeError("CUDA error")

        return function

    with pytest.raises(DeviceLost, match=r"the GPU stopped answering while killer ran rms_norm 6x32 fp32") as lost:
        measure_case(RMS_NORM, loaded(eager=right, killer=killing), clock(device), lambda name: None)
    assert lost.value.exit_code == 4
    assert (lost.value.record.provider, lost.value.record.status) == ("killer", "failed")


def test_a_failure_leaves_the_inputs_to_the_next_as_they_were() -> None:
    seen = []

    def ruining(case):
        def function(x, w):
            x.detach().fill_(0.0)
            raise RuntimeError("after writing")

        return function

    def looking(case):
        def function(x, w):
            seen.append(x.detach().clone())
            return right(case)(x, w)

        return function

    measure_case(RMS_NORM, loaded(eager=right, ruin=ruining, look=looking), None, lambda name: None)
    assert torch.equal(seen[0], draw_inputs(RMS_NORM, torch.device("cpu")).tensors["x"])
