"""HF's nodes of every unit of a checkpoint, on its own hidden states, and how far a spec's agree with them."""

from dataclasses import dataclass
from pathlib import Path

import torch

from porter.comparison.names import GAUGES
from porter.comparison.one_unit import Captured
from porter.errors import PorterError
from porter.explanation.trial import Judged, Unit
from porter.references.hf import HfReference
from porter.specs.blueprint import Blueprint
from porter.specs.ledger import make_ledger
from porter.weights.reader import SharedTensors, WeightReader
from porter.weights.safetensors_files import open_checkpoint

DTYPES = (torch.float32, torch.bfloat16)
_HEAD_TOKENS = 16


@dataclass(frozen=True)
class Place:
    """Where a spec first differs from HF.

    Attributes:
        position: nodes before it that agree, over all units of both dtypes in order.
    """

    dtype: str
    unit: str
    node: str
    position: int
    residual: float


class Probe:
    """What HF computes, unit by unit; the inputs of a unit are HF's own."""

    def __init__(self, blueprint: Blueprint, folder: Path, ids_BT: torch.Tensor) -> None:
        self.ids_BT, self.num_layers = ids_BT, blueprint.dims.layers
        self.shared = SharedTensors(open_checkpoint(folder))
        self.shapes = {name: info.shape for name, info in self.shared.checkpoint.tensors.items()}
        self.units: list[Unit] = []
        device = torch.device("cpu")
        reader = self.reader(blueprint)
        for dtype in DTYPES:
            reference = HfReference(blueprint, folder, dtype, device, tensors=self.shared)
            reference.start(ids_BT)
            nodes = reference.embed()
            self.units.append(Unit("embed", "exact", dtype, device, Captured(ids_BT, {}), reader, nodes, None))
            x_BTD = nodes["embed.out"]
            for index in range(self.num_layers):
                nodes = reference.layer(index, x_BTD)
                captured = Captured(ids_BT, {index: x_BTD})
                self.units.append(Unit(f"layers.{index}", "exact", dtype, device, captured, reader, nodes, None))
                x_BTD = nodes["resid_post"]
            given = x_BTD[:, -_HEAD_TOKENS:]
            captured = Captured(ids_BT, {self.num_layers: x_BTD})
            self.units.append(Unit("head", "exact", dtype, device, captured, reader, reference.head(given), None))

    def reader(self, blueprint: Blueprint) -> WeightReader:
        """The checkpoint read by a blueprint's rules.   Raises WeightError: it does not fit."""
        return WeightReader(self.shared.checkpoint, make_ledger(blueprint, self.shapes), self.shared)

    def judge(self, index: int, blueprint: Blueprint) -> list[Judged] | None:
        """The nodes of one unit; None where the spec cannot be run in it."""
        unit = self.units[index]
        try:
            reader = self.reader(blueprint)
            return Unit(unit.name, unit.by, unit.dtype, unit.device, unit.captured, reader, unit.reference, None).judge(
                blueprint
            )
        except (
            PorterError,
            RuntimeError,
            ValueError,
            IndexError,
            KeyError,
            AttributeError,
            AssertionError,
        ):  # a wrong spec may not even run
            return None

    def first_difference(self, blueprint: Blueprint, start: int = 0) -> Place | None:
        """The first node that differs; None: every unit's output is bit-equal."""
        for index in range(start, len(self.units)):
            place = self.difference_in(index, blueprint)
            if place is not None:
                return place
        return None

    def difference_in(self, index: int, blueprint: Blueprint) -> Place | None:
        """The first node of one unit that differs, where its output does."""
        judged = self.judge(index, blueprint)
        unit = self.units[index]
        called = str(unit.dtype).removeprefix("torch.")
        if judged is None:
            return Place(called, unit.name, "", index * 100, float("inf"))
        if judged and judged[-1].exact:
            return None
        order = list(unit.reference)  # a spec may lack nodes that HF shows, q and k after a rotation say
        exact = {unit.short_name(node) for node in judged if node.exact}
        for node in judged:
            if node.fails and not _is_excused(unit.short_name(node), exact):
                name = unit.short_name(node)
                return Place(called, unit.name, name, index * 100 + order.index(name), node.residual)
        return None


def _is_excused(node: str, exact: set[str]) -> bool:
    """A gauge may be read elsewhere than HF shows it (OPT's scaled queries): what is made of it decides."""
    return node in GAUGES and ("attn.ctx" if node.startswith("attn.") else "mlp.act") in exact
