"""A provider at work: what it overwrites is found and put back, what it raises becomes a reason."""

import signal
import time

import pytest
import torch

from porter.bench.operators import Inputs, draw_inputs
from porter.bench.providers.table import Function
from porter.bench.truth import find_truth
from porter.bench.worker import ProviderFailed, Worker, blamed, copy_all
from tests.bench.fakes import RMS_NORM, crashing, overwriting, right

CPU = torch.device("cpu")


def worker(function: Function) -> Worker:
    inputs = draw_inputs(RMS_NORM, CPU)
    return Worker("peer", function, inputs, copy_all(inputs))


def test_a_check_leaves_the_inputs_as_they_were() -> None:
    for function, overwritten in ((right(RMS_NORM), ()), (overwriting(RMS_NORM), ("x",))):
        peer = worker(function)
        truths = find_truth(RMS_NORM, peer.inputs)
        assert [each.worst < 1e-5 for each in peer.check(truths).values()] == [True] * 3
        assert peer.overwritten == overwritten
        for _ in range(2):
            peer.job(backward=True).run()
            peer.job(backward=True).restore()
            assert all(torch.equal(x, peer.pristine[name]) for name, x in peer.inputs.everything().items())


def test_an_overwritten_gradient_is_put_back() -> None:
    class InPlace(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, dy):
            return dy.mul_(2)

    peer = worker(lambda x, w: InPlace.apply(right(RMS_NORM)(x, w)))
    peer.check(find_truth(RMS_NORM, peer.inputs))
    assert peer.overwritten == ("d_output_0",)
    assert torch.equal(peer.inputs.d_outputs[0], peer.pristine["d_output_0"])


def test_gradients_are_fresh() -> None:
    peer = worker(right(RMS_NORM))
    first, second = peer.both(), peer.both()
    assert all(torch.equal(a, b) and a.data_ptr() != b.data_ptr() for a, b in zip(first, second, strict=True))
    assert all(leaf.grad is None for leaf in peer.inputs.leaves)


def test_what_it_raises_is_its_reason_in_one_line() -> None:
    with pytest.raises(ProviderFailed, match=r"^RuntimeError: no kernel image$") as failure:
        worker(crashing(RMS_NORM)).job(backward=False).run()
    assert failure.value.name == "peer"
    with pytest.raises(ProviderFailed, match=r"^out of memory$"), blamed("peer"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
    with pytest.raises(KeyError), blamed("peer", passing=(KeyError,)):
        raise KeyError("x")


def test_who_takes_too_long_is_stopped_even_if_it_catches_exceptions() -> None:
    before = signal.getsignal(signal.SIGALRM)
    start = time.monotonic()
    with pytest.raises(ProviderFailed, match=r"not ready after 0 s"), blamed("peer", limit_s=0.2):
        while True:
            try:
                time.sleep(5)
            except Exception:
                continue
    assert time.monotonic() - start < 3
    assert signal.getsignal(signal.SIGALRM) is before


def test_forward_of_a_loss_is_timed_without_gradients() -> None:
    """Else a provider that computes gradients in forward is charged for a backward that nobody asked for."""
    seen = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.is_grad_enabled())
        return x.sum()

    x = torch.ones(3, requires_grad=True)
    for d_outputs in ((), (torch.ones(()),)):
        inputs = Inputs({"x": x}, ("x",), d_outputs)
        Worker("someone", function, inputs, copy_all(inputs)).job(backward=False).run()
    assert seen == [False, True]
