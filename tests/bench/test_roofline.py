"""Floors follow from bytes, flops and the rates of the card; those of an H200 are the ones that targets speak of."""

import pytest

from porter.bench import roofline
from porter.bench.cases import Case, default_cases
from porter.bench.clock import Clock
from porter.bench.results import Rate
from porter.bench.roofline import find_floor, measure_rates
from porter.bench.traffic import count_flops, passes
from tests.bench.fakes import FakeDevice

MEASURED = {33.5: 3.02, 67.1: 3.69, 134.2: 4.09, 268.4: 4.16, 8590.0: 4.27}  # MB of a copy's traffic: TB/s, an H200
H200 = [
    Rate(kind, int(size * 1e6), 0.0, rate * 1e12 * factor)
    for size, rate in MEASURED.items()
    for kind, factor in (("copy", 1.0), ("triad", 4.40 / 4.27), ("read", 4.69 / 4.27))
] + [Rate("matmul", 2 * 8192**3, 0.0, 788e12)]


@pytest.mark.parametrize(
    ("case", "floor_ms"),
    [
        (Case("rms_norm", (8192, 2048)), 0.0430),
        (Case("layer_norm", (8192, 16384)), 0.3124),
        (Case("rope", (4, 4096, 32, 8, 128)), 0.1605),
        (Case("glu", (8192, 14336), options=(("act", "silu"),)), 0.437),
        (Case("activation", (8192, 14336), options=(("act", "relu2"),)), 0.273),
        (Case("cross_entropy", (8192, 128256)), 0.9891),
        (Case("linear_cross_entropy", (8192, 4096, 128256)), 32.8),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else "",
)
def test_floors_of_an_h200(case: Case, floor_ms: float) -> None:
    assert find_floor(case, H200).forward_backward_ms == pytest.approx(floor_ms, rel=0.03)


def test_every_case_has_a_floor_that_grows_with_the_work() -> None:
    for case in default_cases():
        floor = find_floor(case, H200)
        assert 0 < floor.forward_ms < floor.forward_backward_ms
        assert floor.size_bytes == sum(step.read + step.written for step in passes(case)[1])
    assert count_flops(Case("linear_cross_entropy", (2, 3, 5))) == (60, 180)


def test_traffic_in_other_dtypes() -> None:
    (forward,), (_, backward) = passes(Case("glu", (10, 10), "float32"))
    assert (forward.read, forward.written, backward.read, backward.written) == (800, 400, 1200, 800)
    (loss,), (both,) = passes(Case("cross_entropy", (10, 10)))
    assert (loss.read, loss.written, both.read, both.written) == (200, 0, 200, 200)


def test_bandwidth_between_and_beyond_the_sizes_measured() -> None:
    rates = [Rate("copy", 100, 0.0, 1e9), Rate("copy", 10_000, 0.0, 4e9)]
    found = [roofline._bandwidth("copy", size, rates) for size in (10, 100, 1000, 10_000, 10**6)]
    assert found == pytest.approx([1e9, 1e9, 2e9, 4e9, 4e9])


def test_rates_are_measured_with_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "MEGABYTES", (1, 2))
    monkeypatch.setattr(roofline, "PRODUCTS", ((8, 8, 8),))
    rates = measure_rates(Clock(FakeDevice(), window_ms=0.0, least_runs=2))
    assert [(rate.kind, rate.size) for rate in rates] == [
        (kind, size * 2**20) for size in (1, 2) for kind in ("copy", "triad", "read")
    ] + [("matmul", 1024)]
    assert all(rate.per_second == pytest.approx(rate.size / rate.time_ms * 1e3) for rate in rates)
