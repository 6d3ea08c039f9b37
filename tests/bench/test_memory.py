"""Memory curves: a point for each method and number of tokens, out of memory among them."""

import torch

from porter.bench import memory
from porter.bench.clock import Clock
from porter.bench.curves import METHODS, Point, gradient_bytes
from porter.bench.memory import measure_curves
from tests.bench.fakes import FakeDevice


def test_points_of_every_method() -> None:
    clock = Clock(FakeDevice(), window_ms=0.0, least_runs=2)
    points = [point for each in measure_curves(clock, heads=((16, 40),), tokens=(4, 8)) for point in each]
    assert [(point.method, point.tokens) for point in points] == [(name, n) for n in (4, 8) for name in METHODS]
    for point in points:
        assert (point.features, point.vocabulary, point.status, point.peak_bytes) == (16, 40, "ok", 1000)
        assert point.time_ms and point.low_ms and point.high_ms


def test_out_of_memory_is_a_point(monkeypatch) -> None:
    def out_of_memory(*tensors: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    functions = {**memory._functions(), "naive": out_of_memory}
    monkeypatch.setattr(memory, "_functions", lambda: functions)
    ((naive, *others),) = measure_curves(Clock(FakeDevice(), 0.0, 2), heads=((16, 40),), tokens=(4,))
    assert naive == Point(16, 40, "naive", 4, "out of memory", note="out of memory")
    assert all(point.status == "ok" and point.time_ms for point in others)


def test_the_gradients_alone() -> None:
    assert gradient_bytes(Point(4096, 128256, "fused", 8192)) == 2 * 4096 * (8192 + 128256)
