"""Routes: one text, fed to a model in several ways that must not matter.

Every route but the bases is compared piece by piece with a base, where the same tokens go through in one forward pass.
Golden takes the base `whole` alone: what rounding costs its tokens is the measure of all others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from porter.specs.axes import first_of_each_kind
from porter.specs.blueprint import Blueprint

TOKENS = 32  # of the prompt that are fed in every way, through all layers
LEAST_TOKENS = 12  # with fewer there are no three chunks and no two documents
DECODED = 3  # tokens fed one at a time
PAST = 8  # tokens past the window
PADDING = -1
WHOLE = "whole"
DECODE = frozenset({WHOLE, "decode"})
LARGE = 1_000_000_000  # parameters past which the other routes take one layer of each kind: the rest are alike


@dataclass(frozen=True)
class Piece:
    """Some tokens of a route, and the same tokens in a base."""

    row: int
    slots: slice
    base: str
    base_slots: slice


@dataclass(frozen=True)
class Route:
    """One way of feeding tokens.

    Attributes:
        ids_BS: tokens, padding included.
        calls: tokens of each forward pass.
        cached: keys and values are kept from one forward pass to the next.
        documents_BS: the document of every slot, PADDING for none; None: a row is one document.
        pieces: what is compared with which base; a base has none.
        layers: through so many layers; None: all.
        sides: who takes it.
    """

    name: str
    ids_BS: Tensor
    calls: tuple[int, ...]
    cached: bool = True
    documents_BS: Tensor | None = None
    pieces: tuple[Piece, ...] = ()
    layers: int | None = None
    sides: tuple[str, ...] = ("port", "reference")

    def goes_through(self, layer: int) -> bool:
        return self.layers is None or layer < self.layers

    def spans(self) -> list[slice]:
        """The slots of each forward pass."""
        ends = torch.tensor(self.calls).cumsum(0).tolist()
        return [slice(end - length, end) for end, length in zip(ends, self.calls, strict=True)]


def plan_routes(blueprint: Blueprint, ids: Sequence[int]) -> list[Route]:
    """The routes of a prompt of LEAST_TOKENS or more; of a large model, all layers are decoded alone."""
    short = _short_routes(torch.tensor(ids)[:TOKENS])
    if blueprint.num_parameters > LARGE:
        layers = one_of_each_kind(blueprint)
        short = [route if route.name in DECODE else replace(route, layers=layers) for route in short]
    return [*short, *_window_routes(blueprint, torch.tensor(ids))]


def decode_routes(ids: Sequence[int]) -> list[Route]:
    """The base and the decoded route alone."""
    return [route for route in _short_routes(torch.tensor(ids)[:TOKENS]) if route.name in DECODE]


def one_of_each_kind(blueprint: Blueprint) -> int:
    """So many layers, from the first on, hold one of each kind."""
    return max(first_of_each_kind(blueprint)) + 1


def _short_routes(text_S: Tensor) -> list[Route]:
    T = len(text_S)
    half, start = T // 2 - 1, T - DECODED
    other_S = text_S[half:-2]  # the second text begins in the middle of the first
    S = len(other_S)
    left = torch.zeros(2, T, dtype=torch.long).index_put_((torch.tensor(1), torch.arange(T - S)), torch.tensor(PADDING))
    packed = torch.tensor([[0] * half + [1] * S])
    row_1S = text_S[None]
    return [
        Route(WHOLE, row_1S, (T,), sides=("port", "reference", "golden")),
        Route("other", other_S[None], (S,)),
        Route("decode", row_1S, (start, *[1] * DECODED), pieces=(_same(0, T),)),
        Route("chunks", row_1S, (half, T // 5, T - half - T // 5), pieces=(_same(0, T),)),
        Route(
            "padding.left", torch.stack((text_S, _pad(other_S, T - S, 0))), (start, *[1] * DECODED), documents_BS=left,
            pieces=(_same(0, T), Piece(1, slice(T - S, T), "other", slice(0, S))),
        ),
        Route(
            "padding.right", torch.stack((text_S, _pad(other_S, 0, T - S))), (T,), cached=False,
            documents_BS=left.flip(1), pieces=(_same(0, T), Piece(1, slice(0, S), "other", slice(0, S))),
        ),
        Route(
            "batch", torch.stack((text_S[:S], other_S)), (S,), cached=False,
            pieces=(_same(0, S), Piece(1, slice(0, S), "other", slice(0, S))),
        ),
        Route(
            "packed", torch.cat((text_S[:half], other_S))[None], (half + S,), cached=False, documents_BS=packed,
            pieces=(_same(0, half), Piece(0, slice(half, half + S), "other", slice(0, S))),
        ),
    ]  # fmt: skip


def widest_window(blueprint: Blueprint, tokens: int) -> int | None:
    """The widest window that so many tokens pass; None where there is none."""
    windows = [block.attn.window for block in blueprint.blocks if block.attn.window is not None]
    return max((window for window in windows if window + PAST <= tokens), default=None)


def _window_routes(blueprint: Blueprint, text_S: Tensor) -> list[Route]:
    """Past the widest window: up to it, across it at once, then one token at a time; each kind of layer once."""
    window = widest_window(blueprint, len(text_S))
    if window is None:
        return []
    T, layers = window + PAST, one_of_each_kind(blueprint)
    across = PAST + 2 - DECODED
    calls = (window - 2, across, *[1] * DECODED)
    row_1S = text_S[None, :T]
    pieces = (Piece(0, slice(0, T), "far", slice(0, T)),)
    return [Route("far", row_1S, (T,), layers=layers), Route("window", row_1S, calls, pieces=pieces, layers=layers)]


def _same(first: int, end: int) -> Piece:
    """Row 0, whose slots are those of `whole`."""
    return Piece(0, slice(first, end), WHOLE, slice(first, end))


def _pad(text_S: Tensor, before: int, after: int) -> Tensor:
    return torch.nn.functional.pad(text_S, (before, after))
