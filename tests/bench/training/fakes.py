"""Trainers that do what peers do, and rows as a GPU gives them."""

from typing import Any

import torch
from torch import Tensor

from porter.bench.training.cases import TrainCase
from porter.bench.training.results import TrainRow, TrainRun
from porter.bench.training.trainers import Patched, Trainer

TINY = TrainCase("llama", 2, 2, 16, size="tiny")
GIGABYTE = 10**9


def row(trainer: str, speed: float, peak: float, **changes: Any) -> TrainRow:
    """One that ran, with a spread of 1 % both ways."""
    given: dict[str, Any] = {
        "case": "llama-3-8b/8 2x4096", "trainer": trainer, "tokens_per_s": speed, "low": 0.99 * speed,
        "high": 1.01 * speed, "steps": 12, "peak_bytes": int(peak * GIGABYTE), "load_s": 2.0, "patch_s": 0.1,
        "first_step_s": 1.5, "losses": (12.5867, 1.3998), "gradient_norm": 3.0, **changes,
    }  # fmt: skip
    return TrainRow(**given)


def synthetic_training() -> TrainRun:
    """Two cases: porter ahead, and nobody else within memory."""
    cases = (TrainCase("llama-3-8b", 8, 2, 4096), TrainCase("llama-3-8b", 8, 8, 4096, 3))
    first = (
        row("hf", 33380, 43.1), row("hf+compile", 34367, 33.6), row("liger", 36860, 27.7), row("porter", 40100, 27.5),
        TrainRow(cases[0].name, "porter+compile", "failed", "Unsupported: <a> & b"),
    )  # fmt: skip
    name = cases[1].name
    second = (
        TrainRow(name, "hf", "out of memory", "out of memory"),
        row("porter", 30000, 99.0, case=name, status="wrong", note="the loss of step 1 is 3, liger's 4"),
        row("liger", 29000, 98.0, case=name),
    )
    environment = {"gpu": "NVIDIA H200", "commit": "abc", "torch": "2.11"}
    return TrainRun("2026-11-30T10:00:00+00:00", environment, cases, (*first, *second))


class Scaled(torch.nn.Module):
    """A model whose loss is off by a factor."""

    def __init__(self, model: Any, factor: float) -> None:
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, **inputs: Tensor) -> Any:
        found = self.model(**inputs)
        found.loss = found.loss * self.factor
        return found


def _absent(model: Any) -> Patched:
    raise ImportError("no module named peer")


class OutOfMemory:
    """A module that asks for too much."""

    def __call__(self, **inputs: Tensor) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")


class Tires:
    """A module that gives up after so many steps."""

    def __init__(self, model: Any, steps: int) -> None:
        self.model, self.left = model, steps

    def __call__(self, **inputs: Tensor) -> Any:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("tired")
        return self.model(**inputs)


class NotANumber:
    """A module whose loss is none."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, **inputs: Tensor) -> Any:
        found = self.model(**inputs)
        found.loss = found.loss * torch.nan
        return found


FAKES = (
    Trainer("hf", Patched),
    Trainer("off by 1 %", lambda model: Patched(Scaled(model, 1.01))),
    Trainer("absent", _absent),
    Trainer("too large", lambda model: Patched(OutOfMemory())),
    Trainer("nan", lambda model: Patched(NotANumber(model))),
    Trainer("the same", Patched),
)
