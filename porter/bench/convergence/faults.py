"""Mistakes that a training must show, made in this process: a backward pass that believes memory to be contiguous.

Attention hands RoPE the gradient of its queries in the order of memory that suits attention, heads behind positions. A
kernel that reads it as if it lay as the forward's output did rotates numbers of one head by the position of another.
Which of torch's attentions does so depends on device, dtype and shape, so the gradient is laid out like that here.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from porter.patching import rotation
from porter_kernels.rope import rope


class _BelievesContiguous(torch.autograd.Function):
    """rope, whose backward reads its gradients as if they were contiguous."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, style: Any) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        ctx.style = style
        y, z = rope(q, k, cos, sin, style=style)
        return y.contiguous(), z.contiguous()

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        dq, dk = (_misread(each) for each in given)
        return *rope(dq, dk, cos, -sin, style=ctx.style), None, None, None


def _misread(gradient: Tensor) -> Tensor:
    """[B, heads, T, head] with heads behind positions in memory, read as if positions lay behind heads."""
    return gradient.transpose(1, 2).contiguous().view(gradient.shape)


def believe_contiguous() -> None:
    """Puts that backward in the place of every patched rotation's."""

    def wrong(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, style: Any) -> Any:
        return _BelievesContiguous.apply(q, k, cos, sin, style)  # type: ignore[no-untyped-call]

    vars(rotation)["rope"] = wrong


FAULTS: dict[str, Callable[[], None]] = {"contiguity": believe_contiguous}
