"""YAML 1.2 read with the file and line of every key: `off` and `on` stay text, 1e-6 is a number.

Nodes are composed, never constructed: half the time of ruamel's round trip, and no tag can make an object.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from porter.errors import SpecError

MAX_NODES = 20_000  # the longest family has 600; an alias to an alias to … would be millions
_TAG = "tag:yaml.org,2002:"


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

    def plain(self) -> dict[str, Any]:
        """The values as ordinary dicts, at any depth: what JSON and dataclasses can copy."""
        return {key: _unplaced(value) for key, value in self.items()}


def _unplaced(value: Any) -> Any:
    if isinstance(value, Map):
        return value.plain()
    return [_unplaced(item) for item in value] if isinstance(value, list) else value


def read_map(path: Path, *, without: re.Pattern[str] | None = None) -> Map:
    """The YAML map in the file `path`.

    Args:
        without: maps that are taken as empty; parsing is what takes the time.

    Raises:
        SpecError: it cannot be read, is no map, repeats a key, or holds an expression that YAML cut at a comma.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}", "a readable spec file", "Check the path.") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise SpecError(f"{path}:{line}: not UTF-8 text", "a spec in YAML", "Save the file as UTF-8.") from error
    return _map_of_text(without.sub("{}", text) if without else text, path).copy()


def read_value(text: str, name: str) -> Any:
    """The YAML value that `text` is, as an override gives it; `name` stands for its file in errors."""
    where = Where(Path(name), 0)
    node = _node_of_value(text, where.file)
    return None if node is None else _Reader(where.file, lines=False).value(node, where)


@lru_cache(maxsize=4096)  # a search tries the same values again and again; a reader makes each value anew
def _node_of_value(text: str, path: Path) -> Node | None:
    return _compose(text, path, named=False)


@lru_cache(maxsize=1024)  # more than there are families, or reading them in turn would find none
def _map_of_text(text: str, path: Path) -> Map:
    node = _compose(text, path)
    if not isinstance(node, MappingNode):
        found = "an empty file" if node is None else "a list" if isinstance(node, SequenceNode) else "a single value"
        raise SpecError(
            f"{path}:1: {found} at the top level",
            "a map such as `block: {mlp: {act: gelu}}`",
            "See CONTRIBUTING.md, A family.",
        )
    return _Reader(path).map(node)


def _compose(text: str, path: Path, *, named: bool = True) -> Node | None:
    try:
        node: Node | None = YAML(typ="safe", pure=True).compose(text)
        return node
    except (YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark and named else ""
        raise SpecError(f"{path}{line}: {_problem(error)}", "YAML 1.2", _fix(error)) from error


def _problem(error: BaseException) -> str:
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if "'\\t'" in problem:
        return "a tab where an indentation or a value is expected"
    return problem.removeprefix("but ")


def _fix(error: BaseException) -> str:
    if "a tab" in _problem(error):
        return "Indent with spaces."
    return 'Check indentation and quoting; an expression with a comma or a colon is quoted: "=first(cfg.a, 1)".'


class _Reader:
    """Nodes of one document as maps, lists and scalars."""

    def __init__(self, file: Path, *, lines: bool = True) -> None:
        self.file, self.lines = file, lines
        self.seen = 0

    def map(self, node: MappingNode) -> Map:
        tree = Map()
        for key_node, value_node in node.value:
            where = Where(self.file, key_node.start_mark.line + 1 if self.lines else 0)
            if not isinstance(key_node, ScalarNode) or key_node.tag not in {f"{_TAG}str", f"{_TAG}merge"}:
                key = key_node.value if isinstance(key_node, ScalarNode) else "a list or map"
                raise SpecError(f"{where}: the key {key} is no text", "a name", f"Quote it: '{key}'.")
            key = str(key_node.value)
            if key in tree:
                raise SpecError(
                    f"{where}: the key {key!r} stands twice",
                    f"one; the first is at {tree.where[key]}",
                    "Remove one of them.",
                )
            tree.put(key, self.value(value_node, where), where)
        return tree

    def value(self, node: Node, where: Where) -> Any:
        self.seen += 1
        if self.seen > MAX_NODES:
            raise SpecError(f"{where}: more than {MAX_NODES} values", "a spec", "Write it without aliases (*name).")
        if not isinstance(node, ScalarNode) and node.tag not in {f"{_TAG}map", f"{_TAG}seq"}:
            raise SpecError(f"{where}: the tag {node.tag}", "a plain value", "Remove the tag.")
        try:
            if isinstance(node, MappingNode):
                return self.map(node)
            if isinstance(node, SequenceNode):
                return [self.value(item, where) for item in node.value]
        except RecursionError as error:
            raise SpecError(f"{where}: it holds itself", "a spec", "Write it without aliases (*name).") from error
        assert isinstance(node, ScalarNode)
        return _scalar(node, where)


def _scalar(node: ScalarNode, where: Where) -> Any:
    text, kind = str(node.value), str(node.tag).removeprefix(_TAG)
    if kind == "null":
        return None
    try:
        if kind == "int":
            return int(text.replace("_", ""), 0) if text.lstrip("+-").startswith(("0x", "0o")) else int(text)
        if kind == "float":
            return float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
        if kind == "bool":
            return {"true": True, "false": False}[text.lower()]
    except (ValueError, KeyError) as error:
        raise SpecError(
            f"{where}: {text!r} is no {kind}", "true, false or a decimal number", "Quote it if it is text."
        ) from error
    if kind not in {"str", "timestamp", "value", "merge"}:
        raise SpecError(f"{where}: the tag {node.tag}", "a plain value", "Remove the tag.")
    if node.style is None:
        _check_cut(text, where)
    return text


def _check_cut(text: str, where: Where) -> None:
    """Refuses an expression that YAML cut at a comma: `{a: =first(x, 1)}` reads as `=first(x` and a key `1)`."""
    if text.startswith("=") and (text.count("(") > text.count(")") or text.count("[") > text.count("]")):
        raise SpecError(
            f"{where}: the expression {text!r} ends inside a parenthesis",
            "a whole expression; YAML ends an unquoted one at the first comma of a {…} map",
            f'Quote it, from the = to the end: "{text}, …)".',
        )
