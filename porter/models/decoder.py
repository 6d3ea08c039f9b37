"""The one decoder: assembled from ops by blueprint, its layers visited one at a time through a loader.

    decoder = Decoder(blueprint, make_ops("reference"), Resident(blueprint, ops, reader, dtype, device))
    logits_BTV = decoder(ids_BT)

A loader gives the units `embed`, `layers.0` … and `head`. Resident holds all of them; Streamed holds one at a time,
of the embedding the rows of the prompt alone and of the head a chunk of the vocabulary, so memory is flat in the
number of layers and in the vocabulary.
"""

from collections.abc import Callable, Iterator, Set
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from porter.errors import UsageError
from porter.models.attention import Tap
from porter.models.layers import Embedding, Head, Layer, no_tap
from porter.models.modules import ChunkedLinear
from porter.models.ops import Ops
from porter.models.positions import Cache, Positions
from porter.specs.blueprint import Blueprint
from porter.weights.reader import WeightReader

UnitT = TypeVar("UnitT", bound=nn.Module)


class Loader(Protocol):
    """Where the decoder takes its units from."""

    def embed_for(self, ids_BT: Tensor) -> tuple[Embedding, Tensor]:
        """An embedding with the rows that the tokens need, and the tokens by its rows."""
        ...

    def layer(self, index: int) -> Layer: ...
    def head(self) -> Head: ...

    def release(self) -> None:
        """Lets go of the unit last asked for, if it is held for that alone."""


