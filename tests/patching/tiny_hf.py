"""HuggingFace's tiny models with stress weights, in training mode and without dropout, as tests patch them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from porter.bench.convergence.training import without_dropout
from porter.references.float64 import Float64
from porter.references.pinned import load_pinned
from tests.models.tiny import random_ids, tiny


def hf_model(family: str, dtype: torch.dtype = torch.float32) -> Any:
    """A model of its own, in training mode; nothing is dropped out."""
    model = load_pinned(tiny(family).checkpoint(), dtype, torch.device("cpu"))
    without_dropout(model)
    return model.train()


def hf_ids(family: str, length: int = 24, batch: int = 2) -> Tensor:
    """[batch, length], seeded."""
    return random_ids(tiny(family), length, batch)


@dataclass(frozen=True)
class Step:
    """What one training step gives."""

    loss: Tensor
    gradients: dict[str, Tensor]

    def error(self, golden: "Step") -> tuple[float, float]:
        """Relative error of the loss, and of all gradients as one vector."""
        square = sum(
            float((self.gradients[name].double() - wide).square().sum()) for name, wide in golden.gradients.items()
        )
        size = sum(float(wide.square().sum()) for wide in golden.gradients.values())
        return float((self.loss.double() - golden.loss).abs() / golden.loss.abs()), (square / size) ** 0.5


def step(model: Any, ids_BT: Tensor, **inputs: Any) -> Step:
    """Forward and backward of a training step; the model's gradients are cleared before and after."""
    model.zero_grad()
    loss = model(input_ids=ids_BT, labels=ids_BT, use_cache=False, **inputs).loss
    loss.backward()
    found = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()
    return Step(loss.detach(), found)


def golden_step(family: str, ids_BT: Tensor, **inputs: Any) -> Step:
    """The same in float64 throughout."""
    with Float64():
        return step(hf_model(family, torch.float64), ids_BT, **inputs)
