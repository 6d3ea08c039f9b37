"""A draft as the text of a map file, and what is to be said of it."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from porter.references.user_module.draft import Draft
from porter.references.user_module.map_file import Layers, Line

_PLAIN = re.compile(r"[A-Za-z_][\w.]*(@\w+)?(#\d+)?(:(input|output)\d*)?")
_PATTERN = re.compile(r"[A-Za-z_][\w.{}]*")
_WORDS = frozenset(["true", "false", "null", "yes", "no", "on", "off", "y", "n"])  # that a reader may take for values
_SHOWN = 8


def map_text(draft: Draft, module: str, model: str) -> str:
    """The file: a line a node, comments where a layout is proposed or a node was not found by its values."""
    lines = [
        f"# porter map {module}: {draft.named} of {draft.total} nodes of {model}",
        *_layers(draft.layers),
        "nodes:",
    ]
    everywhere, single = _shared(draft.found)
    doubtful = {_bare(name) for name in draft.by_weights}
    lines += [f"  {node}: {line_text(line)}{_comment(node, line, doubtful)}" for node, line in everywhere.items()]
    lines += [f"  {name}: {line_text(line)}{_comment(_bare(name), line, doubtful)}" for name, line in single.items()]
    lines += [f"  {node}: {line_text(line)}" for node, line in draft.found.get(None, {}).items()]
    if len(lines) == lines.index("nodes:") + 1:
        lines[-1] = "nodes: {}"
    lines += [f"  # not named: {said}" for said in unnamed(draft)]
    return "\n".join(lines) + "\n"


def line_text(line: Line) -> str:
    """What stands behind a node's name: the place alone, or a map with its layout."""
    declared = line.declared()
    place = scalar(declared.pop("at"))
    if not declared:
        return place
    return f"{{at: {place}, {', '.join(f'{key}: {scalar(value)}' for key, value in declared.items())}}}"


def scalar(value: object) -> str:
    """A value as YAML, quoted where it must be."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)


def proposed(draft: Draft) -> list[str]:
    """The lines that declare a layout, one for each node and layout."""
    everywhere, single = _shared(draft.found)
    outside = draft.found.get(None, {})
    lines = {**everywhere, **single, **outside}
    return [f"{node}: {line_text(line)}" for node, line in lines.items() if set(line.declared()) - {"at"}]


def unnamed(draft: Draft) -> list[str]:
    """Nodes that have no line, with the reason, those of all layers together."""
    return list(_grouped(draft.unnamed.items()))


def by_weights(draft: Draft) -> list[str]:
    """Nodes whose values differ, named by their weights."""
    return list(dict.fromkeys(_bare(name) for name in draft.by_weights))


def _grouped(items: Iterable[tuple[str, str]]) -> Iterator[str]:
    groups: dict[tuple[str, str], list[str]] = {}
    for name, reason in items:
        found = re.fullmatch(r"layers\.(\d+)\.(.+)", name)
        layer, node = (found[1], found[2]) if found else ("", name)
        general = reason.replace(f".{layer}.", ".{i}.") if layer else reason
        groups.setdefault((node, general), []).append(layer)
    for (node, reason), layers in groups.items():
        at = f" in layers {', '.join(layers[:_SHOWN])}{', …' if len(layers) > _SHOWN else ''}" if layers[0] else ""
        yield f"{node}{at}: {reason}"


def _layers(layers: Layers) -> Iterator[str]:
    declared = layers.model_dump(exclude_defaults=True)
    at = declared.pop("at")
    if not declared and isinstance(at, str):
        yield f"layers: {at if _PATTERN.fullmatch(at) else json.dumps(at)}"
        return
    yield "layers:"
    yield f"  at: {json.dumps(at)}" if isinstance(at, str) else f"  at: [{', '.join(map(scalar, at))}]"
    yield from (f"  {key}: {value[0] if len(value) == 1 else list(value)}" for key, value in declared.items())


def _shared(found: Mapping[int | None, Mapping[str, Line]]) -> tuple[dict[str, Line], dict[str, Line]]:
    """Lines that are alike in every layer, and the others as layers.3.attn.q."""
    layers = {index: lines for index, lines in found.items() if index is not None}
    nodes = dict.fromkeys(node for lines in layers.values() for node in lines)
    everywhere: dict[str, Line] = {}
    for node in nodes:
        own = [lines.get(node) for lines in layers.values()]
        if own[0] is not None and all(line == own[0] for line in own):
            everywhere[node] = own[0]
    single = {
        f"layers.{index}.{node}": line
        for index, lines in layers.items() for node, line in lines.items() if node not in everywhere
    }  # fmt: skip
    return everywhere, single


def _comment(node: str, line: Line, doubtful: set[str]) -> str:
    if node in doubtful:
        return "  # by its weights; its values differ from the reference's"
    return "  # proposed: its values fit" if set(line.declared()) - {"at"} else ""


def _bare(name: str) -> str:
    return re.sub(r"^layers\.\d+\.", "", name)
