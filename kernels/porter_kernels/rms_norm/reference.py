"""RMSNorm as the models write it, in plain torch."""

from typing import Literal

import torch
from torch import Tensor


def rms_norm_reference(
    x: Tensor,
    w: Tensor | None,
    eps: float,
    *,
    offset: Literal[0, 1] = 0,
    math: Literal["cast_then_scale", "scale_then_cast"],
) -> Tensor:
    """The equation above as the models write it; differentiable; float64 stays float64.

    Args:
        x: [..., D], floating.
        w: [D], or None for no weight (nanochat).
        eps: added to the mean square, in its units (x squared).
        offset: added to w (Gemma: 1).
        math: "cast_then_scale" rounds x_hat before the product with w (Llama, Qwen, Mistral), "scale_then_cast"
            the product, taken in float32 (Gemma, OLMo 2).

    Returns:
        [..., D], dtype of x (under cast_then_scale, what torch promotes x and w to).
    """
    x_wide = x.to(torch.promote_types(x.dtype, torch.float32))
    x_hat = x_wide * torch.rsqrt(x_wide.pow(2).mean(-1, keepdim=True) + eps)
    if w is None:
        return x_hat.to(x.dtype)
    if math == "cast_then_scale":
        return (offset + w if offset else w) * x_hat.to(x.dtype)
    w_wide = w.to(x_wide.dtype)
    return (x_hat * (offset + w_wide if offset else w_wide)).to(x.dtype)


def add_rms_norm_reference(
    x: Tensor,
    residual: Tensor,
    w: Tensor | None,
    eps: float,
    *,
    offset: Literal[0, 1] = 0,
    math: Literal["cast_then_scale", "scale_then_cast"],
) -> tuple[Tensor, Tensor]:
    """residual + x in their dtype, and rms_norm_reference of it, as every pre-norm layer of transformers has it."""
    total = residual + x
    return rms_norm_reference(total, w, eps, offset=offset, math=math), total
