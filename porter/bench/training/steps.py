"""Training steps on one set of weights, whoever's model runs them."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from porter.bench.training.cases import TrainCase
from porter.bench.training.medusa import MedusaHeads, MedusaModel
from porter.bench.training.models import draw_batch, make_model
from porter.bench.training.trainers import Patched, Trainer

RATE, STD = 1e-4, 0.02  # of AdamW; of the matrices' random weights, as HF draws them


class Weights:
    """The parameters that all models of a case share, their optimizer, and the batch.

    Attributes:
        tied: every name of each parameter in HF's model.
        ids_BT: the batch, the same in each step.
    """

    def __init__(self, case: TrainCase, device: torch.device, dtype: torch.dtype) -> None:
        """Makes them. Raises: SpecError: no size is called so."""
        self.case, self.device, self.dtype, self.shape = case, device, dtype, case.shape
        self.ids_BT = draw_batch(self.shape, case.batch, case.tokens, device)
        model = self.fresh_model()
        self.tied = dict(model.named_parameters(remove_duplicate=False))
        dims = self.shape.blueprint.dims
        self.heads = MedusaHeads(case.heads, dims.hidden, dims.vocab, dtype=dtype, device=device)
        self.parameters = list(dict.fromkeys([*model.parameters(), *self.heads.parameters()]))
        self._firsts = [float(p.detach().flatten()[0]) for p in self.parameters]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=RATE, fused=True)

    def fresh_model(self) -> Any:
        """HF's model with weights of its own."""
        return make_model(self.shape, dtype=self.dtype, device=self.device)

    def share_with(self, model: nn.Module) -> None:
        """Gives a fresh model these parameters in place of its own."""
        for path, module in model.named_modules():
            for name in module._parameters:
                if module._parameters[name] is not None:
                    module._parameters[name] = self.tied[f"{path}.{name}".lstrip(".")]

    @torch.no_grad()
    def reset(self) -> None:
        """Random weights of the same seed, vectors as HF makes them, an optimizer without a past, no gradients."""
        torch.manual_seed(1)
        for parameter, first in zip(self.parameters, self._firsts, strict=True):
            if parameter.ndim > 1:
                parameter.normal_(0.0, STD)
            else:
                parameter.fill_(first)
        self.optimizer.state.clear()
        self.optimizer.zero_grad(set_to_none=True)

    def gradient_norm(self) -> float:
        """Over all parameters that have a gradient."""
        norms = torch._foreach_norm([p.grad for p in self.parameters if p.grad is not None])
        return math.sqrt(sum(float(norm) ** 2 for norm in norms))


class Stepper:
    """One trainer's model, and its steps."""

    def __init__(self, trainer: Trainer, model: Any, weights: Weights) -> None:
        """Makes the model ready. Raises: ImportError: the trainer's peer is not installed."""
        self.weights = weights
        patched: Patched = trainer.prepare(model)
        self.patched, self.module = patched, patched.module
        if weights.case.heads:
            bare = getattr(patched.module, "_orig_mod", patched.module)
            self.module = MedusaModel(bare, weights.heads, patched.head_loss)
            if bare is not patched.module:
                self.module = torch.compile(self.module, dynamic=False)

    def loss(self) -> Tensor:
        """Forward."""
        ids_BT = self.weights.ids_BT
        if self.weights.case.heads:
            found: Tensor = self.module(ids_BT)
        else:
            found = self.module(input_ids=ids_BT, labels=ids_BT, use_cache=False, **self.patched.arguments).loss
        return found

    def backward(self) -> Tensor:
        """Forward and backward; the loss, without its graph."""
        with self.patched.in_force():
            loss = self.loss()
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def step(self) -> Tensor:
        """A whole step."""
        loss = self.backward()
        self.weights.optimizer.step()
        self.weights.optimizer.zero_grad(set_to_none=True)
        return loss

    def first_steps(self, count: int) -> Iterator[tuple[float, float | None]]:
        """Loss of each of the first steps from the reset weights, with the gradients' norm of the first."""
        self.weights.reset()
        for i in range(count):
            loss = self.backward()
            norm = self.weights.gradient_norm() if i == 0 else None
            self.weights.optimizer.step()
            self.weights.optimizer.zero_grad(set_to_none=True)
            yield float(loss), norm


def several(step: Callable[[], object], count: int) -> list[Callable[[], object]]:
    """The same step so many times."""
    return [step] * count
