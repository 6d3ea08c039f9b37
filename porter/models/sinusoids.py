"""Sines and cosines of positions, in place of a learned table (Vaswani et al. 2017, arXiv:1706.03762, section 3.5)."""

import math
from typing import Literal

import torch
from torch import Tensor


def sinusoids(kind: Literal["sinusoidal", "sinusoidal_closed"], positions_BT: Tensor, width: int) -> Tensor:
    """[B, T, D], float32: the sines of all frequencies, then their cosines.

    Args:
        kind: sinusoidal: frequencies 10000**(-2 k / D), k < D / 2 (transformers modeling_ctrl.py, positional_encoding).
            sinusoidal_closed: with D / 2 - 1 for D / 2, so that the last is 1/10000 (modeling_xglm.py, get_embedding).
        width: D, even.
    """
    steps = torch.arange(width // 2, dtype=torch.int64, device=positions_BT.device).float()
    if kind == "sinusoidal":
        frequencies = 1 / torch.pow(10000, (2 * steps) / width)
    else:
        frequencies = torch.exp(steps * -(math.log(10000) / (width // 2 - 1)))
    angles = positions_BT.float()[:, :, None] * frequencies
    return torch.cat((torch.sin(angles), torch.cos(angles)), dim=-1)
