"""Activation checkpointing whose saved layer inputs wait in the host's pinned memory.

Plain checkpointing keeps the input of every layer on the device until backward: layers * tokens * width elements. Here
each input is copied to the host on a stream of its own while later layers run, and copied back while a later layer is
differentiated, so that a few inputs at a time are on the device. Recomputation, random numbers and gradients are those
of torch.utils.checkpoint (non-reentrant), which saves its inputs through the hooks used here: the bits are the same.

    offloaded = OffloadedCheckpointing()
    with offloaded.applied_to(model):      # over gradient_checkpointing_enable, or in its place
        model(...).loss.backward()

Source of the calling convention: transformers modeling_layers.py, GradientCheckpointingLayer: a layer's hidden states
come by position, all else is bound beforehand, and `_gradient_checkpointing_func` is an attribute of each layer.
"""

import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from porter.errors import UsageError

LEAST_BYTES = 2**20  # of a tensor that is worth a copy: 1 MiB takes about 20 us over PCIe 5, as long as two launches
DEPTH = 2  # inputs under way at a time: one is copied while the next is computed
FUNCTION, FLAG = "_gradient_checkpointing_func", "gradient_checkpointing"
_ABSENT = object()


class Transfer(Protocol):
    """How tensors get to the host and back."""

    def host_buffer(self, x: Tensor) -> Tensor:
        """Memory of the host for a tensor like x."""

    def device_buffer(self, host: Tensor) -> Tensor:
        """Memory of the device for a tensor like host."""

    def copy(self, source: Tensor, target: Tensor) -> Any:
        """Begins a copy after all that was asked of the device; what it returns is to be waited for."""

    def wait(self, copied: Any) -> None:
        """Has the device do what it is asked next only after that copy; the host goes on."""


class CudaTransfer:
    """Copies on a stream of their own, to and from pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._device: torch.device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def host_buffer(self, x: Tensor) -> Tensor:
        return torch.empty_like(x, device="cpu", pin_memory=True, requires_grad=False)

    def device_buffer(self, host: Tensor) -> Tensor:
        return torch.empty_like(host, device=self._device)  # of the computing stream, which frees it again

    def copy(self, source: Tensor, target: Tensor) -> torch.cuda.Event:
        # The source is computed, and the target's memory was last used, by what was queued before.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.no_grad(), torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            copied: torch.cuda.Event = self._stream.record_event()
        return copied

    def wait(self, copied: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self._device).wait_event(copied)


class _Input:
    """A layer's input: on the device at first, then on the host, and on the device again when it is needed.

    Attributes:
        source: on the device until its copy is known to be done before its memory is used again.
        fetched: a copy that is on its way back.
        previous: the input saved before this one, which backward wants next.
    """

    source: Tensor | None = None
    fetched: tuple[Tensor, Any] | None = None

    def __init__(self, buffers: "_Buffers", x: Tensor, previous: "_Input | None") -> None:
        self.buffers, self.transfer = buffers, buffers.transfer_of(x)
        self.likeness = (tuple(x.shape), x.stride(), x.dtype, x.device)
        self.host = buffers.take(x, self.likeness)
        self.leaving = self.transfer.copy(x, self.host)
        self.source, self.version = x, x._version
        self.previous = weakref.ref(previous) if previous is not None else lambda: None

    def leave(self) -> None:
        """Gives the device's memory up. Raises: RuntimeError: the input was overwritten while it was copied."""
        if self.source is None:
            return
        source, self.source = self.source, None
        self.transfer.wait(self.leaving)
        if source._version != self.version:
            raise RuntimeError(
                f"offloaded checkpointing: the input {list(source.shape)} of a layer was modified in place after the "
                f"layer had run, expected it to stay as it was until backward. Use plain checkpointing for this model."
            )

    def fetch(self) -> None:
        """Begins the copy back, unless it is on the device or on its way."""
        if self.source is None and self.fetched is None:
            target = self.transfer.device_buffer(self.host)
            self.fetched = target, self.transfer.copy(self.host, target)

    def take(self) -> Tensor:
        """The input on the device; it may be taken again, by a second backward."""
        if self.source is not None:
            return self.source
        self.fetch()
        assert self.fetched is not None
        (x, arriving), self.fetched = self.fetched, None
        self.transfer.wait(arriving)
        return x

    @property
    def device_bytes(self) -> int:
        return self.host.nbytes * ((self.source is not None) + (self.fetched is not None))

    def __del__(self) -> None:
        """Its memory is used again only after copies from and to it are done."""
        if self.source is not None:
            self.transfer.wait(self.leaving)
        if self.fetched is not None:
            self.transfer.wait(self.fetched[1])
        if "leaving" in self.__dict__:  # else it was never whole
            self.buffers.give(self.host, self.likeness)


