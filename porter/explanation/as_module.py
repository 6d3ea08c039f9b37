"""A port of porter's own as a module of another make: a forward pass and a map of its nodes, and no spec to be seen."""

from typing import Any

import torch
from torch import Tensor, nn

from porter.models.build import Build
from porter.models.decoder import Resident
from porter.models.layers import Layer
from porter.models.ops import make_ops
from porter.models.positions import Positions
from porter.references.user_module.map_file import INSIDE

_SHOWN = (*INSIDE, "moe.router", "moe.out")


def make_module(port: Build) -> nn.Module:
    """The port in plain torch, whole, with its weights in float32; it may be turned to another dtype."""
    units = Resident(port.blueprint, make_ops("reference"), port.reader(), torch.float32, torch.device("cpu"))
    return _Model(units).eval()


def node_map() -> dict[str, Any]:
    """What a map file of such a module would say."""
    inside = {node: f"seen.{_key(node)}" for node in _SHOWN}
    return {"layers": "layers.{i}", "nodes": {**inside, "final.norm": "seen_final_norm"}}


def _key(node: str) -> str:
    return node.replace(".", "_")


class _Block(nn.Module):
    """A layer; each of its nodes goes through a module of its own, where a map finds it."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer
        self.seen = nn.ModuleDict({_key(node): nn.Identity() for node in _SHOWN})

    def forward(self, x_BTD: Tensor, positions: Positions) -> Tensor:
        def tap(node: str, value: Tensor) -> None:
            if _key(node) in self.seen:
                self.seen[_key(node)](value)

        out_BTD: Tensor = self.layer(x_BTD, positions, None, tap)
        return out_BTD


class _Model(nn.Module):
    def __init__(self, units: Resident) -> None:
        super().__init__()
        self.embedding, self.head = units.embed(), units.head()
        self.layers = nn.ModuleList(_Block(layer) for layer in units.layers if isinstance(layer, Layer))
        self.seen_final_norm = nn.Identity()

    def forward(self, ids_BT: Tensor) -> Tensor:
        positions = Positions(0, ids_BT.shape[1], ids_BT.device)
        x_BTD = self.embedding(ids_BT, positions)
        for layer in self.layers:
            x_BTD = layer(x_BTD, positions)

        def tap(node: str, value: Tensor) -> None:
            if node == "final.norm":
                self.seen_final_norm(value)

        logits_BTV: Tensor = self.head(x_BTD, tap)
        return logits_BTV
