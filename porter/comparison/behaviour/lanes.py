"""The sides of the behaviour stage: each takes a route's forward passes through one layer before it goes to the next.

The state of a route between layers is one residual stream a forward pass; of its cache one layer lives at a time.
"""

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import Cache as HfCache

from porter.comparison.behaviour.routes import PADDING, Route
from porter.models.attention import clip_heads
from porter.models.decoder import Decoder
from porter.models.matmul import quick_matmul
from porter.models.positions import Cache, LayerCache, Positions
from porter.references.hf import HfReference
from porter.specs.blueprint import mixer_of

Streams = list[Tensor]  # [B, T, D] of each forward pass


CACHED = ("keys", "values")


@dataclass(frozen=True)
class Passed:
    """A route after one layer.

    Attributes:
        streams: its residual streams.
        held: keys and values in the layer's cache, [B, S, G, K]; fewer slots than the route's: the last ones.
        computed: the keys and values that attention computed, alike, of a side that shows them.
    """

    streams: Streams
    held: Mapping[str, Tensor]
    computed: Mapping[str, Tensor] = field(default_factory=dict)


class RouteLane(Protocol):
    """A side of the stage."""

    dtype: torch.dtype

    def start(self, route: Route) -> Streams: ...
    def layer(self, index: int, route: Route, streams: Streams) -> Passed: ...

    def release(self) -> None:
        """Lets go of the weights of the layer that was run."""


class PortRoutes:
    """porter's decoder with its own cache and positions."""

    def __init__(self, decoder: Decoder, dtype: torch.dtype, device: torch.device) -> None:
        self.decoder, self.dtype, self.device = decoder, dtype, device
        self._places: dict[str, tuple[list[Positions], Cache | None]] = {}

    @torch.no_grad()
    def start(self, route: Route) -> Streams:
        cache = Cache(self.decoder.blueprint.dims.layers) if route.cached else None
        places, streams = [], []
        for span in route.spans():
            documents_BS = None if route.documents_BS is None else route.documents_BS[:, : span.stop]
            places.append(self.decoder.place(span.stop - span.start, self.device, cache, documents_BS))
            streams.append(self.decoder.embed(route.ids_BS[:, span].to(self.device), places[-1]))
        self._places[route.name] = (places, cache)
        return streams

    @torch.no_grad()
    def layer(self, index: int, route: Route, streams: Streams) -> Passed:
        places, cache = self._places[route.name]
        computed: list[dict[str, Tensor]] = []
        after = []
        with quick_matmul(self.dtype, self.device):
            for x_BTD, positions in zip(streams, places, strict=True):
                computed.append({})
                after.append(self.decoder.layer(index, x_BTD, positions, cache, computed[-1].__setitem__))
        mixer = mixer_of(self.decoder.blueprint.blocks[index])
        nodes = dict(zip(CACHED, ("attn.k_rope", "attn.v") if mixer is None else mixer.cached, strict=True))
        spec = self.decoder.blueprint.blocks[index].attn
        for each in computed if mixer is None else ():
            each["attn.v"] = clip_heads(each["attn.v"], spec)
        shown = {name: torch.cat([each[node] for each in computed], dim=1) for name, node in nodes.items()}
        clip = self.decoder.blueprint.blocks[index].attn.clip_qkv
        shown["values"] = shown["values"] if clip is None else shown["values"].clamp(-clip, clip)
        if cache is None:
            return Passed(after, {}, shown)
        held, cache.layers[index] = cache.layers[index], LayerCache()
        return Passed(after, _held(held.k_BGSK, held.v_BGSK), shown)

    @torch.no_grad()
    def head(self, x_BTD: Tensor) -> Tensor:
        """[B, T, V]: logits of the last layer's output."""
        with quick_matmul(self.dtype, self.device):
            return self.decoder.head(x_BTD)

    def release(self) -> None:
        self.decoder.loader.release()


