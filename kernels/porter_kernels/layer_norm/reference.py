"""LayerNorm as the models write it, in plain torch."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F


def layer_norm_reference(
    x: Tensor,
    w: Tensor | None,
    b: Tensor | None,
    eps: float,
    *,
    offset: Literal[0, 1] = 0,
    math: Literal["fused", "fused_fp32", "scale_then_cast"],
) -> Tensor:
    """The equation above as the models write it; differentiable; float64 stays float64.

    Args:
        x: [..., D] or [..., H, D], floating.
        w: [D], or [H, D] where each head has its own (Cohere's and StableLM's query norms), or None.
        b: like w, or None.
        eps: added to the variance, in its units (x squared).
        offset: added to w, in w's dtype (Nemotron: 1).
        math: "fused" is torch's layer_norm (GPT-2, GPT-NeoX), "fused_fp32" torch's on x, w and b widened to float32,
            which on a CPU sums in another order (OLMo 1), "scale_then_cast" the same by hand in float32 (Cohere).

    Returns:
        [..., D], dtype of x.
    """
    w = w + offset if w is not None and offset else w
    if math == "fused":
        return _fused_reference(x, w, b, eps)
    x_wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if math == "fused_fp32":
        w_wide, b_wide = (None if row is None else row.to(x_wide.dtype) for row in (w, b))
        return _fused_reference(x_wide, w_wide, b_wide, eps).to(x.dtype)
    centred = x_wide - x_wide.mean(-1, keepdim=True)
    y = centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + eps)
    if w is not None:
        y = w.to(x_wide.dtype) * y
    if b is not None:
        y = y + b.to(x_wide.dtype)
    return y.to(x.dtype)


def _fused_reference(x: Tensor, w: Tensor | None, b: Tensor | None, eps: float) -> Tensor:
    if all(row is None or row.ndim == 1 for row in (w, b)):
        return F.layer_norm(x, x.shape[-1:], w, b, eps)
    w_H = [None] * x.shape[-2] if w is None else w.unbind()
    b_H = [None] * x.shape[-2] if b is None else b.unbind()
    heads = zip(x.unbind(-2), w_H, b_H, strict=True)
    return torch.stack([F.layer_norm(x_h, x_h.shape[-1:], w_h, b_h, eps) for x_h, w_h, b_h in heads], dim=-2)
