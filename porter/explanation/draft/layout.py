"""Tensor names and shapes of an unknown checkpoint, taken apart: layers, modules, what lies outside the layers."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

Shape = tuple[int, ...] | None
_NUMBER = re.compile(r"^(.*?)(\d+)\.(.+)$")
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


@dataclass(frozen=True)
class Layout:
    """A checkpoint's names.

    Attributes:
        layer: prefix of a layer, with {i}.
        num_layers: layers that have tensors.
        inner: names in a layer -> shape, of the layers that have it.
        outer: names outside the layers -> shape.
        everywhere: names that every layer has.
    """

    layer: str
    num_layers: int
    inner: Mapping[str, Shape]
    outer: Mapping[str, Shape]
    everywhere: frozenset[str]

    def all_shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors that every layer has, and those outside, under their full names."""
        found = {name: shape or () for name, shape in self.outer.items()}
        for i in range(self.num_layers):
            prefix = self.layer.replace("{i}", str(i))
            found |= {f"{prefix}.{name}": self.inner[name] or () for name in self.everywhere}
        return found

    def modules(self) -> dict[str, dict[str, Shape]]:
        """Module in a layer -> its tensors by their last name; a bare parameter stands under its own name as ''."""
        return _by_module(self.inner)

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
    counts: Counter[str] = Counter()
    for index in sorted(layers):
        counts.update(layers[index].keys())
        for name, shape in layers[index].items():
            inner.setdefault(name, shape)
    outer = {name: shape for name, shape in tensors.items() if not name.startswith(prefix)}
    return Layout(
        f"{prefix}{{i}}", len(layers), inner, outer, frozenset(name for name in inner if counts[name] == len(layers))
    )


def find_blockers(tensors: Mapping[str, Shape]) -> dict[str, str]:
    """What needs code: what it is -> a tensor that shows it."""
    found: dict[str, str] = {}
    for name in sorted(tensors):
        for part, what in BLOCKERS.items():
            if part in name:
                found.setdefault(what, name)
    return found
