"""A spec as it stands in its YAML files: nested maps that remember the file and line of every key.

A family file `extends` one parent and is merged onto it, deeply: null sets null, `_replace: true` replaces a map,
weight rules and `rope.scaling` are atomic. YAML 1.2, so `off` and `on` stay text and 1e-6 is a number.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML, YAMLError
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from porter.errors import SpecError, closest

PACKAGE = Path(__file__).resolve().parents[1]
BASE = "_base"
OWN = ("model_type", "architecture", "sizes")  # of one family alone, never inherited


@dataclass(frozen=True)
class Where:
    """The place of a key: file and line, both as an editor shows them."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else str(self.file)  # --set has no line


class Map(dict[str, Any]):
    """A map of a spec; `where` holds the place of each of its keys."""

    def __init__(self) -> None:
        super().__init__()
        self.where: dict[str, Where] = {}

    def put(self, key: str, value: Any, where: Where | None) -> None:
        self[key] = value
        if where is None:
            self.where.pop(key, None)
        else:
            self.where[key] = where

    def copy(self) -> "Map":
        twin = Map()
        for key, value in self.items():
            twin.put(key, value.copy() if isinstance(value, Map) else value, self.where.get(key))
        return twin


def spec_folder() -> Path:
    """The folder of the families that come with porter, in a checkout or in a wheel."""
    packed = PACKAGE / "model_specs"
    return packed if packed.is_dir() else PACKAGE.parent / "model_specs"


def builtin_spec_names() -> list[str]:
    """The names of the families that come with porter, sorted."""
    return sorted(path.stem for path in spec_folder().glob("*.yaml") if path.stem != BASE)


@lru_cache
def read_tree(path: Path) -> Map:
    """The spec in `path` merged onto its parents.

    Raises:
        SpecError: the file is missing, is no YAML map, repeats a key, or extends an unknown or circular parent.
    """
    chain, seen = [], set[Path]()
    while True:
        if path in seen:
            raise SpecError(f"{path} extends itself", "a chain of parents that ends at _base", "Break the circle.")
        seen.add(path)
        child = _parse(path)
        if chain:
            for key in OWN:
                child.pop(key, None)
        chain.append(child)
        parent = child.pop("extends", None if path.stem == BASE else BASE)
        if parent is None:
            break
        path = _parent_path(str(parent), path, child.where.get("extends"))
    merged = chain.pop()
    while chain:
        merged = merge(merged, chain.pop())
    return merged


def merge(base: Map, over: Map, path: tuple[str, ...] = ()) -> Map:
    """`over` merged onto `base`, both left as they are."""
    if over.get("_replace") is True:
        merged = over.copy()
        del merged["_replace"]
        return merged
    merged = base.copy()
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, Map) and isinstance(below, Map) and not _is_atomic((*path, key)):
            value = merge(below, value, (*path, key))
        elif isinstance(value, Map):
            value = value.copy()
            value.pop("_replace", None)
        merged.put(key, value, over.where.get(key))
    return merged


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
        if (candidate := folder / f"{name}.yaml").is_file():
            return candidate
    raise SpecError(
        f"{where or child}: extends {name!r}, which is no family",
        closest(name, [BASE, *builtin_spec_names()]),
        "Name a family of porter, or a file that lies beside this one, without .yaml.",
    )


def _parse(path: Path) -> Map:
    try:
        document = YAML(typ="rt").load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}", "a readable spec file", "Check the path.") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not UTF-8 text", "a spec in YAML", "Save the file as UTF-8.") from error
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise SpecError(
            f"{path}{line}: {problem}",
            "a YAML 1.2 map",
            'Check indentation and quoting; an expression with a comma or a colon is quoted: "=first(cfg.a, 1)".',
        ) from error
    if not isinstance(document, CommentedMap):
        raise SpecError(f"{path}: not a YAML map", "a map such as `block: {mlp: {act: gelu}}`", "See CONTRIBUTING.md.")
    return _located(document, path)


def _located(node: CommentedMap, file: Path) -> Map:
    tree = Map()
    for key, value in node.items():
        where = Where(file, node.lc.key(key)[0] + 1)
        if not isinstance(key, str):
            raise SpecError(f"{where}: the key {key!r} is no text", "a name", f"Quote it: '{key}'.")
        tree.put(key, _plain(value, file, where), where)
    return tree


def _plain(value: Any, file: Path, where: Where) -> Any:
    if isinstance(value, CommentedMap):
        return _located(value, file)
    if isinstance(value, CommentedSeq):
        return [_plain(item, file, where) for item in value]
    if isinstance(value, str):
        _check_cut(value, where)
        return str(value)
    if isinstance(value, bool) or value is None:
        return value
    return int(value) if isinstance(value, int) else float(value)


def _check_cut(text: str, where: Where) -> None:
    """Refuses an expression that YAML cut at a comma: in a flow map, `{a: =first(x, 1)}` reads as `=first(x` and `1)`."""
    if text.startswith("=") and text.count("(") > text.count(")"):
        raise SpecError(
            f"{where}: the expression {text!r} ends inside a parenthesis",
            "a whole expression; YAML ends an unquoted one at the first comma of a {…} map",
            f'Quote it, from the = to the end: "{text}, …)".',
        )
