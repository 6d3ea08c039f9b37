"""A spec as it stands in its YAML files: nested maps that remember the file and line of every key.

A family file `extends` one parent and is merged onto it, deeply: null sets null, `_replace: true` replaces a map,
weight rules and `rope.scaling` are atomic.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from porter.errors import SpecError, closest
from porter.specs.located import Map, Where, read_map

__all__ = [
    "OWN",
    "Map",
    "Where",
    "builtin_spec_names",
    "leaves",
    "locate",
    "merge",
    "read_own",
    "read_tree",
    "spec_folder",
]

PACKAGE = Path(__file__).resolve().parents[1]
BASE = "_base"
_CONFIG = re.compile(r"(?<=^    config: )\{.*\}$", re.MULTILINE)  # of a size, on a line of its own
OWN = ("model_type", "architecture", "sizes")  # of one family alone, never inherited


def spec_folder() -> Path:
    """The folder of the families that come with porter, in a checkout or in a wheel."""
    packed = PACKAGE / "model_specs"
    return packed if packed.is_dir() else PACKAGE.parent / "model_specs"


def builtin_spec_names() -> list[str]:
    """The names of the families that come with porter, sorted."""
    return sorted(path.stem for path in spec_folder().glob("*.yaml") if path.stem != BASE)


def read_own(name: str) -> Map:
    """What the file of a family that comes with porter says itself, without the configs of its sizes.

    The keys of OWN are said nowhere else. Configs are two thirds of the text, and of the time to parse it.

    Raises:
        SpecError: as read_tree.
    """
    return read_map(spec_folder() / f"{name}.yaml", without=_CONFIG)


def read_tree(path: Path) -> Map:
    """The spec in `path` merged onto its parents.

    Raises:
        SpecError: the file is missing, is no YAML map, repeats a key, or extends an unknown or circular parent.
    """
    chain: list[Map] = []
    seen: set[Path] = set()
    named: object = path  # where the file to read is named
    while True:
        if path in seen:
            raise SpecError(
                f"{named}: extends {path.stem!r}, which so extends itself",
                "parents that end at _base",
                "Break the circle.",
            )
        seen.add(path)
        child = read_map(path)
        if chain:
            for key in OWN:
                child.pop(key, None)
        chain.append(child)
        parent = child.pop("extends", None) or BASE
        if path.stem == BASE:
            break
        named = child.where.get("extends", path)
        path = _parent_path(str(parent), path, child.where.get("extends"))
    merged = chain.pop()
    while chain:
        merged = merge(merged, chain.pop())
    return merged


def merge(base: Map, over: Map, path: tuple[str, ...] = ()) -> Map:
    """`over` merged onto `base`, both left as they are."""
    if _replaces(over):
        return _without_marks(over)
    merged = base.copy()
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, Map) and isinstance(below, Map) and not _is_atomic((*path, key)):
            value = merge(below, value, (*path, key))
        elif isinstance(value, Map):
            value = _without_marks(value)
        if key != "_replace":
            merged.put(key, value, over.where.get(key))
    return merged


def _replaces(tree: Map) -> bool:
    mark = tree.get("_replace", False)
    if not isinstance(mark, bool):
        raise SpecError(f"{tree.where.get('_replace')}: _replace = {mark!r}", "true or false", "Write _replace: true.")
    return mark


def _without_marks(tree: Map) -> Map:
    """A copy without `_replace` at any depth: what replaces nothing."""
    bare = Map()
    for key, value in tree.items():
        if key != "_replace":
            bare.put(key, _without_marks(value) if isinstance(value, Map) else value, tree.where.get(key))
    return bare


def leaves(tree: Map, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every path of the tree that does not end in a map, with its value."""
    for key, value in tree.items():
        if isinstance(value, Map) and value and not _is_atomic((*path, key)):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def locate(tree: Mapping[str, Any], path: tuple[str, ...]) -> Where | None:
    """The place of the deepest key of `path` that stands in the tree."""
    place = None
    for key in path:
        if not isinstance(tree, Map) or key not in tree:
            break
        place = tree.where.get(key, place)
        tree = tree[key]
    return place


def _is_atomic(path: tuple[str, ...]) -> bool:
    return path[-1] == "scaling" or (len(path) == 3 and path[:2] in {("weights", "block"), ("weights", "globals")})


def _parent_path(name: str, child: Path, where: Where | None) -> Path:
    for folder in (child.parent, spec_folder()):
        if (candidate := folder / f"{name}.yaml").is_file() and candidate != child:
            return candidate
    raise SpecError(
        f"{where or child}: extends {name!r}, which is no family",
        closest(name, [BASE, *builtin_spec_names()]),
        "Name a family of porter, or a file that lies beside this one, without .yaml.",
    )
