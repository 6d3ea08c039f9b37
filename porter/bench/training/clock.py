"""Time and peak memory of steps, on a GPU and on a CPU."""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

import torch


class StepClock(Protocol):
    """Times whole steps.

    Attributes:
        place: where tensors lie.
    """

    place: torch.device

    def time_ms(self, steps: list[Callable[[], object]]) -> list[float]:
        """Milliseconds of each of some steps, queued one after the other."""

    def peak_bytes(self, step: Callable[[], object]) -> int | None:
        """The most that was allocated during a step, all that was there before included; None: not known."""

    def clear(self) -> None:
        """Gives cached memory back."""


class CudaStepClock:
    """Events between the steps of the current CUDA device."""

    place = torch.device("cuda")

    def time_ms(self, steps: list[Callable[[], object]]) -> list[float]:
        torch.cuda.synchronize()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(steps) + 1)]  # type: ignore[no-untyped-call]
        marks[0].record()
        for step, mark in zip(steps, marks[1:], strict=True):
            step()
            mark.record()
        torch.cuda.synchronize()
        return [float(before.elapsed_time(after)) for before, after in pairwise(marks)]

    def peak_bytes(self, step: Callable[[], object]) -> int | None:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated())

    def clear(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


class HostStepClock:
    """The host's clock; memory is not known."""

    place = torch.device("cpu")

    def time_ms(self, steps: list[Callable[[], object]]) -> list[float]:
        found = []
        for step in steps:
            start = time.perf_counter()
            step()
            found.append((time.perf_counter() - start) * 1e3)
        return found

    def peak_bytes(self, step: Callable[[], object]) -> int | None:
        step()
        return None

    def clear(self) -> None:
        """Nothing is cached."""


def find_step_clock() -> StepClock:
    """That of the GPU, if there is one."""
    return CudaStepClock() if torch.cuda.is_available() else HostStepClock()
