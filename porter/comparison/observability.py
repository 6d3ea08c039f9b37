"""Which axes could this run have shown? Each is changed on captured inputs, and the nodes of one unit are compared.

An axis is seen by `semantics` when the change moves a node of the float32 model past its FAIL threshold, by `exact`
when it moves a bit in the port's dtype; otherwise this prompt and these weights are blind to it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from porter.comparison.measure import GAUGES
from porter.comparison.report import Axis
from porter.comparison.verdicts import FLOORS, THRESHOLDS
from porter.models.decoder import Decoder, Streamed
from porter.models.matmul import quick_matmul
from porter.models.ops import make_ops
from porter.models.positions import Positions
from porter.specs.axes import Change, changes
from porter.specs.blueprint import Blueprint
from porter.weights.reader import WeightReader

Nodes = dict[str, Tensor]
_CHUNK = 16  # tokens of the head that are looked at


@dataclass(frozen=True)
class Captured:
    """Inputs that golden saw: layer -> [1, T, D]; the number of layers stands for the head."""

    ids_BT: Tensor
    inputs: Mapping[int, Tensor]


def observe_axes(
    blueprint: Blueprint, reader: WeightReader, captured: Captured, dtype: torch.dtype, device: torch.device
) -> list[Axis]:
    """Every axis of the blueprint with where a change of it shows."""
    units = _Units(blueprint, reader, captured, device)
    return [_observe(change, units, dtype) for change in changes(blueprint) if units.can_run(change)]


class _Units:
    """Runs one unit of the blueprint, or of a changed one, in a dtype; unchanged runs are kept."""

    def __init__(self, blueprint: Blueprint, reader: WeightReader, captured: Captured, device: torch.device) -> None:
        self.blueprint, self.reader, self.captured, self.device = blueprint, reader, captured, device
        self._base: dict[tuple[str, torch.dtype], Nodes] = {}

    def can_run(self, change: Change) -> bool:
        return self._unit(change).startswith("embed") or self._input(change) in self.captured.inputs

    def base(self, change: Change, dtype: torch.dtype) -> Nodes:
        key = (self._unit(change), dtype)
        if key not in self._base:
            self._base[key] = self._run(change, self.blueprint, dtype)
        return self._base[key]

    def changed(self, change: Change, dtype: torch.dtype) -> Nodes:
        return self._run(change, change.blueprint, dtype)

    def _unit(self, change: Change) -> str:
        if change.path.startswith("embed"):
            return "embed"
        return "head" if change.layer is None else f"layers.{change.layer}"

    def _input(self, change: Change) -> int:
        return self.blueprint.dims.layers if change.layer is None else change.layer

    @torch.no_grad()
    def _run(self, change: Change, blueprint: Blueprint, dtype: torch.dtype) -> Nodes:
        nodes: Nodes = {}
        loader = Streamed(blueprint, make_ops("reference"), self.reader, dtype, self.device)
        decoder, unit = Decoder(blueprint, loader), self._unit(change)
        positions = Positions(0, self.captured.ids_BT.shape[1], self.device)
        if unit == "embed":
            decoder.embed(self.captured.ids_BT.to(self.device), positions, nodes.__setitem__)
            return nodes
        x_BTD = self.captured.inputs[self._input(change)].to(self.device, dtype)
        with quick_matmul(dtype, self.device):
            if change.layer is None:
                decoder.head(x_BTD[:, -_CHUNK:], nodes.__setitem__)
            else:
                decoder.layer(change.layer, x_BTD, positions, tap=nodes.__setitem__)
        return nodes


def _observe(change: Change, units: _Units, dtype: torch.dtype) -> Axis:
    found: tuple[str, str] | None = None
    if not change.rounding:
        limit = THRESHOLDS["semantics"]["float32"]["rho"][1] * FLOORS["float32"]
        found = _first(change, units, torch.float32, "semantics", lambda a, b: _relative(a, b) > limit)
    if found is None:
        found = _first(change, units, dtype, "exact", lambda a, b: not torch.equal(a, b))
    return Axis(
        path=change.path, value=_short(change.value), tried=_short(change.tried),
        seen=found[0] if found else None, node=found[1] if found else None,  # type: ignore[arg-type]
        reason="" if found else _blindness(change, units.captured.ids_BT.shape[1], dtype),
    )  # fmt: skip


def _first(
    change: Change, units: _Units, dtype: torch.dtype, stage: str, differs: Callable[[Tensor, Tensor], bool]
) -> tuple[str, str] | None:
    base, changed = units.base(change, dtype), units.changed(change, dtype)
    prefix = f"layers.{change.layer}." if change.layer is not None else ""
    for node in base:
        if stage == "semantics" and node in GAUGES:
            continue
        if node in changed and differs(changed[node], base[node]):
            return stage, prefix + node
    return None


def _relative(changed: Tensor, base: Tensor) -> float:
    size = float(torch.linalg.vector_norm(base))
    return float(torch.linalg.vector_norm(changed - base)) / size if size else 0.0


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _blindness(change: Change, length: int, dtype: torch.dtype) -> str:
    """Why a change stayed hidden, as far as it can be told."""
    name = change.path.rpartition(".")[2]
    if name == "window" and length <= int(change.value):
        return f"{length} tokens do not pass the window of {change.value}"
    if name == "pos_dtype":
        return f"positions up to {length - 1} are exact in {str(dtype).removeprefix('torch.')}"
    if name.endswith("dtype") and dtype == torch.float32:
        return "float32 rounds alike"
    if length == 1 and "rope" in change.path:
        return "one token at position 0 is not rotated"
    return "no bit moved on these weights and this prompt"
