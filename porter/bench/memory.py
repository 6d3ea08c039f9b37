"""Measures memory and time of a head's loss, forward and backward, against tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from porter.bench.cases import Case
from porter.bench.clock import Clock
from porter.bench.curves import HEADS, METHODS, TOKENS, Point
from porter.bench.operators import draw_inputs
from porter.bench.providers.table import Function
from porter.bench.worker import ProviderFailed, Worker, blamed, copy_all

OUT_OF_MEMORY = "out of memory"


def _functions() -> dict[str, Function]:
    from porter_kernels.linear_cross_entropy import (
        chunked_linear_cross_entropy,
        linear_cross_entropy,
        naive_linear_cross_entropy,
    )

    def lean(hidden: Tensor, weight: Tensor, target: Tensor) -> Any:
        return linear_cross_entropy(hidden, weight, target, accumulate="weight")

    functions: tuple[Function, ...] = (
        naive_linear_cross_entropy,
        chunked_linear_cross_entropy,
        linear_cross_entropy,
        lean,
    )
    return dict(zip(METHODS, functions, strict=True))


def measure_curves(
    clock: Clock, *, heads: Sequence[tuple[int, int]] = HEADS, tokens: Sequence[int] = TOKENS
) -> Iterator[list[Point]]:
    """The points of every head and number of tokens, smallest first; out of memory is a point, and the end of nobody.

    Args:
        clock: on the device to measure.
        heads: features and vocabulary of each.
        tokens: how many rows.
    """
    functions = _functions()
    for features, vocabulary in heads:
        for count in tokens:
            yield _measure_point(clock, Case("linear_cross_entropy", (count, features, vocabulary)), functions)
            clock.device.free_bytes()


def _measure_point(clock: Clock, case: Case, functions: dict[str, Function]) -> list[Point]:
    inputs = draw_inputs(case, clock.device.place)
    pristine = copy_all(inputs)
    count, features, vocabulary = case.shape
    points: dict[str, Point] = {}
    jobs = {}
    for method, function in functions.items():
        points[method] = Point(features, vocabulary, method, count)
        worker = Worker(method, function, inputs, pristine)
        try:
            with blamed(method):
                worker.both()  # what is allocated once, a workspace of cuBLAS say, is no part of the curve
                points[method] = replace(points[method], peak_bytes=clock.device.peak_bytes(worker.both))
            jobs[method] = worker.job(backward=True)
        except ProviderFailed as failure:
            points[method] = _without_number(points[method], failure)
            clock.device.free_bytes()
    try:
        times = clock.device_times(jobs)
    except ProviderFailed as failure:  # all ran once: only a device whose memory others use gets here
        times = {}
        points[failure.name] = _without_number(points[failure.name], failure)
    for method, found in times.items():
        points[method] = replace(points[method], time_ms=found.median, low_ms=found.low, high_ms=found.high)
    return list(points.values())


def _without_number(point: Point, failure: ProviderFailed) -> Point:
    status = OUT_OF_MEMORY if failure.reason == OUT_OF_MEMORY else "failed"
    return replace(point, status=status, note=failure.reason)  # type: ignore[arg-type]
