"""What HF's config class makes of keys that are absent, and which keys HF's numbers depend on."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from porter.errors import PorterError, SpecError
from porter.references.unknown import hydrate
from porter.specs.family import Family
from porter.specs.resolve import resolve

_OF_HUB = {"tokenizer", "family"}  # HF's class defaults of special tokens are no model's


@dataclass(frozen=True)
class Gap:
    """A key whose absence the spec and HF take differently.

    Attributes:
        default: HF's value for it; `null`: it was set to null, not left out.
        axes: what of the blueprint differs.
    """

    key: str
    default: Any
    null: bool
    axes: tuple[str, ...]


def hydration_gaps(family: Family, config: Mapping[str, Any], *, nulls: bool = True) -> Iterator[Gap]:
    """Each key of a config left out, then set to null: where the spec does not compute what HF's class makes of it.

    A config that either side refuses is no gap.
    """
    head = {"model_type": family.tree["model_type"]}
    for key in config:
        for null in (False, True) if nulls else (False,):
            less = {each: value for each, value in config.items() if each != key}
            if null:
                less[key] = None
            try:
                full = hydrate({**less, **head})
                bare = resolve(family, less).blueprint.model_dump(exclude=_OF_HUB)
                filled = resolve(family, full).blueprint.model_dump(exclude=_OF_HUB)
            except PorterError:
                continue
            if bare != filled:
                yield Gap(key, deepcopy(full.get(key)), null, tuple(_differing(bare, filled)))


def _differing(one: Any, other: Any, path: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            yield from _differing(one.get(key), other.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(one, list | tuple) and path == "blocks":
        yield from dict.fromkeys(found for a, b in zip(one, other, strict=False) for found in _differing(a, b, "block"))
    elif one != other:
        yield path


def refuses(family: Family, config: Mapping[str, Any]) -> SpecError | None:
    """Why the spec refuses a config; None: it does not."""
    try:
        resolve(family, config)
    except SpecError as error:
        return error
    return None
