"""Backward passes of one unit, whoever's it is: what autograd gives for its input, its nodes and its parameters.

The output head is taken apart: autograd sees its logits as given, and the product with the vocabulary is made, and
differentiated, a chunk of the vocabulary at a time. So neither the head nor its gradient lies in memory as a whole.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Running = Callable[[], AbstractContextManager[object]]  # within it, a side computes as it does
Chunk = tuple[dict[str, nn.Parameter], Callable[[Tensor], Tensor]]  # its parameters by name, and the product with them
INPUT = "resid_pre"  # the node that is a unit's input


@dataclass
class Gradients:
    """What the backward pass of one unit gives.

    Attributes:
        nodes: by name within the unit; None where no gradient arrives.
        parameters: by name; None where no gradient arrives.
        unknown: parameters whose gradient cannot be told, with the reason.
        routing_BTK: the experts that the tokens of a layer went to; None where it has none.
    """

    nodes: dict[str, Tensor | None]
    parameters: dict[str, Tensor | None]
    unknown: dict[str, str] = field(default_factory=dict)
    routing_BTK: Tensor | None = None


def differentiate(out: Tensor, inputs: Sequence[Tensor], upstream: Tensor) -> list[Tensor | None]:
    """The gradient of each input, None where `out` does not depend on it."""
    wanted = [each for each in inputs if each.requires_grad]
    if not out.requires_grad or not wanted:
        return [None] * len(inputs)
    found = iter(torch.autograd.grad(out, wanted, upstream.to(out), allow_unused=True))
    return [next(found) if each.requires_grad else None for each in inputs]


def next_token_loss(logits_1NV: Tensor, targets_N: Tensor) -> Tensor:
    """The mean cross-entropy, in float32 or wider."""
    wide_NV = logits_1NV[0].to(torch.promote_types(logits_1NV.dtype, torch.float32))
    return F.cross_entropy(wide_NV, targets_N.to(wide_NV.device))


class CutHead:
    """In place of an output head: its logits, which autograd takes as given.

    Args:
        running: within it, the side computes.
        chunks: the head, a chunk of the vocabulary after another.
    """

    def __init__(self, running: Running, chunks: Callable[[], Iterator[Chunk]]) -> None:
        self.running, self.chunks = running, chunks
        self.given = self.logits = torch.empty(0)

    def __call__(self, x_1ND: Tensor) -> Tensor:
        self.given = x_1ND
        with torch.no_grad():
            self.logits = torch.cat([product(x_1ND) for _, product in self.chunks()], dim=-1)
        return self.logits.requires_grad_()


class HeadPass:
    """The head's backward pass: to the logits at once, through the product by chunks, then through what is before it.

    Attributes:
        logits: the gradient of the logits, [1, N, V].
    """

    def __init__(self, cut: CutHead, loss: Tensor, logits: Tensor, finish: Callable[[Tensor], Gradients]) -> None:
        """
        Args:
            loss: of `logits`, which are made of the cut head's.
            finish: from the gradient of what the head was given to that of the unit.
        """
        self._cut, self._finish = cut, finish
        found = differentiate(loss, [logits, cut.logits], torch.ones_like(loss))
        assert found[0] is not None and found[1] is not None
        self.logits, self._product_1NV = found[0], found[1]
        cut.logits = torch.empty(0)
        self._given_1ND = torch.zeros_like(cut.given, dtype=torch.promote_types(cut.given.dtype, torch.float32))

    def chunks(self) -> Iterator[dict[str, Tensor]]:
        """The gradients of the head's parameters, a chunk of the vocabulary at a time; who takes them clears them."""
        left_1NV = self._product_1NV
        for parameters, product in self._cut.chunks():
            width = len(next(iter(parameters.values())))
            yield self._chunk(parameters, product, left_1NV[..., :width])
            left_1NV = left_1NV[..., width:]

    def _chunk(
        self, parameters: dict[str, nn.Parameter], product: Callable[[Tensor], Tensor], upstream_1Nv: Tensor
    ) -> dict[str, Tensor]:
        with self._cut.running(), torch.enable_grad():
            given_1ND = self._cut.given.detach().requires_grad_()
            found = differentiate(product(given_1ND), [given_1ND, *parameters.values()], upstream_1Nv)
        if found[0] is not None:
            self._given_1ND += found[0]
        return {name: each for name, each in zip(parameters, found[1:], strict=True) if each is not None}

    def renamed(self, rename: Callable[[Gradients], Gradients]) -> "HeadPass":
        """This pass, with what it finishes with under other names."""
        finish = self._finish
        self._finish = lambda given_1ND: rename(finish(given_1ND))
        return self

    def finish(self) -> Gradients:
        """The rest of the unit, once all chunks are through."""
        with self._cut.running(), torch.enable_grad():
            return self._finish(self._given_1ND)


@contextmanager
def replaced(module: nn.Module, forward: Callable[..., Tensor]) -> Iterator[None]:
    """Within it, the module computes `forward`."""
    own = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own
