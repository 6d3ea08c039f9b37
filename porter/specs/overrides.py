"""`--set axis=value`: one change of the port's spec, by its full path or by any end of it that is unique."""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML, YAMLError

from porter.errors import SpecError, closest
from porter.specs.family import Document, inner_models, spec_error
from porter.specs.schema import Block
from porter.specs.tree import Map, Where, leaves

_LAYER = re.compile(r"layers\[(\d+)\]\.(.+)")
SECTIONS = ("dims", "embed", "norm", "block", "final_norm", "head", "tokenizer")


@dataclass(frozen=True)
class Override:
    """One change: `path` is full, except for layers[3].attn.softcap, which is applied to the resolved layer."""

    text: str
    path: str
    value: Any


def parse_override(text: str, tree: Map) -> Override:
    """The change that `axis=value` asks for.

    Raises:
        SpecError: no =, no such axis, or an ending that several axes share.
    """
    name, equals, raw = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise SpecError(f"--set {text!r} has no =", "axis=value", "For example --set block.mlp.act=gelu.")
    try:
        value = YAML(typ="safe").load(io.StringIO(raw)) if not raw.startswith("=") else raw
    except YAMLError as error:
        raise SpecError(
            f"--set {text}: the value is no YAML", "a number, a word, null or a list", "Quote it."
        ) from error
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value):
        value = float(value)
    if _LAYER.fullmatch(name):
        return Override(text, name, value)
    return Override(text, _full_path(name, tree), value)


def axis_paths(tree: Map) -> list[str]:
    """Every path that --set takes: the fields of the schema, and those that pattern cases set."""
    paths = [".".join(path) for section in SECTIONS for path in _fields(Document, section)]
    paths += [".".join(path) for path, _ in leaves(tree) if path[0] == "patterns" and path[2] == "cases"]
    return paths


def apply_overrides(tree: Map, overrides: Sequence[Override]) -> Map:
    """The tree with the changes of axes in place; those of single layers come later (layer_overrides)."""
    changed = tree.copy()
    for override in overrides:
        if _LAYER.fullmatch(override.path):
            continue
        *parents, last = override.path.split(".")
        node = changed
        for key in parents:
            below = node.get(key)
            if not isinstance(below, Map):
                below = Map()
                node.put(key, below, None)
            node = below
        node.put(last, override.value, Where(Path(f"--set {override.text}"), 0))
    return changed


def layer_overrides(
    overrides: Iterable[Override], num_layers: int
) -> Iterator[Callable[[tuple[Block, ...]], tuple[Block, ...]]]:
    """The changes of single layers, as functions on the expanded blocks."""
    for override in overrides:
        if match := _LAYER.fullmatch(override.path):
            layer, path = int(match[1]), match[2].split(".")
            if layer >= num_layers:
                raise SpecError(
                    f"--set {override.text}: there is no layer {layer}",
                    f"0 to {num_layers - 1}",
                    "Name a layer it has.",
                )
            yield _one_layer(layer, path, override)


def _one_layer(layer: int, path: list[str], override: Override) -> Callable[[tuple[Block, ...]], tuple[Block, ...]]:
    def change(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        values = blocks[layer].model_dump()
        node = values
        for key in path[:-1]:
            node = node[key] if isinstance(node.get(key), dict) else {}
        if path[-1] not in node:
            known = [".".join(each[1:]) for each in _fields(Document, "block")]
            raise SpecError(f"--set {override.text}: no such axis", closest(".".join(path), known), "Name an axis.")
        node[path[-1]] = override.value
        try:
            block = Block.model_validate(values)
        except ValidationError as error:
            raise spec_error(error, Map(), (f"layers[{layer}]",)) from error
        return (*blocks[:layer], block, *blocks[layer + 1 :])

    return change


def _full_path(name: str, tree: Map) -> str:
    paths = axis_paths(tree)
    if name in paths or _in_case(name, tree):
        return name
    matches = [path for path in paths if path.endswith(f".{name}")]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise SpecError(f"--set {name}: {len(matches)} axes end so", ", ".join(matches), "Give more of the path.")
    raise SpecError(f"no axis is called {name!r}", closest(name, paths), "porter specs show --axes lists all.")


def _in_case(name: str, tree: Map) -> bool:
    """Whether `name` is an axis of `block` below a pattern case that exists."""
    parts = name.split(".")
    if len(parts) < 5 or parts[0] != "patterns" or parts[2] != "cases":
        return False
    pattern = (tree.get("patterns") or {}).get(parts[1])
    return bool(pattern) and parts[3] in pattern["cases"] and ("block", *parts[4:]) in set(_fields(Document, "block"))


def _fields(model: type[BaseModel], name: str, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    inner = list(inner_models(model.model_fields[name].annotation, (), {}))
    path = (*path, name)
    if not inner:
        yield path
        return
    if path[-1] in {"rope", "qk_norm", "scaling"}:
        yield path  # the whole map may be null
    for kind, _, _ in inner:
        for field in kind.model_fields:
            yield from _fields(kind, field, path)
