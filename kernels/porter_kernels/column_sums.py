"""The sum over programs that ends a backward: each left one float32 row, and the weight's gradient is their sum.

A kernel of its own because torch's sum and cast are two launches, 10 us of host time that a small norm notices. Rows
are added in the same order on every run.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch
from torch import Tensor

from porter_kernels.launch import INTERPRETING, block_size, ceil_div, next_power_of_2, tl, triton
from porter_kernels.plans import Plan, launch, planned

FEW_ROWS = 1024  # below, what a launch has read another finds in the second-level cache
MOST_ROWS, MOST_COLUMNS = 64, 32  # of the tile that a program adds at a time: few columns, so that all of a GPU works


def columns_of(D: int) -> int:
    """Columns that a program sums, of D."""
    return block_size(D) if INTERPRETING else MOST_COLUMNS


@triton.jit
def _sum_kernel(x_ptr, y_ptr, P, D, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr):
    cols = tl.program_id(0).to(tl.int64) * BLOCK_D + tl.arange(0, BLOCK_D)[None, :]  # [1, D]
    total = tl.zeros((BLOCK_P, BLOCK_D), dtype=tl.float32)  # [P, D]
    for first in range(0, P, BLOCK_P):
        rows = first + tl.arange(0, BLOCK_P)[:, None].to(tl.int64)  # [P, 1]
        total += tl.load(x_ptr + rows * D + cols, mask=(rows < P) & (cols < D), other=0.0)
    tl.store(y_ptr + cols, tl.sum(total, axis=0, keep_dims=True), mask=cols < D)


@planned
def _plan(P: int, D: int) -> Plan:
    BLOCK_P = min(next_power_of_2(P), MOST_ROWS)
    BLOCK_D = columns_of(D)
    return Plan("column_sums", _sum_kernel, (ceil_div(D, BLOCK_D),), P=P, D=D, BLOCK_P=BLOCK_P, BLOCK_D=BLOCK_D)


def column_sums(x_PD: Tensor, dtype: torch.dtype) -> Tensor:
    """x_PD, float32 and contiguous, summed over its rows and rounded once, to dtype: [D]; zeros where there is none."""
    P, D = x_PD.shape
    y_D = x_PD.new_empty(D, dtype=dtype)
    if D:
        launch(_plan(P, D), x_ptr=x_PD, y_ptr=y_D)
    return y_D
