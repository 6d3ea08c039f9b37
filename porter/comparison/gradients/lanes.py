"""The sides of the stage, each of whose units run forwards and backwards."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from porter.comparison.lanes import Nodes
from porter.models.backward import INPUT, Chunk, CutHead, Gradients, HeadPass, differentiate, next_token_loss, replaced
from porter.models.decoder import Decoder, check_length
from porter.models.matmul import quick_matmul
from porter.models.modules import ChunkedLinear
from porter.models.moe import CHOICE
from porter.models.positions import Positions
from porter.references.backward import HfBackward
from porter.specs.ledger import Entry, Ledger


class BackwardLane(Protocol):
    """A side; parameters by their names within the unit: attn.q.weight, final_norm.weight, embed.weight."""

    dtype: torch.dtype

    def start(self, ids_BT: Tensor) -> None: ...

    def layer(self, index: int, x_BTD: Tensor, upstream_BTD: Tensor, routing_BTK: Tensor | None = None) -> Gradients:
        """The gradients of one layer; `routing_BTK`: the experts that a port's tokens go to."""

    def embed(self, upstream_BTD: Tensor) -> Gradients: ...
    def head(self, x_BND: Tensor, targets_N: Tensor) -> HeadPass: ...

    def release(self) -> None:
        """Lets go of the weights of the unit that was run."""


class PortBackward:
    """porter's own model. Nodes come in the order of the forward pass."""

    def __init__(self, decoder: Decoder, dtype: torch.dtype, device: torch.device) -> None:
        self.decoder, self.dtype, self.device = decoder, dtype, device

    def start(self, ids_BT: Tensor) -> None:
        check_length(self.decoder.blueprint, ids_BT.shape[1])
        self._ids_BT = ids_BT.to(self.device)
        self._positions = Positions(0, ids_BT.shape[1], self.device)

    def layer(self, index: int, x_BTD: Tensor, upstream_BTD: Tensor, routing_BTK: Tensor | None = None) -> Gradients:
        nodes: Nodes = {INPUT: self._leaf(x_BTD)}
        unit = self.decoder.loader.layer(index)
        parameters = {name: each for name, each in unit.named_parameters() if each.requires_grad}
        with self._running():
            out_BTD = self.decoder.layer(
                index, nodes[INPUT], self._positions, tap=nodes.__setitem__, routing_BTK=routing_BTK
            )
            del nodes["resid_post"]
            nodes.pop(CHOICE, None)
            return _gradients(out_BTD, nodes, parameters, upstream_BTD)

    def embed(self, upstream_BTD: Tensor) -> Gradients:
        unit, at_BT = self.decoder.loader.embed_for(self._ids_BT)
        with self._running():
            out_BTD = unit(at_BT, self._positions)
            return _gradients(out_BTD, {}, dict(unit.named_parameters()), upstream_BTD)

    def head(self, x_BND: Tensor, targets_N: Tensor) -> HeadPass:
        unit, nodes = self.decoder.loader.head(), {INPUT: self._leaf(x_BND)}
        linear: nn.Module = unit.head
        assert isinstance(linear, ChunkedLinear)
        cut = CutHead(self._running, lambda: _chunks(linear))
        with self._running(), replaced(linear, cut):
            logits_BNV = unit(nodes[INPUT], nodes.__setitem__)
            del nodes["logits"]
            loss = next_token_loss(logits_BNV, targets_N)
        parameters = dict(unit.named_parameters())
        return HeadPass(cut, loss, logits_BNV, lambda given: _gradients(cut.given, nodes, parameters, given))

    def release(self) -> None:
        self.decoder.loader.release()

    def _leaf(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.to(self.device, self.dtype).detach().requires_grad_()

    def _running(self) -> AbstractContextManager[object]:
        return quick_matmul(self.dtype, self.device)


class HfLane:
    """HF's model, the gradients of the checkpoint's tensors under porter's names.

    Args:
        ledger: which tensors of the checkpoint fill each parameter.
    """

    def __init__(self, backward: HfBackward, ledger: Ledger) -> None:
        self.backward, self.dtype, self.ledger = backward, backward.dtype, ledger

    def start(self, ids_BT: Tensor) -> None:
        self.backward.start(ids_BT)

    def layer(self, index: int, x_BTD: Tensor, upstream_BTD: Tensor, routing_BTK: Tensor | None = None) -> Gradients:
        return self._named(self.backward.layer(index, x_BTD, upstream_BTD, routing_BTK), f"layers.{index}.")

    def embed(self, upstream_BTD: Tensor) -> Gradients:
        return self._named(self.backward.embed(upstream_BTD), "")

    def head(self, x_BND: Tensor, targets_N: Tensor) -> HeadPass:
        return self.backward.head(x_BND, targets_N).renamed(lambda found: self._named(found, ""))

    def release(self) -> None:
        self.backward.release()

    def _named(self, found: Gradients, prefix: str) -> Gradients:
        entries = self.ledger.entries.items()
        own = {name.removeprefix(prefix): entry for name, entry in entries if name.startswith(prefix)}
        return Gradients(
            found.nodes,
            {name: _whole(entry, found) for name, entry in own.items() if entry.source in found.parameters},
            {name: found.unknown[entry.source] for name, entry in own.items() if entry.source in found.unknown},
            found.routing_BTK,
        )


def _whole(entry: Entry, found: Gradients) -> Tensor | None:
    """The gradient of a parameter, from those of the tensors that fill it."""
    parts = [found.parameters[source] for source in entry.sources]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if len(parts) == 1:
        return known[0] if known[0].shape != entry.shape else known[0].view(entry.stored)  # of a table, some rows
    return torch.stack(known).view(entry.stored)


def _gradients(
    out: Tensor, nodes: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter], upstream: Tensor
) -> Gradients:
    found = differentiate(out, [*nodes.values(), *parameters.values()], upstream)
    return Gradients(
        dict(zip(nodes, found, strict=False)), dict(zip(parameters, found[len(nodes) :], strict=True))
    )  # fmt: skip


def _chunks(linear: ChunkedLinear) -> Iterator[Chunk]:
    for weight, bias in linear.chunks():
        parameters = {"head.weight": nn.Parameter(weight)}
        if bias is not None:
            parameters["head.bias"] = nn.Parameter(bias)
        yield parameters, partial(_product, parameters)


def _product(parameters: Mapping[str, nn.Parameter], x: Tensor) -> Tensor:
    return F.linear(x, parameters["head.weight"], parameters.get("head.bias"))
