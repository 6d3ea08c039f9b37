"""The sides of a comparison, each run a unit at a time: embedding, one layer, head."""

from typing import Protocol

import torch
from torch import Tensor

from porter.models.decoder import Decoder, check_length
from porter.models.matmul import quick_matmul
from porter.models.moe import CHOICE, Routed
from porter.models.positions import Positions

Nodes = dict[str, Tensor]


class Lane(Protocol):
    """Something with the nodes of a decoder. Names inside a layer come without layers.{i}.

    Attributes:
        routing: of the layer last run; None where it has no experts, or does not tell.
    """

    dtype: torch.dtype
    device: torch.device
    routing: Routed | None

    def start(self, ids_BT: Tensor) -> None: ...
    def embed(self) -> Nodes: ...

    def layer(self, index: int, x_BTD: Tensor, routing_BTK: Tensor | None = None) -> Nodes:
        """The nodes of a layer.

        Args:
            routing_BTK: the experts that a port's tokens go to; golden's go where its reference sends them.
        """

    def output(self, index: int, x_BTD: Tensor) -> Tensor:
        """The layer's resid_post alone."""

    def head(self, x_BTD: Tensor) -> Nodes: ...

    def release(self) -> None:
        """Lets go of the weights of the unit that was run; called between units."""


class PortLane:
    """porter's own model as a lane."""

    def __init__(self, decoder: Decoder, dtype: torch.dtype, device: torch.device) -> None:
        self.decoder, self.dtype, self.device = decoder, dtype, device
        self.routing: Routed | None = None

    def start(self, ids_BT: Tensor) -> None:
        check_length(self.decoder.blueprint, ids_BT.shape[1])
        self._ids_BT = ids_BT.to(self.device)
        self._positions = Positions(0, ids_BT.shape[1], self.device)

    @torch.no_grad()
    def embed(self) -> Nodes:
        nodes: Nodes = {}
        self.decoder.embed(self._ids_BT, self._positions, nodes.__setitem__)
        return nodes

    @torch.no_grad()
    def layer(self, index: int, x_BTD: Tensor, routing_BTK: Tensor | None = None) -> Nodes:
        nodes: Nodes = {}
        with quick_matmul(self.dtype, self.device):
            self.decoder.layer(
                index, x_BTD.to(self.device), self._positions, tap=nodes.__setitem__, routing_BTK=routing_BTK
            )
        own = nodes.pop(CHOICE, None)
        self.routing = None if own is None else Routed(own, own if routing_BTK is None else routing_BTK)
        return nodes

    def output(self, index: int, x_BTD: Tensor) -> Tensor:
        return self.layer(index, x_BTD)["resid_post"]

    @torch.no_grad()
    def head(self, x_BTD: Tensor) -> Nodes:
        nodes: Nodes = {}
        with quick_matmul(self.dtype, self.device):
            self.decoder.head(x_BTD.to(self.device), tap=nodes.__setitem__)
        return nodes

    def release(self) -> None:
        self.decoder.loader.release()
