"""Mistakes that a training must show, made in this process: a backward pass that believes memory to be contiguous.

Attention hands RoPE the gradient of its queries in the order of memory that suits attention, heads behind positions. A
kernel that reads it as if it lay as the forward's output did rotates numbers of one head by the position of another.
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
    """What lies in memory where a contiguous tensor of that shape would."""
    first = gradient.as_strided((gradient.numel(),), (1,)) if _is_dense(gradient) else gradient.flatten()
    return first.view(gradient.shape)


def _is_dense(tensor: Tensor) -> bool:
    return sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) < tensor.numel()


def believe_contiguous() -> None:
    """Puts that backward in the place of every patched rotation's."""

    def wrong(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, style: Any) -> Any:
        return _BelievesContiguous.apply(q, k, cos, sin, style)  # type: ignore[no-untyped-call]

    vars(rotation)["rope"] = wrong


FAULTS: dict[str, Callable[[], None]] = {"contiguity": believe_contiguous}
