"""Gradients computed for an upstream of 1, times the upstream there is: all in one launch, which the host would notice.

Axes    none: gradients are memory without gaps.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from torch import Tensor

from porter_kernels.launch import block_size, ceil_div, launch, launching, num_programs, tl, triton
from porter_kernels.linear_cross_entropy.gradients import Gradients

TILE = 4096
PROGRAMS_PER_MULTIPROCESSOR = 8  # of a kernel that may have nothing to do


@triton.jit
def _scale_part(x_ptr, size, upstream, BLOCK: tl.constexpr):
    for block in range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0)):
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


def scale_(gradients: Gradients, upstream: Tensor) -> None:
    """Multiplies each, in place and rounded once more unless it is a power of two, by upstream: [] float32."""
    hidden_NH, weight_VH, bias_V = gradients
    sizes = [0 if x is None else x.numel() for x in gradients]
    BLOCK = block_size(max(sizes), TILE)
    P = min(ceil_div(max(sizes), BLOCK), PROGRAMS_PER_MULTIPROCESSOR * num_programs(upstream.device))
    if P:
        with launching("linear_cross_entropy", upstream):
            launch(
                _scale_kernel, (P,),
                hidden_ptr=hidden_NH, weight_ptr=weight_VH, bias_ptr=bias_V, upstream_ptr=upstream,
                hidden_size=sizes[0], weight_size=sizes[1], bias_size=sizes[2], HAS_HIDDEN=hidden_NH is not None,
                HAS_WEIGHT=weight_VH is not None, HAS_BIAS=bias_V is not None, BLOCK=BLOCK,
            )  # fmt: skip
