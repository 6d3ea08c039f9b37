"""Two resolved specs, axis by axis: what differs, with the words of the schema."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from porter.specs.axis_values import field_of
from porter.specs.blueprint import Blueprint
from porter.specs.document import Document
from porter.specs.expressions import is_expression
from porter.specs.keys import fields, is_model, members
from porter.specs.resolve import Resolved
from porter.specs.rules import WeightRule
from porter.specs.tree import Map

_SECTIONS = ("dims", "embed", "norm", "block", "final_norm", "head", "tokenizer")
_ATOMS = {"scaling"}  # maps that are one value
_RULES = "Where tensors lie in the checkpoint"


@dataclass(frozen=True)
class AxisDifference:
    """One axis.

    Attributes:
        group: what part of the model it belongs to, in words.
        one, other: the values in force; of an axis that varies over layers, each with its number of layers.
        meaning: the field's documentation.
    """

    group: str
    path: str
    one: str
    other: str
    meaning: str


def differences(one: Resolved, other: Resolved, *, of_families: bool) -> Iterator[AxisDifference]:
    """The axes in which two models differ, in the order of the schema.

    Args:
        of_families: what both take from the config by the same expression is no difference, and expressions are shown.
    """
    left, right = _values(one.blueprint), _values(other.blueprint)
    for path in _paths():
        if path not in left or path not in right:
            continue  # an axis of a part that one lacks: the part itself is named
        pair = (left[path], right[path])
        if of_families:
            pair = _of_families(path, pair, _source(one, path), _source(other, path))
        if pair[0] != pair[1]:
            yield AxisDifference(_group(path), path, *pair, field_of(path.split(".")).description or "")
    yield from _rule_differences(one.blueprint, other.blueprint)


def _paths() -> list[str]:
    return [".".join(path) for section in _SECTIONS for path in fields(Document, section)]


def _values(blueprint: Blueprint) -> dict[str, str]:
    """Axis -> its value in words; of the axes of a part that no layer has, none."""
    found: dict[str, str] = {}
    for section in _SECTIONS:
        if section != "block":
            value = getattr(blueprint, section)
            leaves = _leaves(value.model_dump() if hasattr(value, "model_dump") else value, section)
            found |= {path: _text(each) for path, each in leaves}
    over_layers: dict[str, list[str]] = {}
    for block in blueprint.blocks:
        for path, each in _leaves(block.model_dump(), "block"):
            over_layers.setdefault(path, []).append(_text(each))
    return found | {path: _counted(texts) for path, texts in over_layers.items()}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Paths and values; a map inside a section is named itself besides, as one that may be null is."""
    if not isinstance(value, Mapping) or path.rpartition(".")[2] in _ATOMS:
        yield path, value
        return
    if path.count("."):
        yield path, "present"
    for key, inner in value.items():
        yield from _leaves(inner, f"{path}.{key}")


def _counted(texts: list[str]) -> str:
    counts = Counter(texts)
    if len(counts) == 1:
        return texts[0]
    return ", ".join(f"{text} ({count} layer{'s' * (count > 1)})" for text, count in counts.items())


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        told = {key: each for key, each in value.items() if each is not None}
        return ", ".join(f"{key} {_text(each)}" for key, each in told.items()).removeprefix("rope_type ")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]" if len(value) <= 4 else f"[{len(value)} values]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _source(resolved: Resolved, path: str) -> str | None:
    """The expression that an axis is, where it is one and no pattern sets the axis."""
    keys = path.split(".")
    node: Any = resolved.family.tree
    for key in keys:
        node = node.get(key) if isinstance(node, Map) else None
    for name in resolved.cases if keys[0] == "block" else ():
        for case in resolved.family.tree["patterns"][name]["cases"].values():
            below: Any = case
            for key in keys[1:]:
                below = below.get(key, ()) if isinstance(below, Map) else ()
            if below != ():
                return None
    return str(node) if is_expression(node) else None


def _of_families(path: str, pair: tuple[str, str], one: str | None, other: str | None) -> tuple[str, str]:
    """The values of two families, with the expressions they come from; alike where only the two configs differ."""
    if path.startswith(("dims.", "tokenizer.")):
        return one or pair[0], other or pair[1]
    if pair[0] == pair[1] or (one is not None and one == other and all(map(_is_number, pair))):
        return "", ""
    left, right = (
        value if each is None else f"{value}, from {each}" for value, each in zip(pair, (one, other), strict=True)
    )
    return left, right


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _group(path: str) -> str:
    """The part of the model that an axis is of: the first sentence of its class."""
    section, *keys = path.split(".")
    model: Any = next((kind for kind in members(Document.model_fields[section].annotation) if is_model(kind)), None)
    for key in keys[:-1]:
        model = next(kind for kind in members(model.model_fields[key].annotation) if is_model(kind))
    about = (model.__doc__ if model else Document.model_fields[section].description) or section
    return about.strip().splitlines()[0].rstrip(".")


def _rule_differences(one: Blueprint, other: Blueprint) -> Iterator[AxisDifference]:
    left, right = _rules(one), _rules(other)
    for name in dict.fromkeys([*left, *right]):
        pair = left.get(name, "none"), right.get(name, "none")
        if pair[0] != pair[1]:
            yield AxisDifference(_RULES, f"weights.{name}", *pair, "")


def _rules(blueprint: Blueprint) -> dict[str, str]:
    """The rules of the parameters that a model has."""
    weights = blueprint.weights
    used = {name.split(".", 2)[2] if name.startswith("layers.") else name
            for name in (parameter.module for parameter in blueprint.parameters().values())}  # fmt: skip
    told = {"layer": weights.layer}
    for section in ("globals", "block"):
        table: Mapping[str, WeightRule] = getattr(weights, section)
        told |= {f"{section}.{name}": _rule(rule) for name, rule in table.items() if name in used}
    return told


def _rule(rule: WeightRule) -> str:
    """A rule in a line: attn.c_attn, transpose true, order [q, k, v]."""
    given = rule.model_dump(exclude_defaults=True)
    more = [f"{key} {_text(value)}" for key, value in given.items() if key != "src"]
    return ", ".join([" or ".join(rule.src), *more])
