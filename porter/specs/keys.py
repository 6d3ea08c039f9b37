"""The shape of a spec's tree: every key known, maps where maps belong, expressions that parse and name what exists."""

from collections.abc import Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from porter.errors import SpecError, closest
from porter.specs.document import EVALUATED, RULES, Document
from porter.specs.expressions import check_expression, is_expression
from porter.specs.rope import RopeScaling
from porter.specs.rules import WeightRule
from porter.specs.tree import Map, Where, leaves, locate

KeyPath = tuple[str, ...]


def check_tree(tree: Map) -> None:
    """Refuses unknown keys, values of the wrong shape and broken expressions, at any depth.

    Raises:
        SpecError: with file and line.
    """
    if "_if" in tree:
        raise unknown_key(("_if",), Document.model_fields, tree.where.get("_if"))
    _check_map(tree, Document, ())
    dims = list(tree["dims"])
    for path, value in leaves(tree):
        if path[0] in EVALUATED or _is_source(path):
            known = dims[: dims.index(path[1])] if path[0] == "dims" else dims
            layer = ["i"] if path[0] == "block" or path[2:3] == ("cases",) else []
            for text in value if isinstance(value, list) else [value]:
                if is_expression(text):
                    check_expression(text, ["cfg", *known, *layer], locate(tree, path))
    for text in tree.get("requires") or []:
        check_expression(f"={text.removeprefix('=')}", ["cfg", *dims], locate(tree, ("requires",)))


def _check_map(tree: Map, model: type[BaseModel], path: KeyPath) -> None:
    for key, value in tree.items():
        if key != "_if":
            if key not in model.model_fields:
                raise unknown_key((*path, key), model.model_fields, tree.where.get(key))
            _check_value(value, model.model_fields[key].annotation, (*path, key), tree.where.get(key))


def _check_value(value: Any, annotation: Any, path: KeyPath, place: Where | None) -> None:
    kinds = members(annotation)
    if Any in kinds:
        return
    maps = [kind for kind in kinds if is_model(kind) or get_origin(kind) is dict]
    if isinstance(value, Map):
        if "_if" in value and NoneType not in kinds:
            raise _refused(path, place, "_if", "_if only in a map that may be null instead: rope, qk_norm, scaling")
        if not maps:
            raise _refused(path, place, value, expected(kinds))
        _check_entries(value, maps[0], path)
    elif is_expression(value) and _is_source(path):
        return
    elif is_expression(value) and (path[0] not in EVALUATED or (maps and NoneType not in kinds)):
        raise _refused(path, place, value, f"{expected(kinds)}; no expression is read here")
    elif not is_expression(value) and not _fits(value, kinds, path):
        raise _refused(path, place, value, "text or a list of text" if path[-1] == "src" else expected(kinds))


def _is_source(path: KeyPath) -> bool:
    """Whether a path is where a weight rule's tensor lies, which may depend on the config."""
    return path[0] == "weights" and path[1] in RULES and (len(path) == 3 or path[3] == "src")


def _check_entries(value: Map, kind: Any, path: KeyPath) -> None:
    if kind is RopeScaling:
        return  # HF's own map, checked when it is resolved
    if is_model(kind):
        _check_map(value, kind, path)
        return
    entry = get_args(kind)[1]
    for key, inner in value.items():
        if entry is WeightRule and key not in RULES[path[-1]]:
            raise unknown_key((*path, key), RULES[path[-1]], value.where.get(key))
        if entry is not WeightRule or inner is not None:  # null takes a rule away
            _check_value(inner, entry, (*path, key), value.where.get(key))


def _fits(value: Any, kinds: tuple[Any, ...], path: KeyPath) -> bool:
    """Whether a value may be one of `kinds` at all; its range is checked when it is resolved."""
    if value is None:
        return NoneType in kinds
    if isinstance(value, list):
        lists = [kind for kind in kinds if get_origin(kind) in {list, tuple}]
        texts = any(get_args(kind)[0] is str for kind in lists) or WeightRule in kinds
        return bool(lists or texts) and (not texts or all(isinstance(item, str) for item in value))
    scalars = [kind for kind in kinds if kind in {str, bool, int, float} or get_origin(kind) is Literal]
    if WeightRule in kinds or scalars == [str] or (not scalars and path[-1] == "src"):
        return isinstance(value, str)
    if scalars == [bool]:
        return isinstance(value, bool)
    return bool(scalars) or any(get_args(kind)[:1] == (int,) for kind in kinds)  # eos_ids: 1


def expected(kinds: Iterable[Any]) -> str:
    """The kinds in words: text, a map or null."""
    words = {str: "text", bool: "true or false", int: "a whole number", float: "a number", NoneType: "null"}
    shapes = {list: "a list of text", tuple: "a list", dict: "a map", Literal: "one of its values"}
    told = [
        "a path, or a map with src" if kind is WeightRule else words.get(kind) or shapes.get(get_origin(kind), "a map")
        for kind in kinds
    ]
    return " or ".join(dict.fromkeys(told))


def unknown_key(path: KeyPath, valid: Iterable[str], place: object) -> SpecError:
    """The error for a key that does not exist."""
    where = f"{place}: " if place else ""
    return SpecError(f"{where}unknown key {'.'.join(path)!r}", closest(path[-1], valid), "Correct or remove the key.")


def shown(value: Any) -> str:
    """A value as YAML would have it, cut where it is long."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = "a map" if isinstance(value, Mapping | BaseModel) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _refused(path: KeyPath, place: object, value: Any, wanted: str) -> SpecError:
    where = f"{place}: " if place else ""
    return SpecError(f"{where}{'.'.join(path)} = {shown(value)} is not allowed", wanted, "Correct the value.")


def is_model(kind: Any) -> bool:
    """Whether an annotation is one of the schema's models."""
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def members(annotation: Any) -> tuple[Any, ...]:
    """The kinds that an annotation allows, unions and Annotated taken apart."""
    if get_origin(annotation) is Annotated:
        return members(get_args(annotation)[0])
    if get_origin(annotation) in {Union, UnionType}:
        return tuple(member for part in get_args(annotation) for member in members(part))
    return (annotation,)


def fields(model: type[BaseModel], name: str, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Every axis below the field `name`, and the field itself where it is no map or may be null."""
    kinds = members(model.model_fields[name].annotation)
    inner = [kind for kind in kinds if is_model(kind) and kind is not RopeScaling]
    path = (*path, name)
    if not inner or NoneType in kinds:
        yield path
    for kind in inner:
        for field in kind.model_fields:
            yield from fields(kind, field, path)
