"""HF's units run backwards: autograd through HF's own code, its parameters' gradients as the checkpoint's tensors.

A parameter that HF's loader made of several tensors, or of a part of one, has its gradient taken back through what the
loader did; so it can be compared with that of any other model of the same checkpoint.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from porter.models.backward import INPUT, Chunk, CutHead, Gradients, HeadPass, differentiate, next_token_loss, replaced
from porter.references.deferred import Source
from porter.references.hf import HfReference
from porter.references.hollow import Slot
from porter.references.hooks import Split
from porter.references.recording import noted
from porter.references.units import embedding_forward, fill_chunks

Noted = list[tuple[Tensor, Split]]


class HfBackward:
    """One HF model, whose units are run forwards and backwards. Parameters are named as the checkpoint's tensors."""

    def __init__(self, reference: HfReference) -> None:
        self.reference, self.weights, self.places = reference, reference.weights, reference.weights.places
        self.dtype, self.device = reference.dtype, reference.device
        self._rest = [slot for slot in self.places.rest if slot.is_parameter]

    def start(self, ids_BT: Tensor) -> None:
        self.reference.start(ids_BT)

    def release(self) -> None:
        self.reference.release()

    def layer(self, index: int, x_BTD: Tensor, upstream_BTD: Tensor, routing_BTK: Tensor | None = None) -> Gradients:
        """The gradients of one layer fed `x_BTD`, given that of its output; routing_BTK as call_layer takes it."""
        self.weights.hold(index)
        slots = [slot for slot in self.places.layers[index] if slot.is_parameter]
        x_BTD, seen = self._leaf(x_BTD), Noted()
        with ExitStack() as stack:
            stack.enter_context(self._running())
            parameters = stack.enter_context(self.weights.tracked(slots))
            stack.enter_context(noted(self.reference.hooks[index], lambda value, split: seen.append((value, split))))
            out_BTD = self.reference.call_layer(index, x_BTD, routing_BTK)
            bases = [value for value, _ in seen]
            found = differentiate(out_BTD, [x_BTD, *bases, *parameters], upstream_BTD)
        nodes = {INPUT: found[0], **_split(seen, found[1 : len(seen) + 1])}
        made = self._gradients(nodes, slots, found[len(seen) + 1 :])
        made.routing_BTK = None if self.reference.routing is None else self.reference.routing.taken
        return made

    def embed(self, upstream_BTD: Tensor) -> Gradients:
        """The gradients of the embedding: of the rows that the prompt reads, and of what is added to them."""
        (slot,), rows = self.places.embed, list[nn.Parameter]()
        module = self.places.embedding
        forward = embedding_forward(
            module, slot, self.weights, lambda rows_ND: rows.append(slot.fill_tracked(rows_ND))
        )  # fmt: skip
        with self._running(), replaced(module, forward), self.weights.tracked(self._rest) as parameters:
            out_BTD = self.reference.call_embedding()
            found = differentiate(out_BTD, [*rows, *parameters], upstream_BTD)
        return self._gradients({}, [slot, *self._rest], found, rows_of=slot)

    def head(self, x_BND: Tensor, targets_N: Tensor) -> HeadPass:
        """The backward pass of the mean cross-entropy to `x_BND`, positions of the last layer's output."""
        x_BND, seen = self._leaf(x_BND), Noted()
        cut = CutHead(self._running, self._chunks)
        with ExitStack() as stack:
            stack.enter_context(self._running())
            parameters = stack.enter_context(self.weights.tracked(self._rest))
            stack.enter_context(noted(self.reference.head_hooks, lambda value, split: seen.append((value, split))))
            stack.enter_context(replaced(self.places.head, cut))
            logits_BNV = self.reference.call_head(x_BND)
            loss = next_token_loss(logits_BNV, targets_N)

        def finish(given_BND: Tensor) -> Gradients:
            bases = [value for value, _ in seen]
            found = differentiate(cut.given, [x_BND, *bases, *parameters], given_BND)
            nodes = {INPUT: found[0], **_split(seen, found[1 : len(seen) + 1])}
            return self._gradients(nodes, self._rest, found[len(seen) + 1 :])

        return HeadPass(cut, loss, logits_BNV, finish)

    def _leaf(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.to(self.device, self.dtype).detach().requires_grad_()

    @contextmanager
    def _running(self) -> Iterator[None]:
        with self.reference.running(), torch.enable_grad():
            yield

    def _chunks(self) -> Iterator[Chunk]:
        slots, head = self.places.out, type(self.places.head).forward
        for _ in fill_chunks(slots, self.weights):
            parameters = {f"head.{name}": slot.fill_tracked(slot.value.detach()) for name, slot in slots.items()}
            yield parameters, lambda x: head(self.places.head, x)

    def _gradients(
        self, nodes: dict[str, Tensor | None], slots: Sequence[Slot], found: Sequence[Tensor | None],
        rows_of: Slot | None = None,
    ) -> Gradients:  # fmt: skip
        made = Gradients(nodes, {})
        for slot, gradient in zip(slots, found, strict=True):
            if isinstance(slot.recipe, Source) or gradient is None:
                for name in slot.recipe.sources():
                    _add(made.parameters, name, gradient)
            elif slot is rows_of:
                made.unknown |= dict.fromkeys(slot.recipe.sources(), "HF makes its table of several tensors")
            else:
                self._take_back(made, slot, gradient)
        return made

    def _take_back(self, made: Gradients, slot: Slot, gradient: Tensor) -> None:
        """The gradients of the tensors that HF's loader made a parameter of."""
        shapes = {name: self.reference.tensors.checkpoint.info(name).shape for name in slot.recipe.sources()}
        leaves = {
            name: torch.zeros(shape, dtype=gradient.dtype, device=gradient.device, requires_grad=True)
            for name, shape in shapes.items()
        }
        try:
            with torch.enable_grad():
                value = slot.recipe.compute(lambda name, _dtype: leaves[name])
            found = differentiate(value, list(leaves.values()), gradient)
        except RuntimeError:  # torch's word for a call that has no derivative
            found = []
        if not found or all(each is None for each in found):
            why = f"HF's loader made {slot.name} of it by a step without gradient"
            made.unknown |= dict.fromkeys(leaves, why)
            return
        for name, each in zip(leaves, found, strict=True):
            _add(made.parameters, name, each)


def _split(seen: Noted, found: Sequence[Tensor | None]) -> dict[str, Tensor | None]:
    """The gradients of nodes, from those of the tensors that hold them."""
    nodes: dict[str, Tensor | None] = {}
    for (value, split), gradient in zip(seen, found, strict=True):
        shown: dict[str, Any] = split(value.detach() if gradient is None else gradient.contiguous())
        nodes |= dict.fromkeys(shown) if gradient is None else shown
    return nodes


def _add(held: dict[str, Tensor | None], name: str, gradient: Tensor | None) -> None:
    before = held.get(name)
    held[name] = gradient if before is None else before if gradient is None else before + gradient
