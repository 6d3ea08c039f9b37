"""What a CPU run allocates, counted as a GPU's allocator counts it: bytes of storages that are alive."""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class AllocationTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's __init_subclass__
    """Within, counts the storages of every operation's results, from when they are made until nobody has them.

    What an operation allocates inside itself and frees before it returns is not seen.

    Attributes:
        bytes: alive now.
        peak: most that was alive.
    """

    def __init__(self, *given: Tensor) -> None:
        """Begins with some tensors that are there already."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.peak = 0
        self._alive: dict[int, int] = {}
        for tensor in given:
            self._note(tensor)

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for each in tree_iter(result):
            if isinstance(each, Tensor) and each.device.type != "meta":
                self._note(each)
        return result

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive or not size:
            return
        self._alive[key] = size
        self.bytes += size
        self.peak = max(self.peak, self.bytes)
        weakref.finalize(storage, self._forget, key).atexit = False

    def _forget(self, key: int) -> None:
        self.bytes -= self._alive.pop(key, 0)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The tensors of an optimizer's states."""
    return [each for state in optimizer.state.values() for each in state.values() if isinstance(each, Tensor)]
