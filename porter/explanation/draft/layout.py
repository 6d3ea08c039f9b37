"""Tensor names and shapes of an unknown checkpoint, taken apart: layers, modules, what lies outside the layers."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

Shape = tuple[int, ...] | None
_NUMBER = re.compile(r"^(.*?)(\d+)\.(.+)$")
_HEAD = re.compile(r"^(.+)\.(\d+)$")
BLOCKERS = {  # part of a tensor's name -> what it is of
    "A_log": "a state-space mixer (Mamba)", "conv1d": "a convolution along the tokens", "x_proj": "a state-space mixer",
    "time_decay": "WKV, a recurrent mixer (RWKV)", "time_mix": "WKV, a recurrent mixer (RWKV)",
    "time_maa": "WKV, a recurrent mixer (RWKV)", "linear_attn": "linear attention with a state",
    "short_conv": "a convolution along the tokens", "conv.": "a convolution along the tokens",
    "kv_a_proj": "latent attention (MLA)", "altup": "AltUp residuals", "laurel": "Laurel residuals",
    "per_layer_": "per-layer embeddings", "cross_attn": "cross-attention", "encoder_attn": "cross-attention",
    "encoder.": "an encoder", "hyper_connection": "hyper-connections", "recurrent": "a recurrent mixer",
    "lambda_q": "differential attention", "indexer": "sparse attention that picks its keys",
}  # fmt: skip
MIXERS = {"kv_a_proj": "mla"}  # part of a tensor's name -> the mixer that it is of


@dataclass(frozen=True)
class Layout:
    """A checkpoint's names.

    Attributes:
        layer: prefix of a layer, with {i}.
        num_layers: layers that have tensors.
        inner: names in a layer -> shape, of the layers that have it.
        outer: names outside the layers -> shape.
        having: names in a layer -> the layers that have it.
    """

    layer: str
    num_layers: int
    inner: Mapping[str, Shape]
    outer: Mapping[str, Shape]
    having: Mapping[str, frozenset[int]]

    def all_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor under its full name."""
        found = {name: shape or () for name, shape in self.outer.items()}
        for name, layers in self.having.items():
            found |= {f"{self.layer.replace('{i}', str(i))}.{name}": self.inner[name] or () for i in layers}
        return found

    def sparse(self) -> tuple[bool, ...]:
        """For each layer, whether it has experts: numbered, or stacked in tensors of three axes."""
        stacked = {name for name, shape in self.inner.items() if shape is not None and len(shape) == 3}
        names = [name for name in self.having if "experts." in name or name in stacked]
        having = set().union(*(self.having[name] for name in names))
        return tuple(i in having for i in range(self.num_layers))

    def modules(self) -> dict[str, dict[str, Shape]]:
        """Module in a layer -> its tensors by their last name; a bare parameter stands under its own name as ''.

        Vectors of one length that are numbered, one for each head, are one module with {h} and a row for each.
        """
        return _stacked_heads(_by_module(self.inner))

    def outer_modules(self) -> dict[str, dict[str, Shape]]:
        return _by_module(self.outer)


def _by_module(names: Mapping[str, Shape]) -> dict[str, dict[str, Shape]]:
    found: dict[str, dict[str, Shape]] = {}
    for name, shape in names.items():
        module, _, last = name.rpartition(".")
        if last in ("weight", "bias"):
            found.setdefault(module, {})[last] = shape
        else:
            found.setdefault(name, {})[""] = shape
    return found


def _stacked_heads(modules: dict[str, dict[str, Shape]]) -> dict[str, dict[str, Shape]]:
    owners: dict[str, list[str]] = {}
    for name, tensors in modules.items():
        shape = tensors.get("weight")
        if (match := _HEAD.match(name)) and shape is not None and len(shape) == 1 and "expert" not in name:
            owners.setdefault(match[1], []).append(name)
    for owner, members in owners.items():
        shapes = {modules[name]["weight"] for name in members}
        if len(members) > 1 and len(shapes) == 1 and None not in shapes:
            stacked = {part: (len(members), *(modules[members[0]][part] or ())) for part in modules[members[0]]}
            modules = {name: each for name, each in modules.items() if name not in members}
            modules[f"{owner}.{{h}}"] = dict(stacked)
    return modules


def take_apart(tensors: Mapping[str, Shape]) -> Layout | None:
    """The layout of a stack of layers; None where there is none."""
    stacks: dict[str, dict[int, dict[str, Shape]]] = {}
    for name, shape in tensors.items():
        if match := _NUMBER.match(name):
            stacks.setdefault(match[1], {}).setdefault(int(match[2]), {})[match[3]] = shape
    if not stacks:
        return None
    prefix = max(stacks, key=lambda each: sum(map(len, stacks[each].values())))
    layers = stacks[prefix]
    inner: dict[str, Shape] = {}
    having: dict[str, set[int]] = {}
    for index in sorted(layers):
        for name, shape in layers[index].items():
            inner.setdefault(name, shape)
            having.setdefault(name, set()).add(index)
    outer = {name: shape for name, shape in tensors.items() if not name.startswith(prefix)}
    return Layout(f"{prefix}{{i}}", len(layers), inner, outer, {name: frozenset(each) for name, each in having.items()})


def find_blockers(tensors: Mapping[str, Shape], known: Collection[str]) -> dict[str, str]:
    """What needs code: what it is -> a tensor that shows it.

    Args:
        known: mixers that families have, which need no more code.
    """
    found: dict[str, str] = {}
    for name in sorted(tensors):
        for part, what in BLOCKERS.items():
            if part in name and MIXERS.get(part) not in known:
                found.setdefault(what, name)
    return found
