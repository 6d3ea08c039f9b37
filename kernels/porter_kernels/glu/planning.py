"""How the kernels of glu are launched: what follows from shapes, strides and options alone."""

from typing import Any

from torch import Tensor

from porter_kernels.glu.kernels import _forward_kernel
from porter_kernels.launch import block_size, ceil_div, rows_per_program
from porter_kernels.plans import Plan, planned

TILE = 1024  # 8 elements a thread: with twice as many the exact GELU's backward runs out of registers
SAME_FUNCTION = {  # and its alpha; rounded elsewhere
    "gelu_new": ("gelu_tanh", None), "gelu_bloom": ("gelu_tanh", None), "quick_gelu": ("silu", 1.702),
}  # fmt: skip


@planned
def plan_launch(
    op: str, kernel: Any, shape: tuple[int, ...], strides: tuple[int, ...], gated: bool, interleaved: bool,
    options: tuple[Any, ...],
) -> Plan:  # fmt: skip
    """Over the rows of tensors, all of them [N, F], or [N, 2 * F] those that hold interleaved pairs.

    strides are those of the kernel's tensors but y, () where nothing lies between the elements of any.
    """
    N, width = shape
    names = ("gate", "up") if kernel is _forward_kernel else ("dy", "gate", "up", "dgate", "dup")
    if not strides:  # one long row
        N, width, strides = 1, N * width, (0,) * len(names)
    length = width // 2 if interleaved else width
    BLOCK_F = block_size(length, TILE)
    BLOCK_N = rows_per_program(N, BLOCK_F, TILE)
    numbers = _constants(*options) | {f"{name}_stride": stride for name, stride in zip(names, strides, strict=True)}
    return Plan(
        op, kernel, (ceil_div(N, BLOCK_N) * ceil_div(length, BLOCK_F),), **numbers, N=N, width=width,
        GATED=gated, INTERLEAVED=interleaved, BLOCK_N=BLOCK_N, BLOCK_F=BLOCK_F,
    )  # fmt: skip


def strides_of(*tensors: Tensor | None) -> tuple[int, ...]:
    for x in tensors:
        if x is not None and not x.is_contiguous():
            return tuple([0 if x is None else x.stride(0) for x in tensors])
    return ()


def _constants(act: str, alpha: float | None, limit: float | None, clamp_act: bool, up_offset: float) -> dict[str, Any]:
    act, implied = SAME_FUNCTION.get(act, (act, None))
    alpha = 1.0 if alpha is None and implied is None else alpha or implied
    return {"ACT": act, "ALPHA": alpha, "LIMIT": limit, "CLAMP_ACT": clamp_act, "UP_OFFSET": up_offset}
