"""Fills HF's model a unit at a time: a layer, the rows of the embedding that a prompt needs, a chunk of the head.

HF's own forward asks for them: each layer, the embedding and the head run as they are, on weights that are there while
they run. So a call of one layer, or of the whole model, holds one layer in memory.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MethodType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from porter.references.deferred import Source
from porter.references.hollow import Slot
from porter.weights.reader import SharedTensors, chunk_rows, read_chunks, read_rows


class Places:
    """The slots of HF's model by unit; `rest` (a final norm, a table of positions) is small and stays filled."""

    def __init__(self, model: Any, layers: nn.ModuleList, slots: list[Slot]) -> None:
        self.embedding: nn.Module = model.get_input_embeddings()
        self.head: nn.Module = model.get_output_embeddings()
        self._parents = {child: parent for parent in model.modules() for child in parent.children()}
        self._layers = frozenset(layers)
        owner = {module: index for index, layer in enumerate(layers) for module in layer.modules()}
        self.layers: list[list[Slot]] = [[] for _ in layers]
        self.embed: list[Slot] = []
        self.out: dict[str, Slot] = {}
        self.rest: list[Slot] = []
        for slot in slots:
            if slot.module in owner:
                self.layers[owner[slot.module]].append(slot)
            elif slot.module is self.embedding and slot.attribute == "weight":
                self.embed.append(slot)
            elif slot.module is self.head:
                self.out[slot.attribute] = slot
            else:
                self.rest.append(slot)

    def reader_of(self, slot: Slot) -> nn.Module:
        """The module whose forward reads a tensor: its own; of experts, say, perhaps that of the one around it.

        A layer is no such module: its weights come when its forward runs.
        """
        around = self._parents.get(slot.module, slot.module)
        own = slot.attribute in ("weight", "bias") or around in self._layers or slot.module in self._layers
        return slot.module if own else around


class Weights(Protocol):
    """Where a model's slots are filled from."""

    places: Places

    def hold(self, layer: int) -> None:
        """Makes a layer ready to run."""

    def release(self) -> None:
        """Lets go of the layer that is held."""

    def tracked(self, slots: Sequence[Slot]) -> AbstractContextManager[list[nn.Parameter]]:
        """Within it, slots of the layer that is held, or of `rest`, have the parameters it gives, with gradients."""

    def rows(self, rows_N: Tensor) -> Tensor:
        """[N, D]: rows of the embedding."""

    def chunks(self) -> Iterator[dict[str, Tensor]]:
        """The head's weight [v, D], and bias [v] where it has one, a chunk of the vocabulary at a time."""


class Loaded:
    """Weights of the checkpoint, in the model's dtype; one layer is held at a time."""

    def __init__(self, places: Places, tensors: SharedTensors, device: torch.device) -> None:
        self.places, self.tensors, self.device = places, tensors, device
        self._held: int | None = None
        for slot in places.rest:
            slot.fill(slot.compute(tensors, device))

    def hold(self, layer: int) -> None:
        if self._held == layer:
            return
        self.release()
        self.tensors.retain(self._sources(layer))
        for slot in self.places.layers[layer]:
            slot.fill(slot.compute(self.tensors, self.device))
        self._held = layer
        if layer + 1 < len(self.places.layers):
            self.tensors.checkpoint.prefetch(self._sources(layer + 1))

    def _sources(self, layer: int) -> set[str]:
        return {name for slot in self.places.layers[layer] for name in slot.recipe.sources()}

    def release(self) -> None:
        if self._held is not None:
            for slot in self.places.layers[self._held]:
                slot.clear()
        self._held = None

    @contextmanager
    def tracked(self, slots: Sequence[Slot]) -> Iterator[list[nn.Parameter]]:
        before = [slot.value for slot in slots]
        try:
            yield [slot.fill_tracked(slot.value.detach()) for slot in slots]
        finally:
            for slot, value in zip(slots, before, strict=True):
                slot.fill(value)

    def rows(self, rows_N: Tensor) -> Tensor:
        (slot,) = self.places.embed
        if isinstance(slot.recipe, Source):
            return read_rows(self.tensors.checkpoint, slot.recipe.name, rows_N, slot.empty.dtype, self.device)
        return slot.compute(self.tensors, self.device)[rows_N.to(self.device)]

    def chunks(self) -> Iterator[dict[str, Tensor]]:
        weight = self.places.out["weight"]
        others = {name: slot for name, slot in self.places.out.items() if slot is not weight}
        whole = {name: slot.compute(self.tensors, self.device) for name, slot in others.items()}
        start = 0
        for chunk in self._weight_chunks(weight):
            yield {"weight": chunk, **{name: value[start : start + len(chunk)] for name, value in whole.items()}}
            start += len(chunk)

    def _weight_chunks(self, slot: Slot) -> Iterator[Tensor]:
        if isinstance(slot.recipe, Source):
            return read_chunks(self.tensors.checkpoint, slot.recipe.name, slot.empty.dtype, self.device)
        return iter(torch.split(slot.compute(self.tensors, self.device), chunk_rows(slot.empty.shape[1])))


