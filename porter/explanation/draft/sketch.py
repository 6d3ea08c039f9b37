"""A spec in the making: a parent, the changes made to it so far, and why each was made."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from porter.errors import SpecError
from porter.explanation.draft.pool import Keys
from porter.specs.expressions import Config, evaluate, is_expression
from porter.specs.family import Family
from porter.specs.resolve import Resolved, resolve
from porter.specs.tree import Map


@dataclass(frozen=True)
class Change:
    """One line of the draft.

    Attributes:
        keys: path in the file.
        value: as YAML has it; an expression starts with =.
        why: how it was decided.
    """

    keys: Keys
    value: Any
    why: str


@dataclass(frozen=True)
class Sketch:
    """A parent family and changes, applied in order.

    Attributes:
        config: of the checkpoint, as HF fills it in where HF knows it.
    """

    parent: Family
    model_type: str
    architecture: str
    config: Mapping[str, Any]
    changes: tuple[Change, ...] = field(default=())

    def with_change(self, *changes: Change) -> "Sketch":
        """The sketch with further changes; one of an axis that was changed before takes its place."""
        new = {change.keys for change in changes}
        kept = tuple(change for change in self.changes if change.keys not in new)
        return replace(self, changes=(*kept, *changes))

    def family(self) -> Family:
        """The family that the file would be, its shape unchecked: what changes it comes from families."""
        tree = self.parent.tree.copy()
        tree["model_type"], tree["architecture"] = self.model_type, self.architecture
        tree["config_defaults"] = Map()
        for change in self.changes:
            put(tree, change.keys, change.value)
        return Family("draft", Path("draft.yaml"), tree)

    def resolve(self) -> Resolved:
        """The blueprint for the checkpoint's config.   Raises SpecError."""
        return resolve(self.family(), self.config)

    def names(self) -> dict[str, Any]:
        """What expressions see: the config, the dims that can be had, and a layer's number, the first's."""
        found: dict[str, Any] = {"cfg": Config(self.config), "i": 0}
        tree = self.parent.tree.copy()
        for change in self.changes:
            put(tree, change.keys, change.value)
        for key, raw in tree["dims"].items():
            found[key] = evaluated(raw, found)
        return found


def put(tree: Map, keys: Keys, value: Any) -> None:
    """Sets a value in a tree; maps on the way are made where there are none."""
    node = tree
    for key in keys[:-1]:
        below = node.get(key)
        if not isinstance(below, Map):
            below = Map()
            node.put(key, below, None)
        node = below
    node.put(keys[-1], as_map(value), None)


def numbers_of(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every number, text and list of a config under its path: cfg.a.b is a.b."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from numbers_of(value, f"{prefix}{key}.")
        elif not isinstance(value, bool) and value is not None:
            yield f"{prefix}{key}", value


def as_map(value: Any) -> Any:
    """Maps with places, at any depth, copied."""
    if not isinstance(value, Mapping):
        return value
    made = Map()
    for key, inner in value.items():
        made.put(key, as_map(inner), None)
    return made


def evaluated(raw: Any, names: Mapping[str, Any]) -> Any:
    """A raw value's value; None where its expression has none for this config."""
    if not is_expression(raw):
        return raw
    try:
        return evaluate(raw, names, "draft")
    except (SpecError, KeyError):
        return None


def keys_read(raw: str, names: Mapping[str, Any]) -> set[str]:
    """The config keys that an expression reads before it has its value."""
    config = Config(names["cfg"].values)
    evaluated(raw, {**names, "cfg": config})
    return config.read
