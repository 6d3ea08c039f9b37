"""Gradients times an upstream gradient, in place and in one launch: each of them wholly, once, nothing beside it."""

import pytest
import torch
from torch import Tensor

from porter_kernels.linear_cross_entropy import scaling
from porter_kernels.linear_cross_entropy.gradients import Gradients

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = (3, 7), (5, 7), (5,)  # of hidden, weight and bias


@pytest.fixture(params=[4, 2**12], ids="block={}".format)
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Elements of a block: several of each gradient, or all."""
    monkeypatch.setattr(scaling, "block_size", lambda n, tile: request.param)
    size: int = request.param
    return size


def draw(given: tuple[bool, ...], dtype: torch.dtype, generator: torch.Generator) -> Gradients:
    drawn = [torch.randn(size, generator=generator).to(DEVICE, dtype) for size in SIZES]
    return Gradients(*(x if has else None for x, has in zip(drawn, given, strict=True)))


@pytest.mark.parametrize("programs", [1, 2, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("upstream", [1.01, -0.3])
@pytest.mark.parametrize(
    "given", [(h, w, b) for h in (True, False) for w in (True, False) for b in (True, False)], ids=str
)
@pytest.mark.usefixtures("block")
def test_every_gradient_is_scaled_once(
    given: tuple[bool, ...], upstream: float, dtype: torch.dtype, programs: int, generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(scaling, "num_programs", lambda device: programs)
    monkeypatch.setattr(scaling, "PROGRAMS_PER_MULTIPROCESSOR", 1)
    gradients, factor = draw(given, dtype, generator), torch.tensor(upstream, device=DEVICE)
    truth = [None if x is None else (x.float() * factor).to(dtype) for x in gradients]
    scaling.scale_(gradients, factor)
    for x, expected in zip(gradients, truth, strict=True):
        assert x is expected or torch.equal(x, expected)


def test_by_one_nothing_is_written(generator: torch.Generator) -> None:
    gradients = draw((True, True, True), torch.float32, generator)
    nan = torch.tensor(0x7FA00001, dtype=torch.int32, device=DEVICE).view(torch.float32)  # a product would quieten it
    bits: list[Tensor] = []
    for x in gradients:
        assert x is not None
        x.view(-1)[0] = nan
        bits.append(x.view(torch.int32).clone())
    scaling.scale_(gradients, torch.ones((), device=DEVICE))
    assert all(torch.equal(x.view(torch.int32), was) for x, was in zip(gradients, bits, strict=True) if x is not None)


def test_a_gradient_of_nothing_takes_no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "launch", lambda *_, **__: pytest.fail("launched"))
    scaling.scale_(Gradients(torch.empty(0, 7, device=DEVICE), None, None), torch.tensor(2.0, device=DEVICE))
