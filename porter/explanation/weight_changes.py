"""What a port may have done to a tensor before it computed with it: read another, turned it, added to it, rounded it.

Of a port of another make the weights themselves are not seen, only what it computed with them. Each change is a way to
read a parameter; a unit that is run with it tells whether the port did so.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import torch
from torch import Tensor

from porter.specs.blueprint import Blueprint, Parameter
from porter.weights.reader import WeightReader

Transform = Callable[[Tensor], Tensor]
_ROUNDINGS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float8 e4m3": torch.float8_e4m3fn}


@dataclass(frozen=True)
class WeightChange:
    """A parameter, or all of a module or layer, read in another way.

    Attributes:
        path: the parameter, the module, layers.3.mlp.gate, or layers.3 for all of a layer.
        value, other: what the reference computes with, and what the port does, in words.
        instead: the parameter, module or layer whose tensors it gets; None: its own.
        exchange: get each other's tensors.
        transform: of the tensor that was read; None: none.
    """

    path: str
    value: str
    other: str
    instead: str | None = None
    exchange: bool = False
    transform: Transform | None = None

    @property
    def override(self) -> str:
        """The change in a sentence."""
        return f"{self.path} is {self.other}"

    @property
    def patch(self) -> str:
        """Where to mend it."""
        return f"where {self.path} is loaded: {self.value}, not {self.other}"

    def source_of(self, parameter: str) -> str | None:
        """The parameter that is read for one; None where the change is about others."""
        if parameter == self.path:
            return self.instead or parameter
        if self.instead is not None and parameter.startswith(f"{self.path}."):
            return self.instead + parameter.removeprefix(self.path)
        if self.exchange and self.instead is not None and parameter.startswith(f"{self.instead}."):
            return self.path + parameter.removeprefix(self.instead)
        return None


@dataclass(frozen=True)
class ChangedReader(WeightReader):
    """A reader with changes; the tables that are read by rows or in chunks stay as they are."""

    changes: tuple[WeightChange, ...] = ()

    @staticmethod
    def of(right: WeightReader, changes: tuple[WeightChange, ...]) -> "ChangedReader":
        return ChangedReader(right.checkpoint, right.ledger, right.shared, changes=changes)

    def read(self, parameter: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        for each in self.changes:
            source = each.source_of(parameter)
            if source is not None:
                tensor = super().read(source, dtype, device)
                return tensor if each.transform is None else each.transform(tensor).contiguous()
        return super().read(parameter, dtype, device)


def weight_changes(blueprint: Blueprint, layer: int) -> Iterator[WeightChange]:
    """What may have become of the tensors of one layer."""
    parameters = blueprint.parameters()
    own = [each for name, each in parameters.items() if name.startswith(f"layers.{layer}.")]
    for parameter in own:
        yield from _transformed(parameter)
    for other in range(blueprint.dims.layers):
        if other != layer and _same_layer(parameters, own, layer, other):
            yield WeightChange(f"layers.{layer}", "its own tensors", f"layer {other}’s", instead=f"layers.{other}")
    yield from _exchanges(own)
    for parameter in own:
        yield from _others(parameters, parameter, layer, blueprint.dims.layers)
    for parameter in own:
        if parameter.kind == "linear":
            for name, kind in _ROUNDINGS.items():
                yield WeightChange(parameter.name, "as stored", f"rounded to {name}", transform=partial(_rounded, kind))


def _transformed(parameter: Parameter) -> Iterator[WeightChange]:
    """The parameter's own tensor, turned, moved or left out."""
    shape, name = parameter.shape, parameter.name
    if parameter.kind == "linear" and len(shape) == 2:
        if shape[0] == shape[1]:
            yield WeightChange(name, "as stored", "transposed", transform=lambda w: w.T)
        if shape[0] % 2 == 0:
            yield WeightChange(
                name, "as stored", "its halves exchanged", transform=lambda w: torch.roll(w, len(w) // 2, 0)
            )
    if parameter.kind == "norm":
        yield WeightChange(name, "as stored", "larger by 1: an offset that is added twice", transform=lambda w: w + 1)
        yield WeightChange(name, "as stored", "smaller by 1", transform=lambda w: w - 1)
        yield WeightChange(name, "as stored", "ones: never loaded", transform=torch.ones_like)
        yield WeightChange(name, "as stored", "zeros: never loaded", transform=torch.zeros_like)
    if parameter.kind == "bias":
        yield WeightChange(name, "added", "left out", transform=torch.zeros_like)


def _rounded(kind: torch.dtype, w: Tensor) -> Tensor:
    return w.to(kind).to(w.dtype)


def _halves_exchanged(w: Tensor) -> Tensor:
    return torch.roll(w, len(w) // 2, 0)


def _same_layer(parameters: dict[str, Parameter], own: list[Parameter], layer: int, other: int) -> bool:
    for each in own:
        twin = parameters.get(each.name.replace(f"layers.{layer}.", f"layers.{other}.", 1))
        if twin is None or twin.shape != each.shape:
            return False
    return True


def _exchanges(own: list[Parameter]) -> Iterator[WeightChange]:
    """Two modules of the same shapes, each with the other's tensors."""
    modules: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for each in own:
        modules.setdefault(each.module, []).append((each.name.rpartition(".")[2], each.shape))
    for one, other in combinations(modules, 2):
        if modules[one] == modules[other]:
            yield WeightChange(one, "itself", f"{other}, and that is it", instead=other, exchange=True)


def _others(parameters: dict[str, Parameter], parameter: Parameter, layer: int, layers: int) -> Iterator[WeightChange]:
    """A tensor of the same shape in its place: of the same layer, then the same one of another layer."""
    inner = parameter.name.removeprefix(f"layers.{layer}.")
    beside = [name for name, each in parameters.items()
              if name.startswith(f"layers.{layer}.") and name != parameter.name and each.shape == parameter.shape
              and each.kind == parameter.kind]  # fmt: skip
    elsewhere = [f"layers.{i}.{inner}" for i in range(layers) if i != layer and f"layers.{i}.{inner}" in parameters]
    for other in (*beside, *(name for name in elsewhere if parameters[name].shape == parameter.shape)):
        yield WeightChange(parameter.name, "its own", f"{other}, loaded twice", instead=other)
