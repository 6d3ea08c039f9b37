"""Known faults of a port, each acting in one unit: what a diff is asked whether it could see them, and whether it does.

Axes are changed as a wrong port would have them. Weights are scaled by 1.01, taken from another layer, or from the
projection beside theirs: what a converter gets wrong without a shape that tells.
"""

from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from porter.specs.axes import changes, first_of_each_kind
from porter.specs.blueprint import Blueprint
from porter.weights.reader import WeightReader

FACTOR = 1.01
_NEIGHBOURS = (("attn.k", "attn.v"), ("mlp.gate", "mlp.up"))  # of one shape, so that an exchange is not refused


@dataclass(frozen=True)
class Fault:
    """One mistake.

    Attributes:
        path: the axis that is changed, or the tensor that is wrong.
        value, tried: what the port has, and what it gets instead; of a tensor, the latter alone.
        unit: where it acts: embed, layers.3 or head.
        blueprint: the port's with the fault.
        rounding: it changes rounding alone, so float32 cannot show it.
        instead: parameter -> the parameter whose tensor it gets.
        scaled: parameters multiplied by FACTOR.
    """

    path: str
    value: str
    tried: str
    unit: str
    blueprint: Blueprint
    rounding: bool = False
    instead: Mapping[str, str] = field(default_factory=dict)
    scaled: Container[str] = ()

    def reader(self, right: WeightReader) -> WeightReader:
        """The reader with the fault; `right` itself where no weight is wrong."""
        if not self.instead and not self.scaled:
            return right
        return _WrongReader(right.checkpoint, right.ledger, right.shared, self.instead, self.scaled)


@dataclass(frozen=True)
class _WrongReader(WeightReader):
    """A reader that takes some parameters from elsewhere, or scales them."""

    instead: Mapping[str, str] = field(default_factory=dict)
    scaled: Container[str] = ()

    def read(self, parameter: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self._scaled(parameter, super().read(self.instead.get(parameter, parameter), dtype, device))

    def rows(self, parameter: str, rows_N: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self._scaled(parameter, super().rows(parameter, rows_N, dtype, device))

    def chunks(self, parameter: str, dtype: torch.dtype, device: torch.device) -> Iterator[Tensor]:
        for chunk in super().chunks(parameter, dtype, device):
            yield self._scaled(parameter, chunk)

    def _scaled(self, parameter: str, value: Tensor) -> Tensor:
        return (value.float() * FACTOR).to(value.dtype) if parameter in self.scaled else value


def axis_faults(blueprint: Blueprint, among: Container[int] | None = None) -> list[Fault]:
    """Each axis of the blueprint changed; see `changes`."""
    return [
        Fault(each.path, _short(each.value), _short(each.tried), each.unit, each.blueprint, each.rounding)
        for each in changes(blueprint, among)
    ]


def weight_faults(blueprint: Blueprint, among: Collection[int]) -> list[Fault]:
    """Tensors of one layer, the embedding and the head: scaled, of another layer, in another order."""
    layer = next((i for i in first_of_each_kind(blueprint, among) if i in among), 0)
    return [
        *_scaled(blueprint, layer),
        *_of_another_layer(blueprint, layer),
        *_exchanged(blueprint, layer),
        *_reordered(blueprint, layer),
    ]


def _scaled(blueprint: Blueprint, layer: int) -> Iterator[Fault]:
    for name in blueprint.parameters():
        unit = _unit_of(name)
        if name.endswith(".weight") and unit in ("embed", f"layers.{layer}", "head"):
            yield Fault(name, "", f"× {FACTOR}", unit, blueprint, scaled=(name,))


def _of_another_layer(blueprint: Blueprint, layer: int) -> Iterator[Fault]:
    """Each matrix and norm from the next layer that has one of its shape."""
    parameters, num_layers = blueprint.parameters(), blueprint.dims.layers
    for name, parameter in parameters.items():
        if not name.startswith(f"layers.{layer}.") or not name.endswith(".weight"):
            continue
        inner = name.split(".", 2)[2]
        others = ((layer + step) % num_layers for step in range(1, num_layers))
        shapes = {i: parameters[each].shape for i in others if (each := f"layers.{i}.{inner}") in parameters}
        other = next((i for i, shape in shapes.items() if shape == parameter.shape), None)
        if other is not None:
            instead = {name: f"layers.{other}.{inner}"}
            yield Fault(name, "", f"layer {other}’s", f"layers.{layer}", blueprint, instead=instead)


def _exchanged(blueprint: Blueprint, layer: int) -> Iterator[Fault]:
    """Projections of one shape in each other's place, biases too."""
    parameters = blueprint.parameters()
    for one, other in _NEIGHBOURS:
        pairs = [(f"layers.{layer}.{a}.{end}", f"layers.{layer}.{b}.{end}")
                 for a, b in ((one, other), (other, one)) for end in ("weight", "bias")]  # fmt: skip
        instead = {name: wrong for name, wrong in pairs if {name, wrong} <= parameters.keys()}
        if instead:
            called = f"layers.{layer}.{one}, {other.partition('.')[2]}"
            yield Fault(called, "", "each other’s", f"layers.{layer}", blueprint, instead=instead)


def _reordered(blueprint: Blueprint, layer: int) -> Iterator[Fault]:
    """A fused projection whose last two parts are taken for each other, or whose parts repeat otherwise."""
    for name, rule in blueprint.weights.block.items():
        if not rule.order:
            continue
        *first, one, other = rule.order
        tries: list[tuple[str, object, object]] = [("order", rule.order, (*first, other, one))]
        if rule.groups != "1":
            tries.append(("groups", rule.groups, "1"))
        for key, value, tried in tries:
            block = {**blueprint.weights.block, name: rule.model_copy(update={key: tried})}
            weights = blueprint.weights.model_copy(update={"block": block})
            changed = blueprint.model_copy(update={"weights": weights})
            yield Fault(f"weights.block.{name}.{key}", _short(value), _short(tried), f"layers.{layer}", changed)


def _unit_of(parameter: str) -> str:
    """Where a parameter acts first; a tied head's is the embedding's."""
    if parameter.startswith("layers."):
        return ".".join(parameter.split(".")[:2])
    return "head" if parameter.startswith(("head.", "final_norm.", "project_out.")) else "embed"


def _short(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
