"""Orders of channels and heads that code takes for one another, by name."""

from collections.abc import Iterator

import torch
from torch import Tensor


def inverse(order_N: Tensor) -> Tensor:
    """The order that undoes one."""
    return torch.argsort(order_N)


def head_orders(heads: int, groups: int) -> Iterator[tuple[str, Tensor]]:
    """Orders of heads [H], each once: what head h of the port is in the reference.

    Args:
        groups: of query heads that share keys, G.
    """
    plain = torch.arange(heads)
    named = [("in reverse order", plain.flip(0)), ("with their halves exchanged", plain.roll(heads // 2)),
             ("moved on by one", plain.roll(1)), ("moved back by one", plain.roll(-1))]  # fmt: skip
    if 1 < groups < heads:
        named.insert(0, ("ordered as if neighbours had other keys: tiled", plain.view(groups, -1).T.flatten()))
        named.insert(1, ("ordered as if each key’s heads were neighbours", plain.view(-1, groups).T.flatten()))
    yield from _each_once(named, plain)


def channel_orders(heads: int, width: int) -> Iterator[tuple[str, Tensor]]:
    """Orders of the channels [H * K] of all heads: heads and channels transposed."""
    plain = torch.arange(heads * width)
    named = [("read as [channels, heads]", plain.view(width, heads).T.flatten()),
             ("transposed to [channels, heads]", plain.view(heads, width).T.flatten())]  # fmt: skip
    yield from _each_once(named, plain)


def pair_orders(heads: int, width: int, rotated: int) -> Iterator[tuple[str, Tensor]]:
    """Orders of the rotated channels of each head: halves laid out as pairs, and pairs as halves."""
    half, plain = rotated // 2, torch.arange(width)
    named = [
        ("with its rotated channels in pairs, where they are halves", torch.arange(rotated).view(2, half).T),
        ("with its rotated channels in halves, where they are pairs", torch.arange(rotated).view(half, 2).T),
    ]
    whole = [(name, torch.cat((order.flatten(), plain[rotated:]))) for name, order in named]
    yield from ((name, in_heads(order, heads, width)) for name, order in _each_once(whole, plain))


def in_heads(order_K: Tensor, heads: int, width: int) -> Tensor:
    """[H * K]: each head's channels in that order."""
    return (torch.arange(heads)[:, None] * width + order_K).flatten()


def of_heads(order_H: Tensor, width: int) -> Tensor:
    """[H * K]: whole heads in that order."""
    return (order_H[:, None] * width + torch.arange(width)).flatten()


def name_order(order_N: Tensor, heads: int) -> str:
    """What an order of channels that was found is called."""
    width = len(order_N) // heads if heads > 1 else 0
    if width and len(order_N) == heads * width:
        order_H = order_N[::width] // width
        if torch.equal(of_heads(order_H, width), order_N):
            shown = ", ".join(map(str, order_H.tolist()[:16]))
            return f"with its heads in another order: {shown}{', …' if heads > 16 else ''}"
    known = [("in reverse", torch.arange(len(order_N)).flip(0)), *channel_orders(heads, max(1, width))]
    for name, order in known:
        if torch.equal(order, order_N):
            return name
    moved = int((order_N != torch.arange(len(order_N))).sum())
    return f"with {moved} of its {len(order_N)} channels in other places"


def _each_once(named: list[tuple[str, Tensor]], plain: Tensor) -> Iterator[tuple[str, Tensor]]:
    seen = {tuple(plain.tolist())}
    for name, order in named:
        if tuple(order.tolist()) not in seen:
            seen.add(tuple(order.tolist()))
            yield name, order
