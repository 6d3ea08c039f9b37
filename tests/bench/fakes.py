"""A device that times with the host's clock and says whether it is alive; providers that do what peers do."""

from collections.abc import Callable

import torch
from torch import Tensor

from porter.bench.cases import Case
from porter.bench.device import now_ms
from porter.bench.measure import Loaded
from porter.bench.operators import OPERATORS
from porter.bench.providers.table import Builder, Function, Unsupported

RMS_NORM = Case("rms_norm", (6, 32), "float32")


class FakeDevice:
    """Counts what a clock asks for; its own time is that of `now_ms`."""

    place = torch.device("cpu")

    def __init__(self, now_ms: Callable[[], float] = now_ms) -> None:
        self.now_ms = now_ms
        self.calls: list[str] = []
        self.alive = True

    def wait_ms(self, duration_ms: float) -> None:
        self.calls.append("wait")

    def flush(self) -> None:
        self.calls.append("flush")

    def between(self, run: Callable[[], object]) -> Callable[[], float]:
        start = self.now_ms()
        run()
        elapsed = self.now_ms() - start
        return lambda: elapsed

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def peak_bytes(self, run: Callable[[], object]) -> int:
        run()
        return 1000

    def free_bytes(self) -> int:
        if not self.alive:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return 10**12


def right(case: Case) -> Function:
    return OPERATORS[case.op].function(case)


def scaled(case: Case) -> Function:
    """5 % too large."""
    return lambda *tensors: right(case)(*tensors) * 1.05


def overwriting(case: Case) -> Function:
    """Right, and leaves its first input in ruins, as in-place kernels do."""

    def function(x: Tensor, *rest: Tensor) -> Tensor:
        y: Tensor = right(case)(x.clone(), *rest)
        x.detach().fill_(7.0)
        return y

    return function


def crashing(case: Case) -> Function:
    def function(*tensors: Tensor) -> Tensor:
        raise RuntimeError("no kernel\n  image")

    return function


def unsupported(case: Case) -> Function:
    raise Unsupported("it has no such width")


def loaded(**builders: Builder) -> list[Loaded]:
    """Providers of every op, each with one builder."""
    return [Loaded(name, tuple(OPERATORS), dict.fromkeys(OPERATORS, builder)) for name, builder in builders.items()]
