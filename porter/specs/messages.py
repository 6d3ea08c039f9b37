"""Pydantic's errors in porter's words: file and line, the value, what it may be, the closest valid one."""

from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from porter.errors import SpecError, closest
from porter.specs.expressions import is_expression
from porter.specs.keys import is_model, members, shown, unknown_key
from porter.specs.tree import locate

_NEEDED = {
    "missing": "a value", "bool_type": "true or false", "int_type": "a whole number", "float_type": "a number",
    "finite_number": "a finite number", "string_type": "text", "tuple_type": "a list", "list_type": "a list",
    "model_type": "a map", "dict_type": "a map", "none_required": "null",
}  # fmt: skip
_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}
_FIX = "Correct the value; porter specs show NAME --axes lists axes and their values."


def spec_error(
    error: ValidationError, model: type[BaseModel], tree: Mapping[str, Any], path: tuple[str, ...], prefix: str = ""
) -> SpecError:
    """A pydantic error as a SpecError with the file and line of the offending key.

    Args:
        model: what was validated.
        tree: where the values came from, for their places.
        path: of the validated value in the tree.
        prefix: stands for the place where there is none, as --set does.
    """
    first = error.errors()[0]
    kind, given, ctx = first["type"], first["input"], first.get("ctx", {})
    full = (*path, *(str(part) for part in first["loc"] if not isinstance(part, int)))
    place = prefix or locate(tree, full)
    where = f"{place}: " if place else ""
    name = ".".join(full)
    if kind == "extra_forbidden":
        return unknown_key(full, _fields_at(model, first["loc"][:-1]), place)
    if kind == "value_error":
        return SpecError(
            f"{where}{name}: {first['msg'].removeprefix('Value error, ')}", "values that go together", _FIX
        )
    if kind == "missing":
        return SpecError(f"{where}{name} has no value", "a value", f"Add {full[-1]}.")
    expected = _NEEDED.get(kind, first["msg"])
    if kind in _BOUNDS:
        key, word = _BOUNDS[kind]
        expected = f"a number {word} {ctx[key]}"
    if kind == "literal_error":
        expected = _choices(ctx["expected"], given)
    raw = _raw(tree, full)
    source = f", from {raw}," if is_expression(raw) else ""
    return SpecError(f"{where}{name} = {shown(given)}{source} is not allowed", expected, _FIX)


def _raw(tree: Any, path: tuple[str, ...]) -> Any:
    """What the spec says at `path`, before it is evaluated."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def _choices(expected: str, given: object) -> str:
    words = [part.strip().strip("'") for part in expected.replace(" or ", ", ").split(",")]
    words = [{"True": "true", "False": "false"}.get(word, word) for word in words]
    every = ", ".join(words)
    guess = closest(given, words) if isinstance(given, str) else ""
    return f"one of {every}; {guess}" if guess.startswith("did you") else f"one of {every}"


def _fields_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> Iterable[str]:
    """The fields of the model that stands at `loc` below `model`."""
    for part in loc:
        kinds = members(model.model_fields[str(part)].annotation) if str(part) in model.model_fields else ()
        model = next((kind for kind in kinds if is_model(kind)), model)
    return model.model_fields


def allowed(info: FieldInfo) -> str:
    """The values of a field in words: half | interleaved, number > 0 or null."""
    kinds = members(info.annotation)
    words = [word for kind in kinds if kind is not NoneType for word in _words(kind)]
    signs = {Gt: (">", "gt"), Ge: ("≥", "ge"), Le: ("≤", "le")}
    bounds = [
        f"{sign} {getattr(each, name)}"
        for each in info.metadata
        for of, (sign, name) in signs.items()
        if type(each) is of
    ]
    return " ".join([" | ".join(words), *bounds]) + (" or null" if NoneType in kinds else "")


def _words(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [str(value).lower() if isinstance(value, bool) else str(value) for value in get_args(kind)]
    if get_origin(kind) is tuple:
        return ["list of text" if get_args(kind)[0] is str else "list of whole numbers"]
    if get_origin(kind) is list:
        return ["list of text"]
    return [{bool: "true | false", int: "whole number", float: "number", str: "text"}.get(kind, "map")]
