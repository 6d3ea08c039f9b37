"""A draft as a YAML file: what differs from its parent, each line with how it was decided."""

import json
import re
from collections.abc import Mapping
from typing import Any

from porter.explanation.draft.sketch import Change, Sketch, as_map, put
from porter.specs.tree import Map

_PLAIN = re.compile(r"[A-Za-z_/][\w./{}!*-]*( [\w./-]+)*$")
_WORDS = {"null", "true", "false", "yes", "no", "on", "off"}
_WIDTH = 120


def yaml_of(sketch: Sketch, head: list[str], extra: Mapping[str, Any], sizes: Mapping[str, Any]) -> str:
    """The text of the file.

    Args:
        head: comment lines at the top.
        extra: config_defaults, ignore_config.
        sizes: size -> its entry.
    """
    tree, notes = Map(), {}
    for change in sketch.changes:
        put(tree, change.keys, _whole(sketch, change))
        notes[change.keys] = change.why
    lines = ["# yaml-language-server: $schema=schema.json", *(f"# {line}" for line in head)]
    lines += [
        f"extends: {sketch.parent.name}",
        f"model_type: {sketch.model_type}",
        f"architecture: {sketch.architecture}",
    ]
    for key, value in extra.items():
        if value:
            lines += [f"{key}:", *(f"  {_key(inner)}: {flow(each)}" for inner, each in value.items())]
    lines += _lines(tree, notes, (), 0)
    lines.append("sizes:")
    for name, entry in sizes.items():
        lines += [f"  {name}:", *(f"    {key}: {flow(value)}" for key, value in entry.items())]
    return "\n".join(lines) + "\n"


def _whole(sketch: Sketch, change: Change) -> Any:
    """A map that takes the place of the parent's says so: the file is merged onto the parent, map by map."""
    node: Any = sketch.parent.tree
    for key in change.keys:
        node = node.get(key) if isinstance(node, Map) else None
    is_merged = isinstance(node, Map) and isinstance(change.value, Mapping) and change.keys[0] != "weights"
    return {"_replace": True, **change.value} if is_merged else change.value


def _lines(tree: Map, notes: Mapping[tuple[str, ...], str], path: tuple[str, ...], depth: int) -> list[str]:
    lines = []
    for key, value in tree.items():
        here, pad = (*path, key), "  " * depth
        note = f"  # {notes[here]}" if here in notes else ""
        below = any(each[: len(here)] == here and each != here for each in notes)
        if (isinstance(value, Map) and value and (below or not note)) or (
            isinstance(value, Map) and len(pad + key + flow(value)) > _WIDTH
        ):
            lines += [f"{pad}{_key(key)}:{note}", *_lines(value, notes, here, depth + 1)]
        else:
            lines.append(f"{pad}{_key(key)}: {flow(value)}{note}")
    return lines


def _key(key: str) -> str:
    return flow(key)


def flow(value: Any) -> str:
    """A value on one line, as YAML 1.2 reads it back."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{flow(str(key))}: {flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text or "e" not in text else text.replace("e", ".0e")
    if isinstance(value, int):
        return str(value)
    text = str(value)
    plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS and not re.search(r"[{}*!]", text)
    return text if plain else json.dumps(text, ensure_ascii=False)


__all__ = ["as_map", "flow", "yaml_of"]
