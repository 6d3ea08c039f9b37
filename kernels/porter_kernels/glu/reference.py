"""glu, packed_glu and activation in plain torch, rounded where the models' own code rounds."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Layout = Literal["halves", "halves_up_first", "interleaved"]
Clamp = Literal["gate", "act"]


def _gelu_new(x: Tensor) -> Tensor:
    # Each step rounds to x's dtype, as in GPT-2's code; gelu_tanh is the same function rounded once.
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def _gelu_bloom(x: Tensor) -> Tensor:
    # BLOOM's own order and constant of the same function.
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _relu2(x: Tensor) -> Tensor:
    return torch.square(F.relu(x))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "gelu_new": _gelu_new,
    "gelu_bloom": _gelu_bloom,
    "quick_gelu": _quick_gelu,
    "relu": F.relu,
    "relu2": _relu2,
}


def activation_reference(x: Tensor, *, act: str) -> Tensor:
    """act(x), with the bits of transformers.activations.ACT2FN[act] (gelu_tanh is its gelu_pytorch_tanh) or BloomGelu.

    Args:
        x: any shape, floating.
        act: one of ACTIVATIONS.

    Returns:
        Shape and dtype of x.
    """
    return ACTIVATIONS[act](x)


def glu_reference(
    gate: Tensor,
    up: Tensor,
    *,
    act: str,
    alpha: float | None = None,
    limit: float | None = None,
    clamp: Clamp = "gate",
    up_offset: float = 0.0,
) -> Tensor:
    """act(gate), rounded to its dtype, times up, as every gated MLP in transformers has it.

    Args:
        gate: any shape, floating.
        up: like gate.
        act: one of ACTIVATIONS.
        alpha: with act silu, gate * sigmoid(alpha * gate) in two steps (gpt-oss, MiniMax M3); None: silu in one.
        limit: holds gate at most there and up within both signs of it; None: nothing is held (most models).
        clamp: what the limit holds besides up: "gate" (gpt-oss, MiniMax M3, DeepSeek V4, GLM 5) or "act", which is
            act(gate) (Step 3.7).
        up_offset: added to up (gpt-oss, MiniMax M3: 1).

    Returns:
        Shape and dtype of gate.
    """
    if limit is not None:
        up = up.clamp(min=-limit, max=limit)
        gate = gate.clamp(max=limit) if clamp == "gate" else gate
    y = ACTIVATIONS[act](gate) if alpha is None else gate * torch.sigmoid(gate * alpha)
    if limit is not None and clamp == "act":
        y = y.clamp(max=limit)
    return y * (up + up_offset if up_offset else up)


def packed_glu_reference(
    x: Tensor,
    *,
    act: str,
    layout: Layout = "halves",
    alpha: float | None = None,
    limit: float | None = None,
    clamp: Clamp = "gate",
    up_offset: float = 0.0,
) -> Tensor:
    """glu_reference of the gate and up that x is made of.

    Args:
        x: [..., 2 * F], floating.
        act: as for glu_reference.
        layout: see split_packed.
        alpha: as for glu_reference.
        limit: as for glu_reference.
        clamp: as for glu_reference.
        up_offset: as for glu_reference.

    Returns:
        [..., F], dtype of x.
    """
    gate, up = split_packed(x, layout)
    return glu_reference(gate, up, act=act, alpha=alpha, limit=limit, clamp=clamp, up_offset=up_offset)


def split_packed(x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """gate and up, views of x: "halves" (Phi-3), "halves_up_first" (Aya Vision), or even and odd columns (gpt-oss)."""
    if layout == "interleaved":
        return x[..., 0::2], x[..., 1::2]
    first, second = x.chunk(2, dim=-1)
    return (first, second) if layout == "halves" else (second, first)
