"""What the code of a port may do otherwise in one layer, whatever its values are: each a CodeChange to try."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from porter.explanation.code_changes import (
    Act,
    Again,
    At,
    CodeChange,
    Edit,
    Instead,
    Rotation,
    Sight,
    Skipped,
    heads_over_tokens,
    heads_permuted,
    permuted,
    shifted,
    tokens_over_heads,
)
from porter.explanation.orders import channel_orders, head_orders, inverse, of_heads, pair_orders
from porter.models.attention import split_qkv
from porter.specs.blueprint import Blueprint, norms, projections

Orders = Iterator[tuple[str, Tensor]]
_ITSELF = "as it was computed"


@dataclass(frozen=True)
class Place:
    """Where a node can be edited: the module that gives it or is given it, and which of its features it is."""

    node: str
    module: str
    side: str
    heads: int = 1
    rows: Tensor | None = None

    def edit(self, act: Act) -> At:
        if self.side == "in":
            return At(self.module, "in", act, self.node)
        return At(self.module, "out", act, rows=self.rows)


def places(blueprint: Blueprint, layer: int) -> dict[str, Place]:
    """The nodes of a layer that can be edited, in order."""
    block, dims = blueprint.blocks[layer], blueprint.dims
    maps, normed = projections(block, dims, blueprint.weights), norms(block, blueprint.norm, dims)
    found = [Place(name, name, "out") for name in normed if name in ("attn.norm", "attn.post_norm")]
    if block.mixer is None:
        found += _of_attention(blueprint, maps, "attn.inner_norm" if block.attn.inner_norm else "attn.o")
    if "attn.o" in maps:
        found.append(Place("attn.out", "attn.o", "out"))
    found += [Place(name, name, "out") for name in normed if name in ("mlp.norm", "mlp.post_norm")]
    if block.moe is None:
        into = "mlp.inner_norm" if block.mlp.inner_norm else "mlp.down"
        found += [Place("mlp.act", into, "in"), Place("mlp.out", "mlp.down", "out")]
    else:
        found.append(Place("moe.out", "moe", "out"))
    return {each.node: each for each in found}


def where_used(blueprint: Blueprint, layer: int) -> dict[str, tuple[str, ...]]:
    """A norm's node -> the modules that are given it: what they get may be another value than the one that is seen."""
    block, maps = blueprint.blocks[layer], projections(blueprint.blocks[layer], blueprint.dims, blueprint.weights)
    into_attention = tuple(name for name in ("attn.qkv", "attn.q", "attn.k", "attn.v") if name in maps)
    into_mlp = tuple(name for name in ("mlp.gate_up", "mlp.gate", "mlp.up") if name in maps)
    found = {"attn.norm": into_attention} if block.attn.pre_norm and block.mixer is None else {}
    return found | ({"mlp.norm": into_mlp} if block.mlp.pre_norm is True and block.moe is None else {})


def used(modules: tuple[str, ...], act: Act) -> tuple[Edit, ...]:
    """Each of them is given another value."""
    return tuple(At(name, "in", act) for name in modules)


def _of_attention(blueprint: Blueprint, maps: dict[str, tuple[int, int, bool]], after: str) -> Iterator[Place]:
    dims = blueprint.dims
    counts = {"attn.q": dims.heads, "attn.k": dims.kv_heads, "attn.v": dims.kv_heads}
    if "attn.qkv" in maps:
        rule = blueprint.weights.block["attn.qkv"]
        parts = split_qkv(torch.arange(maps["attn.qkv"][0])[None], dims, rule)
        for (name, heads), part in zip(counts.items(), parts, strict=True):
            yield Place(name, "attn.qkv", "out", heads, part.flatten())
    else:
        yield from (Place(name, name, "out", heads) for name, heads in counts.items())
    yield Place("attn.ctx", after, "in", dims.heads)