class HfRoutes:
    """HF's layers with HF's cache, given the arguments that HF's own forward gives them for that route.

    A model of HF that keeps no cache (GPT) takes the tokens of all calls in one: what decoding must give.
    """

    def __init__(self, reference: HfReference) -> None:
        self.reference, self.dtype, self.device = reference, reference.dtype, reference.device
        accepted = inspect.signature(type(reference.model).forward).parameters
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"  # until transformers 5.24
        self.caches = self._cache_name in accepted
        self._calls: dict[str, list[list[tuple[tuple[Any, ...], dict[str, Any]]]]] = {}
        self._empty: dict[str, HfCache] = {}

    def start(self, route: Route) -> Streams:
        """HF's forward over layers that do nothing but take their slots of its cache."""
        calls: list[list[tuple[tuple[Any, ...], dict[str, Any]]]] = []
        streams: Streams = []
        cache: HfCache | None = None

        def note(index: int, x_BTD: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
            if index == 0:
                streams.append(x_BTD)
            calls[-1].append((args, kwargs))
            held = _find_cache(args, kwargs)
            if held is not None:
                if index == 0 and len(calls) == 1:
                    self._empty[route.name] = copy.deepcopy(held)
                slots_BGTK = x_BTD.new_zeros(x_BTD.shape[0], 1, x_BTD.shape[1], 1)
                held.update(slots_BGTK, slots_BGTK, index)
            return x_BTD

        reference = self.reference
        cached = route.cached and self.caches
        for span in route.spans() if self.caches else [slice(0, route.ids_BS.shape[1])]:
            calls.append([])
            with reference.running(), reference.bypassed(note), reference.headless():
                ids_BT = route.ids_BS[:, span].to(self.device)
                past = {self._cache_name: cache} if self.caches else {}
                out = reference.model(input_ids=ids_BT, use_cache=cached, **past, **self._places(route, span))
            cache = getattr(out, self._cache_name) if cached else None
        self._calls[route.name] = calls
        return streams

    def layer(self, index: int, route: Route, streams: Streams) -> Passed:
        cache = self._fresh_cache(index, route) if route.cached and self.caches else None
        after = []
        for x_BTD, call in zip(streams, self._calls[route.name], strict=True):
            args, kwargs = call[index]
            args = tuple(cache if isinstance(value, HfCache) else value for value in args)
            kwargs = {name: cache if isinstance(value, HfCache) else value for name, value in kwargs.items()}
            with self.reference.running():
                out = self.reference.layers[index](x_BTD, *args, **kwargs)
            after.append(out[0] if isinstance(out, (tuple, list)) else out)
        if cache is None:
            return Passed(after, {})
        held: Any = cache.layers[index]
        return Passed(after, _held(*(self._once(each) for each in (held.keys, held.values))))

    def _once(self, cached_BHSK: Tensor) -> Tensor:
        """[B, G, S, K]: each key head once, of a cache that holds one for every query head (Falcon 40b)."""
        return cached_BHSK[:, :: max(1, cached_BHSK.shape[1] // self.reference.blueprint.dims.kv_heads)]

    def _fresh_cache(self, index: int, route: Route) -> HfCache:
        """HF's cache before the route, whose layer `index` alone will be filled."""
        cache = copy.copy(self._empty[route.name])
        cache.layers = list(cache.layers)
        cache.layers[index] = copy.deepcopy(cache.layers[index])
        return cache

    def head(self, x_BTD: Tensor) -> Tensor:
        """[B, T, V]: logits of the last layer's output."""
        self.reference.start(torch.zeros(x_BTD.shape[:2], dtype=torch.long))
        return self.reference.head(x_BTD)["logits"]

    def release(self) -> None:
        self.reference.release()

    def _places(self, route: Route, span: slice) -> dict[str, Any]:
        """What HF is told of a route's padding and documents."""
        if route.documents_BS is None:
            return {}
        documents_BS = route.documents_BS[:, : span.stop].to(self.device)
        same_BSS = documents_BS[:, :, None] == documents_BS[:, None, :]
        places = {"position_ids": same_BSS.tril(-1).sum(-1)[:, span]}
        if bool((documents_BS == PADDING).any()):
            places["attention_mask"] = (documents_BS != PADDING).long()
        return places


def _find_cache(args: tuple[Any, ...], kwargs: dict[str, Any]) -> HfCache | None:
    return next((value for value in (*args, *kwargs.values()) if isinstance(value, HfCache)), None)


def _held(k_BGSK: Tensor | None, v_BGSK: Tensor | None) -> dict[str, Tensor]:
    assert k_BGSK is not None and v_BGSK is not None  # the layer has just filled it
    return {name: each.transpose(1, 2) for name, each in zip(CACHED, (k_BGSK, v_BGSK), strict=True)}
