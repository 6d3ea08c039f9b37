"""Maps of a spec with their expressions evaluated, and checked against the schema."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from porter.specs.expressions import evaluate, is_expression
from porter.specs.messages import spec_error
from porter.specs.tree import Map

M = TypeVar("M", bound=BaseModel)


def value_of(raw: Any, names: Mapping[str, Any], where: object) -> Any:
    """A value of a spec, evaluated where it is an expression or a list that holds some."""
    if isinstance(raw, list):
        return [value_of(item, names, where) for item in raw]
    return evaluate(raw, names, where) if is_expression(raw) else raw


def evaluate_map(tree: Map, names: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a map; one whose `_if` is false is null."""
    values: dict[str, Any] = {}
    for key, raw in tree.items():
        if key == "_if":
            continue
        if isinstance(raw, Map):
            guard = value_of(raw.get("_if", True), names, raw.where.get("_if"))
            values[key] = evaluate_map(raw, names) if guard else None
        else:
            values[key] = value_of(raw, names, tree.where.get(key))
    return values


def validate(model: type[M], values: Mapping[str, Any], tree: Mapping[str, Any], path: tuple[str, ...]) -> M:
    """The values as a model of the schema.

    Args:
        tree: where they came from, and `path` within it, for errors.

    Raises:
        SpecError: with file and line.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise spec_error(error, model, tree, path) from error
