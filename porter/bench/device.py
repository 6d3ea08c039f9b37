"""A CUDA device as a clock needs it: events, a kernel that waits, a read that empties the L2, peak memory."""

import time
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

FLUSHED = 2.5  # times the L2: what a read must pass over so that nothing stays


class Device(Protocol):
    """What a clock asks for; tests stand in for it.

    Attributes:
        place: where its tensors lie.
    """

    place: torch.device

    def wait_ms(self, duration_ms: float) -> None:
        """Keeps the device busy that long while the host queues what comes next."""

    def flush(self) -> None:
        """Drives everything out of the L2."""

    def between(self, run: Callable[[], object]) -> Callable[[], float]:
        """Runs between two events; what it gives is asked for the milliseconds once they have passed."""

    def synchronize(self) -> None:
        """Waits until the device is idle."""

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """The most that was allocated during a run, above what was before."""

    def free_bytes(self) -> int:
        """What could be allocated now; frees what is cached first. Raises: RuntimeError: the device is lost."""


class CudaDevice:
    """The current CUDA device."""

    place = torch.device("cuda")

    def __init__(self) -> None:
        size = int(FLUSHED * torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
        self._big: Tensor = torch.zeros(max(size, 2**28) // 4, dtype=torch.int32, device="cuda")
        self._cycles_per_ms = self._calibrate()

    def _calibrate(self) -> float:
        cycles = 20_000_000
        _spin(cycles)
        torch.cuda.synchronize()
        return cycles / self.between(lambda: _spin(cycles))()

    def wait_ms(self, duration_ms: float) -> None:
        _spin(int(duration_ms * self._cycles_per_ms))

    def flush(self) -> None:
        self._big.sum()

    def between(self, run: Callable[[], object]) -> Callable[[], float]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        run()
        end.record()

        def elapsed_ms() -> float:
            end.synchronize()
            return float(start.elapsed_time(end))

        return elapsed_ms

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def peak_bytes(self, run: Callable[[], object]) -> int:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        kept = run()
        torch.cuda.synchronize()
        del kept
        return int(torch.cuda.max_memory_allocated() - before)

    def free_bytes(self) -> int:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info()[0])


def find_device() -> CudaDevice | None:
    """The GPU, if there is one."""
    return CudaDevice() if torch.cuda.is_available() else None


def _spin(cycles: int) -> None:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def now_ms() -> float:
    return time.perf_counter() * 1e3