def code_changes(blueprint: Blueprint, layer: int, *, mending: bool) -> Iterator[CodeChange]:
    """What may be done otherwise in a layer.

    Args:
        mending: the blueprint is the port's, and each change undoes what the port's code may do; else it is the
            reference's, and each does it.
    """
    at = places(blueprint, layer)
    make = _Maker(f"layers.{layer}", mending)
    yield from _heads(blueprint, at, make)
    yield from _rotated_channels(blueprint, layer, at, make)
    yield from _tiled(blueprint, layer, make)
    yield from _transposed(at, make)
    yield from _shifted(at, where_used(blueprint, layer), make)
    if not mending:  # what these lose is not to be had again
        yield from _norms_otherwise(blueprint, layer, make)
        yield from _seen_otherwise(blueprint, layer, make)
        yield from _other_layers(blueprint, layer, make)


class _Maker:
    """Makes the changes of one layer, the one way or the other."""

    def __init__(self, unit: str, mending: bool) -> None:
        self.unit, self.mending = unit, mending

    def change(self, node: str, right: str, wrong: str, edits: tuple[Edit, ...], kind: str) -> CodeChange:
        sides = (wrong, right) if self.mending else (right, wrong)
        return CodeChange(f"{self.unit}.{node}", *sides, edits, kind, self.mending)

    def both_ways(
        self, place: Place, right: str, wrong: str, acts: tuple[Callable[[Tensor], Tensor], Act], kind: str
    ) -> CodeChange:
        """A change that can be undone: what does it, and what undoes it."""
        return self.change(place.node, right, wrong, (place.edit(acts[self.mending]),), kind)


def _orders(make: _Maker, place: Place, orders: Orders, kind: str) -> Iterator[CodeChange]:
    for name, order in orders:
        acts = (partial(permuted, order), partial(permuted, inverse(order)))
        yield make.both_ways(place, _ITSELF, name, acts, kind)


def _heads(blueprint: Blueprint, at: dict[str, Place], make: _Maker) -> Iterator[CodeChange]:
    dims = blueprint.dims
    for place in (at[name] for name in ("attn.q", "attn.k", "attn.v", "attn.ctx") if name in at):
        orders = ((f"with its heads {name}", of_heads(order, dims.head_dim))
                  for name, order in head_orders(place.heads, dims.kv_heads))  # fmt: skip
        yield from _orders(make, place, orders, "heads in another order")
        yield from _orders(make, place, channel_orders(place.heads, dims.head_dim), "heads and channels transposed")


def _rotated_channels(blueprint: Blueprint, layer: int, at: dict[str, Place], make: _Maker) -> Iterator[CodeChange]:
    """Rows of q and k that were permuted for the other pairing, or were not: of one of them, or of both."""
    rope, dims, kind = blueprint.blocks[layer].rope, blueprint.dims, "channels in pairs or halves"
    if rope is None or "attn.q" not in at:
        return
    rotated = rope.width(dims.head_dim)
    both = [list(pair_orders(at[name].heads, dims.head_dim, rotated)) for name in ("attn.q", "attn.k")]
    for (name, order_q), (_, order_k) in zip(*both, strict=True):
        edits = {node: at[node].edit(partial(permuted, inverse(order) if make.mending else order))
                 for node, order in (("attn.q", order_q), ("attn.k", order_k))}  # fmt: skip
        yield make.change("attn.q and attn.k", _ITSELF, name, tuple(edits.values()), kind)
        yield from (make.change(node, _ITSELF, name, (edit,), kind) for node, edit in edits.items())


def _tiled(blueprint: Blueprint, layer: int, make: _Maker) -> Iterator[CodeChange]:
    """Keys and values given to query heads in turn, and not to neighbours."""
    dims, block = blueprint.dims, blueprint.blocks[layer]
    if block.mixer is not None or not 1 < dims.kv_heads < dims.heads:
        return
    times, plain = dims.heads // dims.kv_heads, torch.arange(dims.heads)
    order = plain // times if make.mending else times * (plain % dims.kv_heads)
    edits = {name: At(f"attn.repeat_{name}", "out", partial(heads_permuted, order)) for name in "kv"}
    for node, which in (("attn.k and attn.v", "kv"), ("attn.k", "k"), ("attn.v", "v")):
        yield make.change(
            node, f"each head repeated {times} times for neighbouring query heads: repeat_interleave",
            f"all heads in turn, {times} times over: tile", tuple(edits[each] for each in which),
            "key and value heads tiled",
        )  # fmt: skip


