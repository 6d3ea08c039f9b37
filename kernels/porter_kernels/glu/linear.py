"""A gated activation and the projection that reads it, which keep gate and up for backward, and not their product.

    glu_linear(gate, up, weight) = glu(gate, up) @ weight.T + bias

The product is what autograd would keep for the weight's gradient: a third of what a feed-forward branch keeps. Backward
computes it again, one more launch of the forward kernel, so that its bits, and those of all gradients, are the same.

Axes    N rows (leading axes, flattened), F features, D features of the projection's output.
Dtypes  gate, up, weight, bias in {float32, bfloat16, float16}, alike.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from porter_kernels.fused import is_traced, refuse_second_derivative, refuse_transforms
from porter_kernels.glu.op import differentiate_glu, differentiate_packed_glu, glu, packed_glu
from porter_kernels.glu.reference import Layout

Product = Callable[..., Tensor]


def glu_linear(gate: Tensor, up: Tensor, weight: Tensor, bias: Tensor | None = None, *, act: str) -> Tensor:
    """torch.nn.functional.linear(glu(gate, up, act=act), weight, bias), to the bit.

    Args:
        gate: [..., F], floating, any strides.
        up: like gate.
        weight: [D, F], dtype and device of gate.
        bias: [D] or None.
        act: one of ACTIVATIONS.

    Returns:
        [..., D], dtype of gate.

    Raises:
        ValueError: as glu does.
        RuntimeError: shapes or dtypes do not fit, as torch.nn.functional.linear says.
    """
    if is_traced((gate, up, weight, bias)) or not torch.is_grad_enabled():
        return F.linear(glu(gate, up, act=act), weight, bias)
    return _apply((gate, up), weight, bias, glu, differentiate_glu, {"act": act})


def packed_glu_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, act: str, layout: Layout = "halves"
) -> Tensor:
    """torch.nn.functional.linear(packed_glu(x, act=act, layout=layout), weight, bias), to the bit.

    Args:
        x: [..., 2 * F], floating, any strides: the output of one projection of gate and up.
        weight, bias, act: as for glu_linear.
        layout: as for packed_glu.

    Returns:
        [..., D], dtype of x.

    Raises:
        ValueError, RuntimeError: as for glu_linear.
    """
    options = {"act": act, "layout": layout}
    if is_traced((x, weight, bias)) or not torch.is_grad_enabled():
        return F.linear(packed_glu(x, act=act, layout=layout), weight, bias)
    return _apply((x,), weight, bias, packed_glu, differentiate_packed_glu, options)


def _apply(
    inputs: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None, product: Product, differentiate: Any,
    options: dict[str, Any],
) -> Tensor:  # fmt: skip
    refuse_transforms("glu")
    found: Tensor = _Recomputed.apply(product, differentiate, options, weight, bias, *inputs)  # type: ignore[no-untyped-call]
    return found


class _Recomputed(torch.autograd.Function):
    """linear(product(*inputs)), whose product is computed again in backward."""

    @staticmethod
    def forward(
        ctx: Any, product: Product, differentiate: Any, options: dict[str, Any], weight: Tensor, bias: Tensor | None,
        *inputs: Tensor,
    ) -> Tensor:  # fmt: skip
        ctx.product, ctx.differentiate, ctx.options = product, differentiate, options
        ctx.save_for_backward(weight, *inputs)
        return F.linear(product(*inputs, **options), weight, bias)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        refuse_second_derivative("glu_linear")
        (dy,), (weight, *inputs) = given, ctx.saved_tensors
        _, _, _, need_weight, need_bias, *need_inputs = ctx.needs_input_grad
        dy_ND = dy.reshape(-1, dy.shape[-1])
        d_weight = None
        if need_weight:
            hidden = ctx.product(*inputs, **ctx.options)
            d_weight = dy_ND.t() @ hidden.view(-1, hidden.shape[-1])
        d_bias = dy_ND.sum(0) if need_bias else None
        d_inputs: tuple[Tensor | None, ...] = (None,) * len(inputs)
        if any(need_inputs):
            d_hidden = (dy_ND @ weight).view(*dy.shape[:-1], -1)
            d_inputs = ctx.differentiate(d_hidden, *inputs, **ctx.options)
        return None, None, None, d_weight, d_bias, *d_inputs
