"""The units of a model, one after the other, with what each is judged by: of a spec, or of a port of another make."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from porter.comparison.dump_lane import DumpLane, shaped_as
from porter.comparison.lanes import Lane, Nodes
from porter.comparison.one_unit import Captured
from porter.explanation.search import Search
from porter.explanation.trial import By, ForeignUnit, Unit, relative_errors
from porter.models.choices import pick_device
from porter.references.hf import HfReference
from porter.references.user_module.lane import ModuleLane
from porter.specs.blueprint import Blueprint
from porter.specs.ledger import misfits
from porter.weights.reader import SharedTensors, WeightReader, open_weights

_MOST_BYTES = 2**31
_HEAD_TOKENS = 16  # of the head, which is as wide as the vocabulary, the last tokens alone


class SpecWalk:
    """The reference in one dtype, through embedding, layers and head.

    For semantics golden runs beside it, a layer of each kind is looked at, and behind the last of these the head
    follows: a layer passed through would tell nothing, and each unit is judged on what golden gives it, be it early.
    """

    def __init__(self, search: Search, folder: Path, ids_BT: Tensor, by: By, dtype: torch.dtype) -> None:
        self.port, self.by, self.dtype, self.ids_BT = search.resolved.blueprint, by, dtype, ids_BT
        self.device = torch.device(pick_device(search.build.device))
        right = open_weights(self.port, folder)
        self.reader: WeightReader = replace(right, shared=SharedTensors(right.checkpoint))
        blueprint = search.build.reference_blueprint
        if misfits(blueprint, {name: info.shape for name, info in right.checkpoint.tensors.items()}):
            blueprint = self.port  # a family of one's own, whose file has the fault
        self.reference = HfReference(blueprint, folder, dtype, self.device, tensors=self.reader.shared)
        self.golden = self.reference.golden_of(folder) if by == "semantics" else None
        self.lanes = [lane for lane in (self.reference, self.golden) if lane is not None]
        self.kinds = _kinds(self.port, blueprint)

    @property
    def fits_in_memory(self) -> bool:
        """Whether the nodes of all units that are looked at may be held at once."""
        units = len(self.kinds) + 2 if self.by == "semantics" else self.port.dims.layers
        return fits_in_memory(self.port, self.ids_BT.shape[1], units)

    def units(self) -> Iterator[tuple[str, Unit | None]]:
        """Each unit by its name, with what is judged there; None where it is only passed through."""
        stream, num_layers = self.golden or self.reference, self.port.dims.layers
        for lane in self.lanes:
            lane.start(self.ids_BT)
        nodes = [lane.embed() for lane in self.lanes]
        yield "embed", self._unit("embed", {}, nodes)
        x_BTD = nodes[-1]["embed.out"]
        for index in range(num_layers):
            if self.by == "semantics" and index > max(self.kinds):
                yield f"layers.{index}", None
                continue
            self._release()
            given = x_BTD.to(self.dtype)
            after = stream.layer(index, given.to(stream.dtype))
            x_BTD, unit = after["resid_post"], None
            if self.by == "exact" or index in self.kinds:
                both = [after] if self.golden is None else [self.reference.layer(index, given), after]
                unit = self._unit(f"layers.{index}", {index: given}, both)
            yield f"layers.{index}", unit
        self._release()
        given = x_BTD.to(self.dtype)
        nodes = [lane.head(given[:, -_HEAD_TOKENS:].to(lane.dtype)) for lane in self.lanes]
        yield "head", self._unit("head", {num_layers: given}, nodes)
        self._release()

    def _unit(self, name: str, inputs: dict[int, Tensor], nodes: list[Nodes]) -> Unit:
        captured = Captured(self.ids_BT, inputs)
        golden = nodes[1] if self.golden is not None else None
        alike = self.kinds.get(next(iter(inputs), -1), ()) if self.by == "semantics" else ()
        return Unit(name, self.by, self.dtype, self.device, captured, self.reader, nodes[0], golden, alike=alike)

    def _release(self) -> None:
        for lane in reversed(self.lanes):
            lane.release()


def _kinds(port: Blueprint, reference: Blueprint) -> dict[int, tuple[int, ...]]:
    """The first layer of each kind with all of them; a layer's kind is what the port has there, and the spec had."""
    alike: dict[tuple[str, str], list[int]] = {}
    for index, blocks in enumerate(zip(port.blocks, reference.blocks, strict=True)):
        alike.setdefault((blocks[0].model_dump_json(), blocks[1].model_dump_json()), []).append(index)
    return {layers[0]: tuple(layers) for layers in alike.values()}


