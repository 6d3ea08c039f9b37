"""One unit of a port, a layer say, run alone on the input that golden gave it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from porter.comparison.lanes import Nodes, PortLane
from porter.models.decoder import Decoder, Streamed
from porter.models.ops import OpsName, make_ops
from porter.specs.blueprint import Blueprint
from porter.weights.reader import WeightReader

_CHUNK = 16  # tokens of the head that are looked at
ALL_STAGES = frozenset(("semantics", "precision", "exact"))


@dataclass(frozen=True)
class Captured:
    """What was compared, on which inputs.

    Attributes:
        ids_BT: [1, T].
        inputs: of the units that were compared: layer -> [1, T, D]; the number of layers stands for the head.
        embedding: whether the embedding was compared.
        by: semantics: the float32 model against golden; precision: the port's dtype; exact: bits in that dtype.
    """

    ids_BT: Tensor
    inputs: Mapping[int, Tensor]
    embedding: bool = True
    by: frozenset[str] = ALL_STAGES

    def was_compared(self, unit: str, num_layers: int) -> bool:
        return self.embedding if unit == "embed" else place_of(unit, num_layers) in self.inputs

    def input_of(self, unit: str, num_layers: int) -> Tensor:
        """[1, T, D], what a layer is given, or the last tokens of it for the head."""
        x_BTD = self.inputs[place_of(unit, num_layers)]
        return x_BTD[:, -_CHUNK:] if unit == "head" else x_BTD


def place_of(unit: str, num_layers: int) -> int:
    """The number that stands for a layer or the head."""
    return num_layers if unit == "head" else int(unit.removeprefix("layers."))


@torch.no_grad()
def run_unit(
    unit: str,
    blueprint: Blueprint,
    reader: WeightReader,
    captured: Captured,
    *,
    dtype: torch.dtype,
    device: torch.device,
    ops: OpsName = "reference",
) -> Nodes:
    """The nodes of one unit of a blueprint, fed what was captured for it, rounded to the dtype."""
    lane = PortLane(Decoder(blueprint, Streamed(blueprint, make_ops(ops), reader, dtype, device)), dtype, device)
    lane.start(captured.ids_BT)
    if unit == "embed":
        return lane.embed()
    x_BTD = captured.input_of(unit, blueprint.dims.layers).to(device, dtype)
    return lane.head(x_BTD) if unit == "head" else lane.layer(place_of(unit, blueprint.dims.layers), x_BTD)
