"""Runs a unit of a spec with what the code of a port is thought to do otherwise."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from porter.comparison.lanes import Nodes, PortLane
from porter.comparison.one_unit import Captured, place_of
from porter.explanation.code_changes import Again, At, CodeChange, Edit, Instead, Node, Rotation, Sight, Skipped, Sum
from porter.models.decoder import Decoder, Streamed
from porter.models.layers import Head, Layer
from porter.models.ops import Ops, make_ops
from porter.models.positions import Positions
from porter.specs.blueprint import Blueprint
from porter.specs.rope import Rope
from porter.specs.schema import Dims
from porter.weights.reader import WeightReader

EditT = TypeVar("EditT")


@torch.no_grad()
def run_with_code(
    unit: str, blueprint: Blueprint, reader: WeightReader, captured: Captured, code: Sequence[CodeChange], *,
    dtype: torch.dtype, device: torch.device,
) -> Nodes:  # fmt: skip
    """The nodes of one unit, as run_unit has them, with changes of its code."""
    edits = [edit for change in code for edit in change.edits]
    ops = make_ops("reference")
    for rotation in _of(edits, Rotation):
        ops = _rotating(ops, rotation, blueprint.dims, captured.ids_BT.shape[1], device)
    decoder = Decoder(blueprint, _Edited(blueprint, ops, reader, dtype, device, edits))
    lane = _Lane(decoder, dtype, device, next((each.ahead for each in _of(edits, Sight)), 0))
    lane.start(captured.ids_BT)
    x_BTD = None if unit == "embed" else captured.input_of(unit, blueprint.dims.layers).to(device, dtype)
    if x_BTD is None:
        nodes = lane.embed()
    else:
        nodes = lane.head(x_BTD) if unit == "head" else lane.layer(place_of(unit, blueprint.dims.layers), x_BTD)
    for at in _of(edits, At):
        if at.node in nodes:
            nodes[at.node] = at.act(nodes[at.node])
    for node in _of(edits, Node):
        if node.name in nodes:
            nodes[node.name] = node.make(nodes, x_BTD)
    return nodes


def _of(edits: Sequence[Edit], kind: type[EditT]) -> list[EditT]:
    return [each for each in edits if isinstance(each, kind)]


class _Edited(Streamed):
    """A loader whose units have hooks."""

    def __init__(
        self, blueprint: Blueprint, ops: Ops, reader: WeightReader, dtype: torch.dtype, device: torch.device,
        edits: Sequence[Edit],
    ) -> None:  # fmt: skip
        super().__init__(blueprint, ops, reader, dtype, device)
        self.edits = edits

    def layer(self, index: int) -> Layer:
        index = next((each.layer for each in _of(self.edits, Instead)), index)
        return self._installed(super().layer(index))

    def head(self) -> Head:
        return self._installed(super().head())

    def _installed(self, unit: "UnitT") -> "UnitT":
        present = {name for name, _ in unit.named_modules()}
        for edit in self.edits:
            if isinstance(edit, At | Skipped | Again | Sum) and edit.module in present:  # else a spec has it no more
                edit.install(unit)
        return unit


UnitT = TypeVar("UnitT", bound=nn.Module)


class _Lane(PortLane):
    """A lane whose tokens see other keys."""

    def __init__(self, decoder: Decoder, dtype: torch.dtype, device: torch.device, ahead: int) -> None:
        super().__init__(decoder, dtype, device)
        self.ahead = ahead

    def start(self, ids_BT: Tensor) -> None:
        super().start(ids_BT)
        if self.ahead:
            self._positions = _Seeing(ids_BT.shape[1], self.device, self.ahead)


class _Seeing(Positions):
    """Positions at which a token sees more keys than those before it, or fewer."""

    def __init__(self, length: int, device: torch.device, ahead: int) -> None:
        super().__init__(0, length, device)
        self.ahead = ahead

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        distance_1TS = self.ids_BT[:, :, None] - self.ids_BT[:, None, :]
        visible_1TS = distance_1TS >= -self.ahead
        if window is not None:
            visible_1TS &= distance_1TS < window
        zero = torch.zeros((), dtype=dtype, device=self.device)
        return torch.where(visible_1TS, zero, torch.finfo(dtype).min)[:, None]


def _rotating(ops: Ops, edit: Rotation, dims: Dims, length: int, device: torch.device) -> Ops:
    """Ops that rotate queries and keys as the edit says."""
    later = Positions(0, length, device)
    later.ids_BT = later.ids_BT + edit.shift

    def rope(q_BHTK: Tensor, k_BGTK: Tensor, cos: Tensor, sin: Tensor, spec: Rope) -> tuple[Tensor, Tensor]:
        tables_k = later.tables(spec, dims, q_BHTK.dtype) if edit.shift else (cos, sin)
        width = 2 * cos.shape[-1]

        def rotated(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
            if not edit.last or width == x.shape[-1]:
                return ops.rope(x, x, *tables, spec)[0]
            moved = torch.roll(x, width, -1)
            return torch.roll(ops.rope(moved, moved, *tables, spec)[0], -width, -1)

        q = q_BHTK if edit.only == "k" else rotated(q_BHTK, (cos, sin))
        return q, k_BGTK if edit.only == "q" else rotated(k_BGTK, tables_k)

    return replace(ops, rope=rope)
