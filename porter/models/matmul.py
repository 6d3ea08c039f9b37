"""Matrix products of bfloat16 and float16 on a CPU that has no units for them.

torch falls back to a scalar loop there, 6 GFLOP/s a core in bfloat16 against 44 in float32 (AMD EPYC with AVX2, torch
2.13). Within `Float32Matmul` such a product is computed in float32 and rounded once: the same function, other rounding
than torch's loop. A diff runs both of its sides within it; reports say so.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_UNITS = {torch.bfloat16: {"avx512_bf16", "amx_bf16", "bf16"}, torch.float16: {"avx512_fp16", "amx_fp16", "fphp"}}
_PRODUCTS: frozenset[Callable[..., Any]] = frozenset(
    [
        F.linear,
        torch.matmul,
        torch.bmm,
        torch.addmm,
        Tensor.matmul,
        Tensor.bmm,
        Tensor.__matmul__,
        torch.baddbmm,
        Tensor.baddbmm,
    ]
)


class Float32Matmul(TorchFunctionMode):
    """Within it, products of narrow CPU tensors are float32 products, rounded once to the narrow dtype."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func not in _PRODUCTS or not isinstance(args[0], Tensor) or args[0].dtype not in _UNITS:
            return func(*args, **given)
        wide = (_widen(value) for value in args)
        wide_kwargs = {name: _widen(value) for name, value in given.items()}
        return func(*wide, **wide_kwargs).to(args[0].dtype)


_Key = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...]]
_kept: dict[_Key, tuple[Tensor, Tensor]] | None = None  # the narrow one too, so that its address stays its own


@contextmanager
def widened_once() -> Iterator[None]:
    """Within it, a parameter is widened once, for all who multiply with it; at its end the wide ones are let go of."""
    global _kept
    before, _kept = _kept, {}
    try:
        yield
    finally:
        _kept = before


def _widen(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if _kept is None or torch.is_grad_enabled() or not isinstance(value, nn.Parameter):
        return value.float()
    key = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
    if key not in _kept:
        _kept[key] = (value, value.float())
    return _kept[key][1]


def quick_matmul(dtype: torch.dtype, device: torch.device) -> AbstractContextManager[Any]:
    """Float32Matmul where torch would be slow, else nothing."""
    return Float32Matmul() if needs_float32(dtype, device) else nullcontext()


def needs_float32(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether products in `dtype` run on a CPU without units for it."""
    return device.type == "cpu" and dtype in _UNITS and not _UNITS[dtype] & cpu_flags()


@lru_cache(maxsize=1)
def cpu_flags() -> frozenset[str]:
    """What this CPU can do, as Linux names it; empty where it cannot be told."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(flags.partition(":")[2].split())
