"""In the interpreter, every address a kernel reads or writes lies in a tensor it was launched with.

A tile reaches past the last row and column; without this check a missing mask reads, or overwrites, a neighbour and
no value shows it. What a load leaves out without saying what stands there is NaN: on a GPU it may be anything.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import Tensor
from triton.runtime import interpreter

Executor, Builder = interpreter.GridExecutor, interpreter.InterpreterBuilder


def span(x: Tensor) -> tuple[int, int]:
    """Addresses of the first byte of x and of the first past its last."""
    last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True)) if x.numel() else -1
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def check_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, a launch that touches what it was not given raises."""
    prepare, load, store = Executor._init_args_hst, Builder.create_masked_load, Builder.create_masked_store
    spans = np.empty((0, 2), dtype=np.uint64)

    def prepare_and_note(self: Any, arguments: Any, options: dict[str, Any]) -> Any:
        nonlocal spans
        on_host = prepare(self, arguments, options)
        tensors = [x for x in (*on_host[0], *on_host[1].values()) if isinstance(x, Tensor)]
        spans = np.array([span(x) for x in tensors], dtype=np.uint64)
        return on_host

    def checked(access: Callable[..., Any], mask_at: int) -> Callable[..., Any]:
        def method(self: Any, pointers: Any, *rest: Any, **options: Any) -> Any:
            touched = pointers.data[rest[mask_at].data]
            inside = np.zeros(touched.shape, dtype=bool)
            for first, end in spans:
                inside |= (touched >= first) & (touched < end)
            assert inside.all(), f"{inside.size - inside.sum()} of {inside.size} addresses are in none of the tensors"
            return access(self, pointers, *rest, **options)

        return method

    def load_or_nan(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        if other is None and not mask.data.all():
            dtype = interpreter._get_np_dtype(pointers.get_element_ty())
            ones = np.full((*mask.data.shape, dtype.itemsize), 0xFF, dtype=np.uint8)  # as a float NaN, as an int -1
            other = interpreter.TensorHandle(ones.view(dtype)[..., 0], pointers.get_element_ty())
        return load(self, pointers, mask, other, *rest)

    monkeypatch.setattr(Executor, "_init_args_hst", prepare_and_note)
    monkeypatch.setattr(Builder, "create_masked_load", checked(load_or_nan, 0))
    monkeypatch.setattr(Builder, "create_masked_store", checked(store, 1))
