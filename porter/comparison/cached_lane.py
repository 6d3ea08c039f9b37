"""A side that is read from a golden cache where that holds it; HF's model is opened, and asked, only where not."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from porter.comparison.lanes import Lane, Nodes
from porter.comparison.stages import Selection
from porter.models.moe import Routed
from porter.references.golden_cache import GoldenCache, Kept, Units
from porter.references.hf import HfReference
from porter.specs.blueprint import Blueprint
from porter.weights.reader import SharedTensors


class ReferenceLane(Lane, Protocol):
    """A lane that can say what it is."""

    def describe(self) -> str: ...


_ROUTING = "routing."
OpenUnits = Callable[[Tensor], Units]  # ids_BT -> the units of that prompt


@dataclass(frozen=True)
class Models:
    """HF's model of a folder in one dtype, and golden of that dtype, opened when they are first asked for."""

    blueprint: Blueprint
    folder: Path
    dtype: torch.dtype
    device: torch.device
    tensors: SharedTensors

    @cached_property
    def reference(self) -> HfReference:
        return HfReference(self.blueprint, self.folder, self.dtype, self.device, tensors=self.tensors)

    @cached_property
    def golden(self) -> HfReference:
        return self.reference.golden_of(self.folder)


class CachedLane:
    """One side of a stage, kept between runs."""

    def __init__(
        self, open_units: OpenUnits, open_model: Callable[[], HfReference], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.dtype, self.device = dtype, device
        self._open_units, self._open_model = open_units, open_model
        self._model: HfReference | None = None
        self._reference = ""
        self.routing: Routed | None = None

    def start(self, ids_BT: Tensor) -> None:
        self._ids_BT, self._units = ids_BT, self._open_units(ids_BT)
        self._started = False

    def embed(self) -> Nodes:
        return self._recall("embed", self._ids_BT, lambda model: model.embed())

    def layer(self, index: int, x_BTD: Tensor, routing_BTK: Tensor | None = None) -> Nodes:
        def run(model: HfReference) -> Nodes:
            nodes = model.layer(index, x_BTD)
            return nodes if model.routing is None else {**nodes, **_packed(model.routing)}

        nodes = self._recall(f"layers.{index}", x_BTD, run)
        routing = {name: nodes.pop(f"{_ROUTING}{name}", None) for name in ("own", "taken", "scores")}
        own, taken = routing["own"], routing["taken"]
        self.routing = None if own is None or taken is None else Routed(own, taken, routing["scores"])
        return nodes

    def output(self, index: int, x_BTD: Tensor) -> Tensor:
        def run(model: HfReference) -> Nodes:
            return {"resid_post": model.output(index, x_BTD)}

        return self._recall(output_unit(index), x_BTD, run)["resid_post"]

    def head(self, x_BTD: Tensor) -> Nodes:
        return self._recall("head", x_BTD, lambda model: model.head(x_BTD))

    def release(self) -> None:
        if self._model is not None:
            self._model.release()

    def describe(self) -> str:
        """What the reference is called in a report."""
        return self._reference or self._open_model().describe()

    def _recall(self, unit: str, given: Tensor, run: Callable[[HfReference], Nodes]) -> Nodes:
        kept = self._units.recall(unit, given)
        if kept is None:
            model = self._opened()
            kept = Kept(run(model), model.describe())
            self._units.keep(unit, given, kept)
        self._reference = kept.reference
        return {name: value.to(self.device) for name, value in kept.nodes.items()}

    def _opened(self) -> HfReference:
        """HF's model, started on the prompt."""
        if self._model is None:
            self._model = self._open_model()
        if not self._started:
            self._model.start(self._ids_BT)
            self._started = True
        return self._model


def _packed(routing: Routed) -> Nodes:
    """A layer's routing among its nodes, as a file keeps it."""
    return {f"{_ROUTING}{name}": value for name, value in vars(routing).items() if value is not None}


def output_unit(index: int) -> str:
    """The unit of a layer on its side's own hidden states."""
    return f"layers.{index}.output"


def units_of_run(selection: Selection, num_layers: int, *, nodes: bool, gradients: bool) -> Iterator[tuple[str, str]]:
    """(side, unit) of everything that a prompt in one dtype asks golden and the reference for, if it stops nowhere.

    Args:
        nodes: a stage compares nodes.
        gradients: they are compared too; golden's inputs of all layers are needed for them.
    """
    last = num_layers if selection.whole or gradients else selection.last + 1
    yield from (("golden", unit) for unit in ("embed", *(f"layers.{index}" for index in range(last))))
    if not nodes:
        return
    yield "reference", "embed"
    for index in range(num_layers if selection.whole else selection.last + 1):
        yield "reference", output_unit(index)
        if index in selection.layers:
            yield "reference", f"layers.{index}"
    if selection.whole:
        yield from (("golden", "head"), ("reference", "head"))


def reference_lanes(models: Models, cache: GoldenCache | None, dtype: str) -> tuple[ReferenceLane, ReferenceLane]:
    """Golden and the reference of a stage: HF's models, or the cache before them."""
    if cache is None:
        return models.golden, models.reference

    def lane(side: str, open_model: Callable[[], HfReference], lane_dtype: torch.dtype) -> CachedLane:
        return CachedLane(partial(cache.units, side, dtype), open_model, lane_dtype, models.device)

    return (
        lane("golden", lambda: models.golden, torch.float64),
        lane("reference", lambda: models.reference, models.dtype),
    )