class Widened:
    """The weights of another model of the same class, made float64 for one module at a time while it runs."""

    def __init__(self, places: Places, narrow: Loaded) -> None:
        self.places, self.narrow = places, narrow
        mine = [slot for slots in (*places.layers, places.rest) for slot in slots]
        theirs = [slot for slots in (*narrow.places.layers, narrow.places.rest) for slot in slots]
        self._narrow: dict[str, Slot] = {slot.name: slot for slot in theirs}
        self._tracked: set[str] = set()  # slots that are filled already, and stay so
        self._scratch = _Scratch()
        by_module: dict[nn.Module, list[Slot]] = {}
        for wide in mine:
            by_module.setdefault(places.reader_of(wide), []).append(wide)
        for module, slots in by_module.items():
            module.register_forward_pre_hook(self._widen(slots))
            module.register_forward_hook(self._clear(slots), always_call=True)

    def hold(self, layer: int) -> None:
        self.narrow.hold(layer)

    def release(self) -> None:
        self.narrow.release()

    @contextmanager
    def tracked(self, slots: Sequence[Slot]) -> Iterator[list[nn.Parameter]]:
        try:
            with torch._C.DisableTorchFunction():
                found = [slot.fill_tracked(self._narrow[slot.name].value.double()) for slot in slots]
            self._tracked = {slot.name for slot in slots}
            yield found
        finally:
            self._tracked = set()
            for slot in slots:
                slot.clear()

    def rows(self, rows_N: Tensor) -> Tensor:
        return self.narrow.rows(rows_N).double()

    def chunks(self) -> Iterator[dict[str, Tensor]]:
        for chunk in self.narrow.chunks():
            wide = {name: self._scratch.widen(value) for name, value in chunk.items()}
            yield wide
            for value in wide.values():
                self._scratch.take_back(value)

    def _widen(self, slots: list[Slot]) -> Callable[..., None]:
        def fill(_module: nn.Module, _args: Any) -> None:
            for slot in slots:
                if slot.name not in self._tracked:
                    slot.fill(self._scratch.widen(self._narrow[slot.name].value))

        return fill

    def _clear(self, slots: list[Slot]) -> Callable[..., None]:
        def clear(_module: nn.Module, _args: Any, _out: Any) -> None:
            for slot in slots:
                if slot.name not in self._tracked:
                    self._scratch.take_back(slot.value)
                    slot.clear()

        return clear


class _Scratch:
    """float64 memory for weights that are soon given back: the kernel zeroes fresh memory before it is written."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []
        self._used: dict[int, Tensor] = {}  # by address

    def widen(self, narrow: Tensor) -> Tensor:
        """The tensor in float64; with gradients on, in memory of its own, as autograd may keep it."""
        if torch.is_grad_enabled() or narrow.device.type != "cpu":
            return narrow.double()
        fitting = [each for each in self._free if each.numel() >= narrow.numel()]
        if fitting:
            flat = min(fitting, key=Tensor.numel)
            self._free = [each for each in self._free if each is not flat]
        else:
            self._free.clear()
            flat = torch.empty(narrow.numel(), dtype=torch.float64)
        self._used[flat.data_ptr()] = flat
        return flat[: narrow.numel()].view(narrow.shape).copy_(narrow)

    def take_back(self, wide: Tensor) -> None:
        """The memory of a tensor that `widen` gave may be written to from now on."""
        flat = self._used.pop(wide.data_ptr(), None)
        if flat is not None:
            self._free.append(flat)


def fill_on_demand(layers: nn.ModuleList, places: Places, weights: Weights) -> None:
    """Makes every layer, the embedding and the head take their weights when HF's forward calls them."""
    for index, layer in enumerate(layers):
        layer.forward = _layer_forward(index, layer.forward, weights)
    places.embedding.forward = embedding_forward(places.embedding, places.embed[0], weights, places.embed[0].fill)
    places.head.forward = _head_forward(places.head, places.out, weights)


def _layer_forward(index: int, original: Callable[..., Any], weights: Weights) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():  # golden's mode would make float64 of what is read
            weights.hold(index)
        return original(*args, **kwargs)

    return forward


def embedding_forward(
    module: nn.Module, slot: Slot, weights: Weights, fill: Callable[[Tensor], object]
) -> Callable[..., Any]:
    """HF's own forward on the rows that the ids need, which `fill` puts into the slot."""
    original: Callable[..., Any] = MethodType(type(module).forward, module)
    table: Any = module

    def forward(ids: Tensor) -> Any:
        rows_N, at = torch.unique(ids, return_inverse=True)
        padding, table.padding_idx = table.padding_idx, None  # matters to gradients alone, and must be a row
        try:
            with torch._C.DisableTorchFunction():
                fill(weights.rows(rows_N))
            return original(at)
        finally:
            slot.clear()
            table.padding_idx = padding

    return forward


def _head_forward(module: nn.Module, slots: dict[str, Slot], weights: Weights) -> Callable[..., Any]:
    original: Callable[..., Any] = module.forward

    def forward(x: Tensor) -> Tensor:
        return torch.cat([original(x) for _ in fill_chunks(slots, weights)], dim=-1)

    return forward


def fill_chunks(slots: dict[str, Slot], weights: Weights) -> Iterator[None]:
    """Fills the head with a chunk of the vocabulary after another."""
    try:
        chunks = weights.chunks()
        while True:
            with torch._C.DisableTorchFunction():
                chunk = next(chunks, None)
            if chunk is None:
                return
            for name, value in chunk.items():
                slots[name].fill(value)
            yield
    finally:
        for slot in slots.values():
            slot.clear()
