"""Every axis of a model with the value in force and the values it may have."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic.fields import FieldInfo

from porter.specs.blueprint import Blueprint
from porter.specs.family import Document, Pattern, inner_models, members
from porter.specs.overrides import axis_paths
from porter.specs.resolve import Resolved
from porter.specs.schema import Strict
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
        info = _field(path.split("."))
        yield AxisValue(path, _in_force(path, resolved), allowed(info), info.description or "")


def allowed(info: FieldInfo) -> str:
    """The values of a field in words: half | interleaved, number > 0 or null."""
    kinds = members(info.annotation)
    words = [word for kind in kinds if kind is not NoneType for word in _words(kind)]
    bounds = [f"{sign} {bound}" for each in info.metadata for sign, bound in _bounds(each)]
    return " ".join([" | ".join(words), *bounds]) + (" or null" if NoneType in kinds else "")


def _words(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [str(value).lower() if isinstance(value, bool) else str(value) for value in get_args(kind)]
    if get_origin(kind) is tuple:
        return ["list of whole numbers"]
    names = {bool: "true | false", int: "whole number", float: "number", str: "text"}
    return [names.get(kind, "map")]


def _bounds(constraint: object) -> Iterator[tuple[str, object]]:
    if isinstance(constraint, Gt):
        yield ">", constraint.gt
    elif isinstance(constraint, Ge):
        yield "≥", constraint.ge
    elif isinstance(constraint, Le):
        yield "≤", constraint.le


def _field(path: list[str]) -> FieldInfo:
    """The field of the schema that a path means; below a pattern case, that of `block`."""
    if path[0] == "patterns":
        if len(path) == 3:
            return Pattern.model_fields["by"]
        path = ["block", *path[4:]]
    info = Document.model_fields[path[0]]
    for key in path[1:]:
        info = next(kind for kind, _, _ in inner_models(info.annotation, (), {})).model_fields[key]
    return info


def _in_force(path: str, resolved: Resolved) -> str:
    section, *keys = path.split(".")
    blueprint = resolved.blueprint
    if section == "patterns":
        node: Any = resolved.family.tree
        for key in path.split("."):
            node = node[key]
        return _text(node)
    if section == "block":
        return _over_layers(blueprint, keys)
    return _text(_dig(getattr(blueprint, section), keys))


def _over_layers(blueprint: Blueprint, keys: list[str]) -> str:
    texts = [_text(_dig(block, keys)) for block in blueprint.blocks]
    counts = {text: sum(1 for _ in same) for text, same in groupby(sorted(texts))}
    if len(counts) == 1:
        return texts[0]
    in_order = dict.fromkeys(texts)
    return ", ".join(f"{text} ({counts[text]} layers)" for text in in_order)


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
