"""One provider at one case: it runs on shared inputs, is checked once, and puts back what it overwrites."""

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from porter.bench.accuracy import Error, measure_errors
from porter.bench.clock import Job
from porter.bench.operators import Inputs
from porter.bench.providers.table import Function
from porter.bench.truth import D_LOSS, Truth

NOT_READY = "not ready after"


class ProviderFailed(Exception):
    """A provider raised; the message is the reason."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name, self.reason = name, reason


class TookTooLong(BaseException):
    """Raised inside a provider by `deadline`; no Exception, lest its autotuner catches it."""


@dataclass
class Worker:
    """A provider's function on the inputs that all providers share.

    Attributes:
        name: of the provider.
        function: takes the inputs by position.
        inputs: shared; whoever overwrites them restores them.
        pristine: copies of all of them.
        overwritten: names of those that a check found changed.
    """

    name: str
    function: Function
    inputs: Inputs
    pristine: Mapping[str, Tensor]
    overwritten: tuple[str, ...] = ()
    _upstreams: dict[float, Tensor] = field(default_factory=dict)

    def forward(self) -> tuple[Tensor, ...]:
        """The outputs, with a graph behind them as in training."""
        outputs = self.function(*self.inputs.tensors.values())
        return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)

    def both(self, d_loss: float = 1.0) -> list[Tensor]:
        """The outputs, then the gradients: fresh tensors, added to nothing."""
        outputs = self.forward()
        given = self.inputs.d_outputs
        if not given:
            if d_loss not in self._upstreams:  # made once: the provider's times have no part in it
                self._upstreams[d_loss] = torch.full_like(outputs[0], d_loss)
            given = (self._upstreams[d_loss],)
        d_outputs = [d.to(y.dtype) for d, y in zip(given, outputs, strict=True)]
        return [*outputs, *torch.autograd.grad(outputs, self.inputs.leaves, d_outputs)]

    def check(self, truths: Sequence[Truth]) -> dict[str, Error]:
        """Its errors; also finds out what it overwrites, and restores that."""
        errors = measure_errors(self.both(D_LOSS), truths)
        everything = self.inputs.everything()
        self.overwritten = tuple(name for name, x in everything.items() if not torch.equal(x, self.pristine[name]))
        self.restore()
        return errors

    def restore(self) -> None:
        """Puts back what it overwrites."""
        if not self.overwritten:
            return
        everything = self.inputs.everything()
        with torch.no_grad():
            for name in self.overwritten:
                everything[name].copy_(self.pristine[name])

    def forward_alone(self) -> tuple[Tensor, ...]:
        """The outputs as forward is timed: of a loss without gradients, as in evaluation, for some providers compute
        them in its forward, where training would pay and evaluation need not; of the rest as in training."""
        with torch.set_grad_enabled(bool(self.inputs.d_outputs)):
            return self.forward()

    def job(self, *, backward: bool) -> Job:
        """What a clock runs; it raises ProviderFailed. It adds next to nothing to what the provider takes the host."""
        timed = self.both if backward else self.forward_alone

        def run() -> Any:
            try:
                return timed()
            except Exception as error:
                raise failure_of(self.name, error) from error

        return Job(run, self.restore)


def copy_all(inputs: Inputs) -> dict[str, Tensor]:
    """Copies of all tensors that a provider could overwrite."""
    return {name: x.detach().clone() for name, x in inputs.everything().items()}


@contextmanager
def blamed(name: str, limit_s: float = 0.0, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turns whatever is raised inside into ProviderFailed.

    Args:
        name: of the provider.
        limit_s: give up after that long; 0 for never.
        passing: what is not a failure.
    """
    try:
        with deadline(limit_s):
            yield
    except passing:
        raise
    except TookTooLong as error:
        raise ProviderFailed(name, f"{NOT_READY} {limit_s:.0f} s") from error
    except Exception as error:  # a peer may raise anything, and the run goes on without it
        raise failure_of(name, error) from error


def failure_of(name: str, error: Exception) -> ProviderFailed:
    """What a provider raised, as its failure."""
    return ProviderFailed(name, "out of memory" if isinstance(error, torch.OutOfMemoryError) else describe(error))


def describe(error: BaseException) -> str:
    """An exception as one line of at most 200 characters."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:200] if text else type(error).__name__


@contextmanager
def deadline(limit_s: float) -> Iterator[None]:
    """Raises TookTooLong inside after that long, where signals can: in the main thread of a Unix process."""
    if not limit_s or threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def interrupt(signum: int, frame: object) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