class Streamed:
    """Reads a unit when it is asked for and lets go of the one before, so that one is in memory at a time.

    With a reader that shares its tensors they stay until its `shared` is released too.
    """

    def __init__(
        self, blueprint: Blueprint, ops: Ops, reader: WeightReader, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.blueprint, self.ops, self.reader, self.dtype, self.device = blueprint, ops, reader, dtype, device
        self._held: tuple[str, nn.Module] | None = None

    def embed_for(self, ids_BT: Tensor) -> tuple[Embedding, Tensor]:
        rows_N, at_BT = torch.unique(ids_BT, return_inverse=True)
        with torch.device("meta"):
            unit = Embedding(self.blueprint, self.ops)
        unit.embed.weight = nn.Parameter(self.reader.rows("embed.weight", rows_N, self.dtype, self.device))
        fill(unit, self._values(unit, "", besides={"embed.weight"}))
        return unit, at_BT

    def layer(self, index: int) -> Layer:
        return self._unit(f"layers.{index}", lambda: Layer(self.blueprint, index, self.ops), f"layers.{index}.")

    def head(self) -> Head:
        return self._unit("head", self._chunked_head, "")

    def release(self) -> None:
        self._held = None

    def whole(self, make: Callable[[], UnitT]) -> UnitT:
        """A unit outside the layers with all its parameters."""
        with torch.device("meta"):
            unit = make()
        fill(unit, self._values(unit, ""))
        return unit

    def _unit(self, name: str, make: Callable[[], UnitT], prefix: str) -> UnitT:
        if self._held is None or self._held[0] != name:
            self._held = None
            with torch.device("meta"):
                unit = make()
            self.reader.retain(self._source(prefix + each) for each, _ in unit.named_parameters())
            fill(unit, self._values(unit, prefix))
            self._held = (name, unit)
        return self._held[1]  # type: ignore[return-value]

    def _chunked_head(self) -> Head:
        unit = Head(self.blueprint, self.ops)
        unit.head = ChunkedLinear(self._head_chunks)  # type: ignore[assignment]
        return unit

    def _head_chunks(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The head's weight [v, D] and bias [v], a chunk of the vocabulary at a time."""
        bias = self._read("head.bias") if self.blueprint.head.bias else None
        start = 0
        for weight in self.reader.chunks(self._source("head.weight"), self.dtype, self.device):
            yield weight, None if bias is None else bias[start : start + len(weight)]
            start += len(weight)

    def _values(self, unit: nn.Module, prefix: str, besides: Set[str] = frozenset()) -> dict[str, Tensor]:
        return {name: self._read(prefix + name) for name, _ in unit.named_parameters() if name not in besides}

    def _read(self, parameter: str) -> Tensor:
        narrow = self.dtype.itemsize < torch.float32.itemsize
        dtype = torch.float32 if narrow and self.blueprint.stays_fp32(parameter) else self.dtype
        return self.reader.read(self._source(parameter), dtype, self.device)

    def _source(self, parameter: str) -> str:
        return "embed.weight" if parameter == "head.weight" and self.blueprint.head.tied else parameter


def fill(unit: nn.Module, values: dict[str, Tensor]) -> None:
    """Puts the tensors into a unit as they are."""
    unit.load_state_dict({**unit.state_dict(), **values}, assign=True)


class Resident(nn.Module):
    """Holds every unit; a tied head shares the embedding's tensor."""

    def __init__(
        self, blueprint: Blueprint, ops: Ops, reader: WeightReader, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        streamed = Streamed(blueprint, ops, reader, dtype, device)
        self._embed = streamed.whole(lambda: Embedding(blueprint, ops))
        self.layers = nn.ModuleList(streamed.layer(i) for i in range(blueprint.dims.layers))
        self._head = streamed.whole(lambda: Head(blueprint, ops))
        if blueprint.head.tied:
            self._head.head.weight = self._embed.embed.weight

    def embed(self) -> Embedding:
        return self._embed

    def embed_for(self, ids_BT: Tensor) -> tuple[Embedding, Tensor]:
        return self._embed, ids_BT

    def layer(self, index: int) -> Layer:
        unit = self.layers[index]
        assert isinstance(unit, Layer)
        return unit

    def head(self) -> Head:
        return self._head

    def release(self) -> None:
        pass


class Decoder(nn.Module):
    """A causal language model. Parameters are those of a Resident loader; with Streamed it has none of its own."""

    def __init__(self, blueprint: Blueprint, loader: Loader) -> None:
        super().__init__()
        self.blueprint, self.loader = blueprint, loader

    def place(
        self, length: int, device: torch.device, cache: Cache | None = None, documents_BS: Tensor | None = None
    ) -> Positions:
        """The positions of the next `length` tokens a row, whose slots are taken from the cache.

        Raises:
            UsageError: they pass the end of a learned position table.
        """
        check_length(self.blueprint, (cache.length if cache else 0) + length)
        return Positions(cache.take(length) if cache else 0, length, device, documents_BS)

    def embed(self, ids_BT: Tensor, positions: Positions, tap: Tap = no_tap) -> Tensor:
        """[B, T, D], the residual stream before the first layer; taps embed.out."""
        unit, at_BT = self.loader.embed_for(ids_BT)
        return unit(at_BT, positions, tap)  # type: ignore[no-any-return]

    def layer(
        self,
        index: int,
        x_BTD: Tensor,
        positions: Positions,
        cache: Cache | None = None,
        tap: Tap = no_tap,
        routing_BTK: Tensor | None = None,
    ) -> Tensor:
        """[B, T, D], the residual stream after one layer; taps attn.norm … resid_post.

        Args:
            routing_BTK: the experts that tokens go to, int64; None: those that the router chooses.
        """
        held = cache.layers[index] if cache else None
        return self.loader.layer(index)(x_BTD, positions, held, tap, routing_BTK)  # type: ignore[no-any-return]

    def head(self, x_BTD: Tensor, tap: Tap = no_tap) -> Tensor:
        """[B, T, V]; taps final.norm and logits."""
        return self.loader.head()(x_BTD, tap)  # type: ignore[no-any-return]

    def forward(
        self, ids_BT: Tensor, cache: Cache | None = None, tap: Tap = no_tap, documents_BS: Tensor | None = None
    ) -> Tensor:
        """Logits of the tokens.

        Args:
            ids_BT: [B, T], int64; with a cache they follow the tokens it holds.
            cache: filled on the way; None: no cache.
            tap: called with (node, value); nodes of layers come as layers.3.attn.ctx.
            documents_BS: [B, S], int64: the document of every slot so far, -1 for padding; None: a row is one document.

        Returns:
            [B, T, V], in the dtype of the weights.

        Raises:
            UsageError: positions pass the end of a learned position table.
        """
        return self.head(self._stream(ids_BT, cache, tap, documents_BS), tap)

    @torch.no_grad()
    def generate(self, ids_BT: Tensor, num_tokens: int) -> Tensor:
        """[B, T + num_tokens]: greedy continuation through the cache."""
        cache, given_BT = Cache(self.blueprint.dims.layers), ids_BT
        for _ in range(num_tokens):
            given_BT = self.head(self._stream(given_BT, cache)[:, -1:]).argmax(-1)
            ids_BT = torch.cat((ids_BT, given_BT), dim=1)
        return ids_BT

    def _stream(
        self, ids_BT: Tensor, cache: Cache | None, tap: Tap = no_tap, documents_BS: Tensor | None = None
    ) -> Tensor:
        """[B, T, D], the residual stream after the last layer."""
        positions = self.place(ids_BT.shape[1], ids_BT.device, cache, documents_BS)
        x_BTD = self.embed(ids_BT, positions, tap)
        for i in range(self.blueprint.dims.layers):
            x_BTD = self.layer(i, x_BTD, positions, cache, prefixed(tap, i))
        return x_BTD


def prefixed(tap: Tap, layer: int) -> Tap:
    """The tap with layers.{layer}. before each name."""
    return no_tap if tap is no_tap else lambda name, value: tap(f"layers.{layer}.{name}", value)


def check_length(blueprint: Blueprint, length: int) -> None:
    """Refuses more positions than a table has rows; sinusoidal ones are HF's table of that many (CTRL)."""
    if blueprint.embed.positions in ("learned", "sinusoidal") and length > blueprint.dims.max_pos:
        raise UsageError(
            f"{length} tokens are more than the position table of {blueprint.family} holds",
            f"at most {blueprint.dims.max_pos}",
            f"Pass --tokens {blueprint.dims.max_pos} or a shorter prompt.",
        )