def _transposed(at: dict[str, Place], make: _Maker) -> Iterator[CodeChange]:
    """Tokens and heads whose transpose is missing, before attention or after it."""
    for place in (at[name] for name in ("attn.q", "attn.k", "attn.v", "attn.ctx") if name in at):
        if place.heads > 1:
            one, other = partial(heads_over_tokens, place.heads), partial(tokens_over_heads, place.heads)
            named = [
                ("[heads, tokens] in memory, read as [tokens, heads]: a transpose is missing", (one, other)),
                ("[tokens, heads] in memory, read as [heads, tokens]: a transpose is missing", (other, one)),
            ]
            for name, acts in named:
                yield make.both_ways(place, "each token’s heads together", name, acts, "tokens and heads transposed")


def _shifted(at: dict[str, Place], uses: dict[str, tuple[str, ...]], make: _Maker) -> Iterator[CodeChange]:
    right, kind = "each token’s own", "shifted by one token"
    for by, whose in ((1, "the one before it"), (-1, "the next")):
        what = f"shifted by one token: each has what {whose} should"
        for wraps in (False, True):
            acts = (partial(shifted, by, wraps), partial(shifted, -by, wraps))
            yield from (make.both_ways(place, right, what, acts, kind) for place in at.values())
            for node, modules in uses.items():
                yield make.change(f"{node}, as it is used,", right, what, used(modules, acts[make.mending]), kind)


def _norms_otherwise(blueprint: Blueprint, layer: int, make: _Maker) -> Iterator[CodeChange]:
    kind = "a norm left out or applied twice"
    for name in norms(blueprint.blocks[layer], blueprint.norm, blueprint.dims):
        for times, what in ((0, "left out"), (2, "applied twice")):
            yield make.change(name, "applied once", what, (Skipped(name, times),), kind)
    for name, modules in where_used(blueprint, layer).items():
        yield make.change(name, "applied once", "applied twice", (Again(name, modules),), kind)


def _seen_otherwise(blueprint: Blueprint, layer: int, make: _Maker) -> Iterator[CodeChange]:
    """Keys that a token sees, and how queries and keys are rotated."""
    block, kind = blueprint.blocks[layer], "keys seen or rotated otherwise"
    if block.mixer is not None:
        return
    right = "of each token and those before it"
    for ahead, what in (
        (10**9, "of all tokens: no causal mask"),
        (1, "of one token ahead, too: the mask is off by one"),
        (-1, "of tokens before it alone: the mask is off by one"),
    ):
        yield make.change("attn.ctx", right, what, (Sight(ahead),), kind)
    if block.rope is None:
        return
    right = "rotated by each token’s own position"
    for shift, what in ((1, "one later"), (-1, "one earlier")):
        wrong = f"rotated by positions {what} than the queries’"
        yield make.change("attn.k", right, wrong, (Rotation(shift),), kind)
    yield make.change("attn.k", right, "not rotated", (Rotation(only="q"),), kind)
    yield make.change("attn.q", right, "not rotated", (Rotation(only="k"),), kind)
    if block.rope.width(blueprint.dims.head_dim) < blueprint.dims.head_dim:
        wrong = "rotated in their last channels"
        yield make.change("attn.q and attn.k", "rotated in their first channels", wrong, (Rotation(last=True),), kind)


def _other_layers(blueprint: Blueprint, layer: int, make: _Maker) -> Iterator[CodeChange]:
    """Another layer in place of this one, where it is of another kind; of the same kind its tensors are tried."""
    for other, block in enumerate(blueprint.blocks):
        if block != blueprint.blocks[layer]:
            edits = (Instead(other),)
            wrong, right = f"layer {other}, run in its place", "itself"
            yield CodeChange(make.unit, right, wrong, edits, "another layer in its place", make.mending)
