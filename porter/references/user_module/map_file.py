"""A map file: where the nodes of a model show in a user's module, and how they are laid out there.

layers: blocks.{i}                        # the module of layer i; or a list of modules
nodes:
  attn.norm: ln_1                         # inside a layer: the output of a module below it
  attn.ctx: attn.proj:input               # what a module is given
  attn.q: {at: attn.qkv, slice: 0:96}     # a part of a fused projection; other layouts are in layout.py
  layers.3.mlp.act: ffn.down:input        # of one layer alone
  final.norm: ln_f                        # outside layers, from the root
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from porter.errors import ArtifactError, SpecError, closest
from porter.references.user_module.layout import Layout
from porter.references.user_module.tap import Tap
from porter.specs.kinds import Strict
from porter.specs.located import Map, read_map

OUTSIDE = ("embed.out", "final.norm", "logits")
INSIDE = (
    "attn.norm", "attn.q", "attn.k", "attn.v", "attn.q_norm", "attn.k_norm", "attn.q_rope", "attn.k_rope", "attn.ctx",
    "attn.inner_norm", "attn.out", "attn.post_norm", "resid_mid", "mlp.norm", "mlp.gate", "mlp.up", "mlp.act",
    "mlp.inner_norm", "mlp.out", "mlp.post_norm",
)  # fmt: skip
_OTHER_SCOPES = ("moe.", "ssm.", "mla.")  # nodes of families with other branches
_OF_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_KEYS = ("layers", "nodes")


class Line(Layout):
    """Where one node shows, and its layout."""

    at: str = Field(description="A tap: path, path:input, path@function#1.")

    @field_validator("at")
    @classmethod
    def _is_tap(cls, value: str) -> str:
        Tap.read(value)
        return value

    @property
    def tap(self) -> Tap:
        return Tap.read(self.at)


class Layers(Strict):
    """The modules of the layers, and where the residual stream goes in and out."""

    at: str | tuple[str, ...] = Field(description="Path with {i}, or a path for each layer.")
    input: tuple[int, ...] = Field((0,), description="Which floating tensor of its arguments is the stream, or which are its parts.")  # fmt: skip  # noqa: E501
    output: tuple[int, ...] = Field((0,), description="Which floating tensors of its results.")

    @field_validator("at", "input", "output", mode="before")
    @classmethod
    def _of_list(cls, value: Any) -> Any:
        if isinstance(value, int):
            return (value,)
        return tuple(value) if isinstance(value, list) else value

    @field_validator("input", "output")
    @classmethod
    def _counts(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 0 or len(set(value)) < len(value):
            raise ValueError(f"{list(value)} are not numbers of tensors, 0 being the first")
        return value

    @field_validator("at")
    @classmethod
    def _has_number(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if isinstance(value, str) and "{i}" not in value:
            raise ValueError(f"{value!r} has no {{i}}, the number of the layer")
        return value

    def paths(self, count: int) -> tuple[str, ...]:
        """The path of each layer."""
        if isinstance(self.at, str):
            return tuple(self.at.replace("{i}", str(index)) for index in range(count))
        return self.at


@dataclass(frozen=True)
class NodeMap:
    """A map, read.

    Attributes:
        inside: node -> its line, for every layer.
        single: (layer, node) -> its line, for one.
        outside: final.norm, logits.
        places: node, as the file writes it -> file and line.
    """

    layers: Layers
    inside: Mapping[str, Line]
    single: Mapping[tuple[int, str], Line]
    outside: Mapping[str, Line]
    source: str = "the map"
    places: Mapping[str, str] = field(default_factory=dict)

    def of_layer(self, index: int) -> dict[str, Line]:
        """The lines of one layer's nodes."""
        own = {node: line for (layer, node), line in self.single.items() if layer == index}
        return {**self.inside, **own}

    def where(self, index: int | None, node: str) -> str:
        """File and line of a node."""
        return self.places.get(f"layers.{index}.{node}") or self.places.get(node) or self.source


def read_node_map(given: Path | str | Mapping[str, Any]) -> NodeMap:
    """The map of a file, or of its contents.

    Raises:
        ArtifactError: the file cannot be read.
        SpecError: it is no map; with file and line.
    """
    if isinstance(given, Mapping):
        return _parse(given, "map", {})
    path = Path(given)
    try:
        path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ArtifactError(f"{path}: {reason}", "a map file", "porter map MODULE --out FILE drafts one.") from error
    try:
        read = read_map(path)
    except SpecError as error:
        fix = "porter map MODULE --out FILE drafts one; a path with {i} within braces needs quotes."
        raise SpecError(error.wrong, "a map file: the keys layers and nodes", fix) from error
    return _parse(read.plain(), str(path), _places(read))


def _places(read: Map) -> dict[str, str]:
    nodes = read.get("nodes")
    own = {key: str(where) for key, where in read.where.items()}
    return own | ({key: str(where) for key, where in nodes.where.items()} if isinstance(nodes, Map) else {})


def _parse(values: Mapping[str, Any], source: str, places: Mapping[str, str]) -> NodeMap:
    for key in values:
        if key not in _KEYS:
            _refuse(places.get(key, source), f"unknown key {key!r}", closest(key, _KEYS))
    if not isinstance(values.get("nodes"), Mapping) or "layers" not in values:
        _refuse(source, "it lacks layers, or nodes", "layers: blocks.{i}, and nodes: a map of nodes to modules")
    layers = values["layers"] if isinstance(values["layers"], Mapping) else {"at": values["layers"]}
    inside: dict[str, Line] = {}
    single: dict[tuple[int, str], Line] = {}
    outside: dict[str, Line] = {}
    for name, value in values["nodes"].items():
        place = places.get(name, source)
        line = _check(Line, value if isinstance(value, Mapping) else {"at": value}, f"{place}: {name}")
        found = _OF_LAYER.fullmatch(name)
        _check_name(found[2] if found else name, place, OUTSIDE if found else ())
        if found:
            single[int(found[1]), found[2]] = line
        elif name in OUTSIDE:
            outside[name] = line
        else:
            inside[name] = line
    found_layers = _check(Layers, layers, f"{places.get('layers', source)}: layers")
    return NodeMap(found_layers, inside, single, outside, source, places)


def _check_name(node: str, place: str, wrong: Iterable[str]) -> None:
    if node in ("resid_pre", "resid_post", "embed.out"):
        _refuse(place, f"{node} is what goes into and out of the layers", "no line: `layers` says it")
    if node in wrong or (node not in (*INSIDE, *OUTSIDE) and not node.startswith(_OTHER_SCOPES)):
        _refuse(place, f"no node is called {node!r}", closest(node, INSIDE if wrong else (*INSIDE, *OUTSIDE[1:])))


def _check(kind: Any, values: Mapping[str, Any], place: str) -> Any:
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"][:1])
        said = str(first["msg"]).removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            said = f"unknown key; {closest(key, kind.model_fields)}"
        raise SpecError(f"{place}: {key}: {said}", f"a line such as {_EXAMPLE}", "Correct the line.") from error


_EXAMPLE = "attn.q: {at: attn.qkv, slice: 0:96}"


def _refuse(place: str, wrong: str, expected: str) -> None:
    raise SpecError(f"{place}: {wrong}", expected, "Correct the map; porter map MODULE drafts one.")
