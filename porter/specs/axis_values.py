"""Every axis of a model with the value in force and the values it may have."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo

from porter.specs.document import Document, Pattern
from porter.specs.keys import is_model, members
from porter.specs.kinds import Strict
from porter.specs.messages import allowed
from porter.specs.overrides import axis_paths, keys_of
from porter.specs.resolve import Resolved
from porter.specs.rules import WeightRule
from porter.specs.schema import Block
from porter.specs.tree import Map


@dataclass(frozen=True)
class AxisValue:
    """One axis.

    Attributes:
        value: in force; for an axis of `block` that varies, each value with its layers. "-": not in this model.
        allowed: what it may be, in words.
    """

    path: str
    value: str
    allowed: str
    meaning: str


def axis_values(resolved: Resolved) -> Iterator[AxisValue]:
    """Every path that --set takes, in the order of the schema."""
    for path in axis_paths(resolved.family.tree):
        info = field_of(keys_of(path))
        yield AxisValue(path, _in_force(path, resolved), allowed(info), info.description or "")


def field_of(path: list[str]) -> FieldInfo:
    """The field of the schema that a path means; below a pattern case, that of `block`."""
    if path[0] == "patterns":
        if len(path) == 3:
            return Pattern.model_fields["by"]
        path = ["block", *path[4:]]
    if path[0] == "weights":
        return WeightRule.model_fields[path[3]]
    info = Document.model_fields[path[0]]
    for key in path[1:]:
        info = next(kind for kind in members(info.annotation) if is_model(kind)).model_fields[key]
    return info


def _in_force(path: str, resolved: Resolved) -> str:
    section, *keys = keys_of(path)
    blueprint = resolved.blueprint
    if section == "patterns":
        if keys[1] == "by":
            return ", ".join(
                f"{case} ({count} layers)" for case, count in Counter(resolved.cases.get(keys[0], ())).items()
            )
        taken = [case == keys[2] for case in resolved.cases.get(keys[0], ())]
        return _over_layers([block for block, own in zip(blueprint.blocks, taken, strict=True) if own], keys[3:])
    if section == "block":
        return _over_layers(blueprint.blocks, keys)
    if section == "weights":
        return _text(getattr(blueprint.weights.block[keys[1]], keys[2]))
    return _text(_dig(getattr(blueprint, section), keys))


def _over_layers(blocks: Sequence[Block], keys: list[str]) -> str:
    counts = Counter(_text(_dig(block, keys)) for block in blocks)
    if len(counts) < 2:
        return next(iter(counts), "no layer takes this case")
    return ", ".join(f"{text} ({count} layers)" for text, count in counts.items())


def _dig(model: Any, keys: list[str]) -> Any:
    for key in keys:
        if model is None:
            return "-"
        model = getattr(model, key)
    return model


def _text(value: Any) -> str:
    if isinstance(value, Strict | Map):
        return "map"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_text, value))}]" if len(value) <= 4 else f"[{len(value)} values]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