class _Buffers:
    """Memory of the host. Pinning takes milliseconds, so what is given back is used again; copies of one stream follow
    each other, so that the next cannot overtake the last."""

    def __init__(self, transfer: Transfer | None) -> None:
        self.given, self._transfers = transfer, dict[torch.device, Transfer]()
        self._free: defaultdict[Any, list[Tensor]] = defaultdict(list)

    def transfer_of(self, x: Tensor) -> Transfer:
        """The one that was given, or the one of the tensor's device."""
        if self.given is not None:
            return self.given
        if x.device not in self._transfers:
            self._transfers[x.device] = CudaTransfer(x.device)
        return self._transfers[x.device]

    def take(self, x: Tensor, likeness: Any) -> Tensor:
        free = self._free[likeness]
        return free.pop() if free else self.transfer_of(x).host_buffer(x)

    def give(self, host: Tensor, likeness: Any) -> None:
        self._free[likeness].append(host)

    def clear(self) -> None:
        """Lets go of what is free."""
        self._free.clear()


class OffloadedCheckpointing:
    """Checkpointing with inputs on the host. It owns the buffers, the stream and what is under way; nothing is global.

    Attributes:
        depth: inputs under way at a time, in forward and in backward: those beyond it leave the device.
        least_bytes: smaller tensors stay where they are, as all do that are not on a GPU.
    """

    def __init__(self, *, depth: int = DEPTH, least_bytes: int = LEAST_BYTES, transfer: Transfer | None = None) -> None:
        """Nothing is allocated before a layer runs.

        Args:
            depth: at least 1.
            least_bytes: of a tensor that is copied.
            transfer: for tensors of every device; None: CudaTransfer for those of a GPU, and none for others.

        Raises: UsageError: depth is less than 1.
        """
        if depth < 1:
            raise UsageError(f"offloaded checkpointing with depth {depth}", "1 or more", "Leave it at 2.")
        self.depth, self.least_bytes = depth, least_bytes
        self._buffers = _Buffers(transfer)
        self._leaving: deque[weakref.ref[_Input]] = deque()
        self._inputs: weakref.WeakSet[_Input] = weakref.WeakSet()
        self._last: weakref.ref[_Input] | None = None

    # --- what a model calls ------------------------------------------------------------------

    def checkpoint(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """torch.utils.checkpoint.checkpoint(function, *args), non-reentrant, its saved tensors on the host.

        Args:
            function: run again in backward.
            args: what it takes; large tensors of a GPU among them are offloaded.
            options: of torch's checkpoint but use_reentrant: preserve_rng_state, determinism_check, …
        """
        with saved_tensors_hooks(self._pack, self._unpack):
            return checkpoint(function, *args, use_reentrant=False, **options)

    @contextmanager
    def applied_to(self, model: nn.Module) -> Iterator["OffloadedCheckpointing"]:
        """Within, the layers of a HuggingFace model are checkpointed by this object; after, as before.

        Where the model is checkpointed already (gradient_checkpointing_enable), the same layers are, with the same
        options; else all layers are.

        Raises: UsageError: no module of the model can be checkpointed.
        """
        modules = [module for module in model.modules() if hasattr(module, FLAG)]
        if not modules:
            raise UsageError(
                f"{type(model).__name__} has no module that can be checkpointed",
                f"a HuggingFace model whose layers have an attribute {FLAG}",
                "Call OffloadedCheckpointing.checkpoint(layer, hidden_states) in the model's own forward.",
            )
        enabled = any(getattr(module, FLAG) for module in modules)
        before = [
            (module, {name: module.__dict__.get(name, _ABSENT) for name in (FUNCTION, FLAG)}) for module in modules
        ]
        try:
            for module in modules:
                setattr(module, FUNCTION, partial(self.checkpoint, **_options(getattr(module, FUNCTION, None))))
                setattr(module, FLAG, getattr(module, FLAG) or not enabled)
            yield self
        finally:
            for module, attributes in before:
                for name, value in attributes.items():
                    _put_back(module, name, value)
            self._buffers.clear()

    @property
    def device_bytes(self) -> int:
        """What the saved inputs take on the device now, copies on their way included."""
        return sum(each.device_bytes for each in self._inputs)

    @property
    def host_bytes(self) -> int:
        """What they take on the host."""
        return sum(each.host.nbytes for each in self._inputs)

    # --- saved tensors -----------------------------------------------------------------------

    def _pack(self, x: Tensor) -> "_Input | Tensor":
        if x.nbytes < self.least_bytes or (self._buffers.given is None and x.device.type != "cuda"):
            return x
        saved = _Input(self._buffers, x, self._last() if self._last is not None else None)
        self._last = weakref.ref(saved)
        self._inputs.add(saved)
        self._leaving.append(self._last)
        while len(self._leaving) > self.depth:
            first = self._leaving.popleft()()
            if first is not None:
                first.leave()
        return saved

    def _unpack(self, saved: "_Input | Tensor") -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        x, following = saved.take(), saved.previous()
        for _ in range(self.depth):
            if following is None:
                break
            following.fetch()
            following = following.previous()
        return x


def _options(function: Any) -> dict[str, Any]:
    """The options bound in a layer's checkpointing function; recomputation is never reentrant here."""
    bound = function.keywords if isinstance(function, partial) else {}
    return {name: value for name, value in bound.items() if name != "use_reentrant"}


def _put_back(module: nn.Module, name: str, value: object) -> None:
    if value is not _ABSENT:
        setattr(module, name, value)
    elif name in module.__dict__:
        delattr(module, name)
