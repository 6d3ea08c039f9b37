"""`--set axis=value`: one change of the port's spec, by its full path or by any end of it that is unique."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from porter.errors import SpecError, closest
from porter.specs.document import Document
from porter.specs.expressions import check_expression, evaluate, is_expression
from porter.specs.keys import fields
from porter.specs.located import read_value
from porter.specs.messages import spec_error
from porter.specs.schema import Block
from porter.specs.tree import Map, Where, leaves

_LAYER = re.compile(r"layers\[(\d+)\]\.(.+)")
# Of a rule, what changes numbers; where tensors lie, the ledger checks.
RULE_FIELDS = {"attn.qkv": ("order", "groups"), "mlp.gate_up": ("order",), "moe.shared.gate_up": ("order",)}
SECTIONS = ("dims", "embed", "norm", "block", "final_norm", "head", "tokenizer")


@dataclass(frozen=True)
class Override:
    """One change: `path` is full, except for layers[3].attn.softcap, which is applied to the resolved layer."""

    text: str
    path: str
    value: Any

    @property
    def place(self) -> Where:
        """Stands for the file and line in errors."""
        return Where(Path(f"--set {self.text}"), 0)


def parse_override(text: str, tree: Map) -> Override:
    """The change that `axis=value` asks for.

    Raises:
        SpecError: no =, no such axis, or an ending that several axes share.
    """
    name, equals, raw = text.partition("=")
    name, raw = name.strip(), raw.strip()
    if not equals or not name:
        raise SpecError(f"--set {text!r} has no =", "axis=value", "For example --set block.mlp.act=gelu.")
    if not raw:
        raise SpecError(f"--set {text} has no value", "axis=value; null is a value", f"For example --set {name}=null.")
    path = name if _LAYER.fullmatch(name) else _full_path(text, name, tree)
    if is_expression(raw):
        layer = ["i"] if path.startswith(("block.", "layers[", "patterns.")) else []
        check_expression(raw, ["cfg", *tree["dims"], *layer], f"--set {text}")
    value = raw if is_expression(raw) else read_value(raw, f"--set {text}")
    return Override(text, path, value)


def axis_paths(tree: Map) -> list[str]:
    """Every path that --set takes: the fields of the schema, what patterns set, and how fused projections are split."""
    paths = [".".join(path) for section in SECTIONS for path in fields(Document, section)]
    if tree["block"].get("moe") is None:  # so that act means that of the one feed-forward branch there is
        paths = [path for path in paths if not path.startswith("block.moe.")]
    set_by_patterns = (path for path, _ in leaves(tree) if path[0] == "patterns" and path[2:3] and path[-1] != "_if")
    paths += [".".join(path) for path in set_by_patterns]
    fused = [name for name, rule in tree["weights"]["block"].items() if isinstance(rule, Map) and "order" in rule]
    return paths + [f"weights.block.{name}.{field}" for name in fused for field in RULE_FIELDS.get(name, ())]


def keys_of(path: str) -> list[str]:
    """The keys of a path in the tree; the name of a weight rule, attn.qkv, is one key."""
    if not path.startswith("weights.block."):
        return path.split(".")
    rule, _, field = path.removeprefix("weights.block.").rpartition(".")
    return ["weights", "block", rule, field]


def apply_overrides(tree: Map, overrides: Sequence[Override]) -> Map:
    """The tree with the changes of axes in place; those of single layers come later (change_layers)."""
    changed = tree.copy()
    for override in overrides:
        if _LAYER.fullmatch(override.path):
            continue
        *parents, last = keys_of(override.path)
        node = changed
        for key in parents:
            below = node.get(key)
            if not isinstance(below, Map):
                below = Map()
                node.put(key, below, override.place)
            node = below
        value = override.value.copy() if isinstance(override.value, Map) else override.value
        node.put(last, value, override.place)
    return changed


def change_layers(
    blocks: tuple[Block, ...], overrides: Iterable[Override], names: Mapping[str, Any]
) -> tuple[Block, ...]:
    """The resolved layers with the changes of single ones.

    Raises:
        SpecError: there is no such layer or axis, or the value is not allowed.
    """
    for override in overrides:
        if match := _LAYER.fullmatch(override.path):
            layer, path = int(match[1]), match[2].split(".")
            if layer >= len(blocks):
                raise SpecError(
                    f"--set {override.text}: there is no layer {layer}",
                    f"0 to {len(blocks) - 1}",
                    "Name a layer it has.",
                )
            changed = _changed(blocks[layer], layer, path, override, names)
            blocks = (*blocks[:layer], changed, *blocks[layer + 1 :])
    return blocks


def _changed(block: Block, layer: int, path: list[str], override: Override, names: Mapping[str, Any]) -> Block:
    known = [".".join(each[1:]) for each in fields(Document, "block")]
    if ".".join(path) not in known:
        raise SpecError(
            f"--set {override.text}: no such axis", closest(".".join(path), known), "Name an axis of block."
        )
    values = node = block.model_dump()
    for depth, key in enumerate(path[:-1]):
        if node[key] is None:
            raise SpecError(
                f"--set {override.text}: {'.'.join(path[: depth + 1])} is null in layer {layer}",
                "a layer that has one",
                f"Set block.{'.'.join(path[: depth + 1])} as a whole, or another layer.",
            )
        node = node[key]
    value = override.value
    node[path[-1]] = evaluate(value, {**names, "i": layer}, f"--set {override.text}") if is_expression(value) else value
    try:
        return Block.model_validate(values)
    except ValidationError as error:
        raise spec_error(error, Block, Map(), (f"layers[{layer}]",), f"--set {override.text}") from error


def _full_path(text: str, name: str, tree: Map) -> str:
    paths = axis_paths(tree)
    if name in paths or _in_case(name, tree) or _is_source(name, tree):
        return name
    matches = [path for path in paths if path.endswith(f".{name}")]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise SpecError(
            f"--set {text}: {len(matches)} axes end in {name}", ", ".join(matches), "Give more of the path."
        )
    guess = _closest_axis(name, paths)
    raise SpecError(f"--set {text}: no axis is called {name!r}", guess, "porter specs show NAME --axes lists all.")


def _closest_axis(name: str, paths: list[str]) -> str:
    """The closest path, or the path with the closest end: `windw` means block.attn.window."""
    depth = name.count(".") + 1
    ends = {".".join(path.split(".")[-depth:]): path for path in reversed(paths)}
    guess = closest(name, [*ends, *paths])
    found = guess.removeprefix("did you mean ").removesuffix("?")
    return f"did you mean {ends.get(found, found)}?" if guess.startswith("did") else "a path such as block.mlp.act"


def _is_source(name: str, tree: Map) -> bool:
    """Whether `name` is where a rule finds its tensors, weights.block.attn.v.src; the ledger checks the value."""
    keys = keys_of(name)
    return keys[:2] == ["weights", "block"] and keys[3:] == ["src"] and keys[2] in tree["weights"]["block"]


def _in_case(name: str, tree: Map) -> bool:
    """Whether `name` is an axis of `block` below a pattern case that exists."""
    parts = name.split(".")
    if len(parts) < 5 or parts[0] != "patterns" or parts[2] != "cases":
        return False
    pattern = (tree.get("patterns") or {}).get(parts[1]) or {}
    return parts[3] in pattern.get("cases", {}) and ("block", *parts[4:]) in set(fields(Document, "block"))
