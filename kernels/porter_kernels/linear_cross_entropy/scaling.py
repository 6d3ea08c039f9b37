"""Gradients computed for an upstream of 1, times the upstream there is: all in one launch, which the host would notice.

Axes    none: gradients are memory without gaps.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch
from torch import Tensor

from porter_kernels.launch import block_size, ceil_div, num_programs, tl, triton
from porter_kernels.linear_cross_entropy.gradients import Gradients
from porter_kernels.plans import Plan, launch, planned

TILE = 4096
PROGRAMS_PER_MULTIPROCESSOR = 8  # of a kernel that may have nothing to do


@triton.jit
def _scale_part(x_ptr, size, upstream, BLOCK: tl.constexpr):
    for block in range(tl.program_id(0), (size - 1) // BLOCK + 1, tl.num_programs(0)):  # cdiv overflows near 2**31
        at = block * BLOCK + tl.arange(0, BLOCK).to(tl.int64)  # interpreted, `block` is a Python int
        x = tl.load(x_ptr + at, mask=at < size, other=0.0).to(tl.float32)
        tl.store(x_ptr + at, x * upstream, mask=at < size)


@triton.jit
def _scale_kernel(
    hidden_ptr, weight_ptr, bias_ptr, upstream_ptr, hidden_size, weight_size, bias_size,
    HAS_HIDDEN: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    upstream = tl.load(upstream_ptr)
    if upstream != 1.0:  # the device finds out: the host would wait
        if HAS_HIDDEN:
            _scale_part(hidden_ptr, hidden_size, upstream, BLOCK)
        if HAS_WEIGHT:
            _scale_part(weight_ptr, weight_size, upstream, BLOCK)
        if HAS_BIAS:
            _scale_part(bias_ptr, bias_size, upstream, BLOCK)


@planned
def _plan(
    hidden_size: int, weight_size: int, bias_size: int, has_hidden: bool, has_weight: bool, has_bias: bool,
    device: torch.device,
) -> Plan:  # fmt: skip
    most = max(hidden_size, weight_size, bias_size)
    BLOCK = block_size(most, TILE)
    P = min(ceil_div(most, BLOCK), PROGRAMS_PER_MULTIPROCESSOR * num_programs(device))
    return Plan(
        "linear_cross_entropy", _scale_kernel, (P,),
        hidden_size=hidden_size, weight_size=weight_size, bias_size=bias_size, HAS_HIDDEN=has_hidden,
        HAS_WEIGHT=has_weight, HAS_BIAS=has_bias, BLOCK=BLOCK,
    )  # fmt: skip


def scale_(gradients: Gradients, upstream: Tensor) -> None:
    """Multiplies each, in place and rounded once more unless it is a power of two, by upstream: [] float32."""
    hidden_NH, weight_VH, bias_V = gradients
    hidden_size, weight_size, bias_size = [0 if x is None else x.numel() for x in gradients]
    if hidden_size or weight_size or bias_size:
        plan = _plan(
            hidden_size, weight_size, bias_size, hidden_NH is not None, weight_VH is not None, bias_V is not None,
            upstream.device,
        )  # fmt: skip
        launch(plan, hidden_ptr=hidden_NH, weight_ptr=weight_VH, bias_ptr=bias_V, upstream_ptr=upstream)