class ForeignWalk:
    """A module or a dump beside the reference: a module is fed golden's hidden states, a dump has its own."""

    def __init__(self, search: Search, folder: Path, ids_BT: Tensor, port: Lane) -> None:
        self.ids_BT, self.port, self.dtype, self.device = ids_BT, port, port.dtype, port.device
        self.by: By = "semantics" if port.dtype == torch.float32 else "precision"
        blueprint = search.build.reference_blueprint
        right = open_weights(blueprint, folder)
        self.reader: WeightReader = replace(right, shared=SharedTensors(right.checkpoint))
        self.reference = HfReference(blueprint, folder, self.dtype, self.device, tensors=self.reader.shared)
        self.golden = self.reference.golden_of(folder)
        self.num_layers = blueprint.dims.layers
        self.fits_in_memory = fits_in_memory(blueprint, ids_BT.shape[1], self.num_layers + 2)

    def units(self) -> Iterator[tuple[str, ForeignUnit | None]]:
        """Each unit by its name; None where the port does not show what it was given."""
        for lane in (self.reference, self.golden, self.port):
            lane.start(self.ids_BT)
        nodes = [lane.embed() for lane in (self.reference, self.golden)]
        yield "embed", self._unit("embed", {}, self.port.embed(), nodes[0], nodes[1])
        x_BTD = nodes[1]["embed.out"]
        for index in range(self.num_layers):
            self._release()
            given = self._given(index, x_BTD)
            if not isinstance(self.port, DumpLane):
                x_BTD = self.golden.output(index, x_BTD.to(self.dtype).to(torch.float64))
            unit = None
            if given is not None:
                golden = self.golden.layer(index, given.to(torch.float64))
                reference, port = self.reference.layer(index, given), self.port.layer(index, given)
                unit = self._unit(f"layers.{index}", {index: given}, port, reference, golden)
            yield f"layers.{index}", unit
        self._release()
        yield "head", self._head(self._given(self.num_layers, x_BTD))
        self._release()

    def _given(self, index: int, x_BTD: Tensor) -> Tensor | None:
        own = self.port.entry(index) if isinstance(self.port, DumpLane) else x_BTD
        return None if own is None else own.to(self.dtype)

    def _head(self, given: Tensor | None) -> ForeignUnit | None:
        if given is None:
            return None
        at = torch.arange(given.shape[1])
        if isinstance(self.port, DumpLane) and (held := self.port.dump.manifest.at.get("logits")) is not None:
            at = torch.tensor(held)
        at = at[-_HEAD_TOKENS:]
        given = given[:, at]
        if isinstance(self.port, DumpLane):
            port = {node: self.port.tokens_of(node, value, at) for node, value in self.port.head(given).items()}
        else:
            port = self.port.head(given)
        reference, golden = self.reference.head(given), self.golden.head(given.to(torch.float64))
        unit = self._unit("head", {self.num_layers: given}, port, reference, golden)
        if isinstance(self.port, ModuleLane):
            own = {name: value.detach() for name, value in self.port.module.named_parameters() if value.ndim == 2}
            return replace(unit, tables=own)
        return unit

    def _unit(self, name: str, inputs: dict[int, Tensor], port: Nodes, reference: Nodes, golden: Nodes) -> ForeignUnit:
        shown = [node for node in golden if node in port and node in reference]
        shaped = {node: _as_golden(shaped_as(self.port, node, port[node], golden[node]), golden[node])
                  for node in shown}  # fmt: skip
        floors = {node: relative_errors(reference[node], golden[node]) for node in shown}
        captured = Captured(self.ids_BT, inputs)
        return ForeignUnit(name, self.by, self.dtype, self.device, captured, self.reader, shaped, floors)

    def _release(self) -> None:
        for lane in (self.port, self.golden, self.reference):
            lane.release()


def _as_golden(value: Tensor, golden: Tensor) -> Tensor:
    """A module's node in golden's shape: heads flattened, or taken apart."""
    alike = value.shape[:2] == golden.shape[:2] and value.numel() == golden.numel()
    return value.reshape(golden.shape) if alike else value


def fits_in_memory(blueprint: Blueprint, tokens: int, units: int) -> bool:
    """Whether the nodes of so many units may be held at once."""
    dims = blueprint.dims
    wide = 8 * dims.hidden + 4 * dims.ffn + 4 * (dims.heads + 2 * dims.kv_heads) * dims.head_dim
    return units * tokens * wide * 12 < _MOST_BYTES  # 4 of float32 and 8 of float64
