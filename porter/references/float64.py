"""Runs code that hard-codes float32 in float64, so that HF's own model can be golden."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Float64(TorchFunctionMode):
    """Within it, `.float()`, `dtype=torch.float32` and `.to(torch.float32)` mean float64."""

    def __init__(self) -> None:
        super().__init__()
        self._on = True

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Within it, they mean what they say."""
        before, self._on = self._on, False
        try:
            yield
        finally:
            self._on = before

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if not self._on:
            return func(*args, **given)
        if func is Tensor.float:
            return args[0].double()
        if any(value is torch.float32 for value in args):
            args = tuple(torch.float64 if value is torch.float32 else value for value in args)
        unsaid = func is torch.full and "dtype" not in given and isinstance(args[1], float)  # the default: float32
        if unsaid or given.get("dtype") is torch.float32:
            given["dtype"] = torch.float64
        return func(*args, **given)
