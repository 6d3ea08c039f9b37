"""Routes: one text, fed to a model in several ways that must not matter.

Every route but the bases is compared piece by piece with a base, where the same tokens go through in one forward pass.
Golden takes the base `whole` alone: what rounding costs its tokens is the measure of all others.

The longest prompt takes every route. Others are decoded, and go through as rows of one padded batch: `whole@2` and
`decode@2` are the routes of the prompt of index 2, and golden takes its base too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

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
MOST_OTHERS = 7  # prompts besides the longest: rows of a batch, each decoded once more
LARGE = 1_000_000_000  # parameters past which the other routes take one layer of each kind: the rest are alike


@dataclass(frozen=True)
class Piece:
    """Some tokens of a route, and the same tokens in a base.

    Attributes:
        prompt: whose tokens; None: the longest prompt's.
    """

    row: int
    slots: slice
    base: str
    base_slots: slice
    prompt: int | None = None


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
        prompt: whose tokens; None: the longest prompt's, or several.
    """

    name: str
    ids_BS: Tensor
    calls: tuple[int, ...]
    cached: bool = True
    documents_BS: Tensor | None = None
    pieces: tuple[Piece, ...] = ()
    layers: int | None = None
    sides: tuple[str, ...] = ("port", "reference")
    prompt: int | None = None

    @property
    def check(self) -> str:
        """decode for decode@2: the check that it belongs to."""
        return self.name.partition("@")[0]

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


@dataclass(frozen=True)
class Others:
    """Prompts besides the longest.

    Attributes:
        texts: by index, the ids of those that are decoded too.
        left_out: how many are not: too short, or too many.
        longest: the index of the longest.
    """

    texts: Mapping[int, Sequence[int]] = field(default_factory=dict)
    left_out: int = 0
    longest: int = 0

    def name(self, prompt: int) -> str:
        """`prompt 3, ` for the prompt of index 2, where there are several."""
        return f"prompt {prompt + 1}, " if self.texts or self.left_out else ""


ALONE = Others()


def choose_others(prompts: Sequence[Sequence[int]], longest: int) -> Others:
    """The first MOST_OTHERS prompts that are long enough."""
    others = [index for index in range(len(prompts)) if index != longest]
    chosen = [index for index in others if len(prompts[index]) >= LEAST_TOKENS][:MOST_OTHERS]
    return Others({index: prompts[index] for index in chosen}, len(others) - len(chosen), longest)


def other_routes(texts: Mapping[int, Sequence[int]]) -> list[Route]:
    """The base and the decoded route of each further prompt."""
    return [_named(route, index) for index, ids in texts.items() for route in decode_routes(ids)]


def _named(route: Route, prompt: int) -> Route:
    pieces = tuple(replace(piece, base=f"{piece.base}@{prompt}", prompt=prompt) for piece in route.pieces)
    return replace(route, name=f"{route.name}@{prompt}", pieces=pieces, prompt=prompt)


def batch_of_prompts(blueprint: Blueprint, ids: Sequence[int], texts: Mapping[int, Sequence[int]]) -> Route:
    """The longest prompt and the others as rows of one batch, padded on the left, the last tokens decoded."""
    first = {WHOLE: torch.tensor(ids)[:TOKENS]}
    rows = first | {f"{WHOLE}@{index}": torch.tensor(text)[:TOKENS] for index, text in texts.items()}
    T = max(map(len, rows.values()))
    pads = [T - len(row_S) for row_S in rows.values()]
    ids_BS = torch.stack([_pad(row_S, pad, 0) for row_S, pad in zip(rows.values(), pads, strict=True)])
    documents_BS = torch.where(torch.arange(T) < torch.tensor(pads)[:, None], PADDING, 0)
    pieces = tuple(
        Piece(row, slice(pad, T), base, slice(0, T - pad), prompt)
        for row, (base, pad, prompt) in enumerate(zip(rows, pads, (None, *texts), strict=True))
    )
    layers = one_of_each_kind(blueprint) if blueprint.num_parameters > LARGE else None
    calls = (T - DECODED, *[1] * DECODED)
    return Route("prompts", ids_BS, calls, documents_BS=documents_BS, pieces=pieces, layers=layers)


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
