"""The zoo's file: public porting bugs, each as a change of a spec, or with the reason why it cannot be one.

A row is a mistake that diff must find (by its number in the catalogue), a false alarm that it must not raise (N1, N2a),
or outside: no field of a spec says it, or no family here has it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from porter.errors import SpecError
from porter.specs.keys import unknown_key
from porter.specs.kinds import Strict
from porter.specs.located import Map, Where, read_map
from porter.specs.messages import spec_error

PATH = Path(__file__).with_name("zoo.yaml")
ROW = re.compile(r"[1-9]\d*|N[1-9]\d*[a-z]?")

ExpectedStage = Literal["preflight", "exact", "semantics", "precision"]


class Port(Strict):
    """A port with a change, and what it runs on."""

    family: str = Field(min_length=1, description="A family of porter.")
    size: str = Field("tiny", description="One of its sizes.")
    config: dict[str, Any] = Field({}, description="Config keys of both sides that differ from the size's.")
    tokens: int | None = Field(None, gt=0, description="Seeded ids; null: as many as the file says.")
    stand_in: str | None = Field(None, min_length=1, description="Why the port is not the row's own: another family, the mistake mirrored, a toy value.")  # fmt: skip  # noqa: E501


class Mistake(Port):
    """A change that diff must find, and where."""

    mistake: str = Field(min_length=1, description="What the port got wrong, in a sentence.")
    set: tuple[str, ...] = Field(min_length=1, strict=False, description="axis=value, as in porter diff --set.")
    stage: ExpectedStage = Field(description="The stage that must see it; exact: only bits can differ.")
    node: str = Field(min_length=1, description="Where it must show first; preflight: the tensor that is refused.")


class FalseAlarm(Port):
    """Something that was reported as a bug and is none: diff must not FAIL."""

    claim: str = Field(min_length=1, description="What was taken for a bug, in a sentence.")
    set: tuple[str, ...] = Field((), strict=False, description="axis=value, as in porter diff --set.")


class Outside(Strict):
    """A row that no change of a spec can show today."""

    outside: str = Field(min_length=1, description="The reason in a word or two; rows are counted by it.")
    missing: str = Field(min_length=1, description="What the row is, and what would be needed.")


Row = Mistake | FalseAlarm | Outside
R = TypeVar("R", Mistake, FalseAlarm, Outside)
V = TypeVar("V", bound=Strict)


@dataclass(frozen=True)
class Zoo:
    """The file's rows by number, in its order, and the line each stands on."""

    tokens: int
    rows: Mapping[str, Row]
    where: Mapping[str, Where]

    def of(self, kind: type[R]) -> dict[str, R]:
        """The rows of one kind."""
        return {name: row for name, row in self.rows.items() if isinstance(row, kind)}


class _Head(Strict):
    """The top level of the file."""

    tokens: int = Field(gt=0)
    rows: dict[str, Any]


def read_zoo(path: Path = PATH) -> Zoo:
    """The zoo in a file.

    Raises:
        SpecError: with file and line of what is wrong.
    """
    tree = read_map(path)
    for key in _Head.model_fields.keys() - tree.keys():
        raise SpecError(f"{path}:1: {key} has no value", "tokens, and rows", f"Add {key} at the top level.")
    head = _validated(_Head, dict(tree), tree, ())
    rows = {name: _read_row(name, tree) for name in tree["rows"]}
    return Zoo(head.tokens, rows, dict(tree["rows"].where))


def _read_row(name: str, tree: Map) -> Row:
    where, values = tree["rows"].where[name], tree["rows"][name]
    if not ROW.fullmatch(name):
        raise SpecError(f"{where}: {name!r} is no row", "a number of the catalogue, or N1, N2a, …", "Correct it.")
    if not isinstance(values, Map):
        raise SpecError(
            f"{where}: row {name} is no map", "mistake, claim or outside, with what belongs to it", "Add it."
        )
    path = ("rows", name)
    if "outside" in values:
        return _validated(Outside, values.plain(), tree, path)
    if name.startswith("N"):
        return _validated(FalseAlarm, values.plain(), tree, path)
    return _validated(Mistake, values.plain(), tree, path)


def _validated(model: type[V], values: dict[str, Any], tree: Map, path: tuple[str, ...]) -> V:
    own = tree["rows"][path[1]] if path else tree
    for key in own:
        if key not in model.model_fields:  # before what is missing: a misspelt key is both
            raise unknown_key((*path, key), model.model_fields, own.where.get(key))
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise spec_error(error, model, tree, path) from error
