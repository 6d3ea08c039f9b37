"""The head's matrix products, each rounded once, and the gradients that chunks of rows add up to.

Axes    N rows (of a chunk), H hidden features, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from porter_kernels.linear_cross_entropy.chunks import Accumulate, is_wide


def project(hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, out: Tensor) -> None:
    """Writes the logits [N, V]: summed in float32, rounded once to the dtype of out."""
    if bias_V is None:
        torch.mm(hidden_NH, weight_VH.T, out=out)
    else:
        torch.addmm(bias_V, hidden_NH, weight_VH.T, out=out)


def multiply(a: Tensor, b: Tensor, out: Tensor, *, add: bool = False) -> None:
    """Writes a @ b to out, or adds it; out may be float32 where a and b have 16 bits."""
    if out.dtype == a.dtype:
        torch.addmm(out, a, b, out=out) if add else torch.mm(a, b, out=out)
    elif a.is_cuda:
        torch.addmm(out, a, b, out_dtype=out.dtype, out=out) if add else torch.mm(a, b, out_dtype=out.dtype, out=out)
    else:  # torch's CPU has no out_dtype
        multiply(a.to(out.dtype), b.to(out.dtype), out, add=add)


class Need(NamedTuple):
    """The inputs whose gradients are wanted."""

    hidden: bool
    weight: bool
    bias: bool


class Gradients(NamedTuple):
    """Of the inputs, in their dtypes; None where not wanted."""

    hidden_NH: Tensor | None
    weight_VH: Tensor | None
    bias_V: Tensor | None


class HeadGradient:
    """d_weight and d_bias, summed over chunks.

    One chunk is multiplied into d_weight itself: the product is summed in float32 and rounded once. Several are
    summed in a float32 accumulator and rounded once at the end, so their number does not show in the error. With
    accumulate="weight" the sum itself is held in the dtype of weight and rounded by every chunk: against half a step
    of the dtype, the error grows with the square root of the chunks.
    """

    def __init__(
        self, weight_VH: Tensor, bias_V: Tensor | None, need: Need, num_chunks: int, accumulate: Accumulate
    ) -> None:
        self.dtype = weight_VH.dtype
        wide = is_wide(num_chunks, accumulate, weight_VH.element_size())
        sum_dtype = torch.float32 if wide else self.dtype
        self.weight_VH = torch.empty_like(weight_VH, dtype=sum_dtype) if need.weight else None
        self.bias_V = torch.empty_like(bias_V, dtype=torch.float32) if need.bias and bias_V is not None else None
        self.empty = True

    def add(self, d_logits_NV: Tensor, hidden_NH: Tensor) -> None:
        """Adds a chunk's part; the first is written, since memory is fresh."""
        if self.weight_VH is not None:
            multiply(d_logits_NV.T, hidden_NH, self.weight_VH, add=not self.empty)
        if self.bias_V is not None:
            part_V = d_logits_NV.sum(0, dtype=torch.float32)
            self.bias_V.copy_(part_V) if self.empty else self.bias_V.add_(part_V)
        self.empty = False

    def finish(self) -> tuple[Tensor | None, Tensor | None]:
        """d_weight and d_bias in the dtype of weight, None where not needed; zeros if nothing was added."""
        if self.empty:
            for sum_ in (self.weight_VH, self.bias_V):
                if sum_ is not None:
                    sum_.zero_()
        weight_VH, self.weight_VH = self.weight_VH, None  # the accumulator's last reference is the cast's own
        bias_V, self.bias_V = self.bias_V, None
        return (
            None if weight_VH is None else weight_VH.to(self.dtype),
            None if bias_V is None else bias_V.to(self.dtype),
        )
