"""ALiBi's slopes, as the models compute them: the same numbers, rounded otherwise where heads are no power of two.

Press et al. 2022, arXiv:2108.12409, section 3: for H heads, a power of two, 2**(-8 h / H) for h = 1 … H.
"""

import math
from typing import Literal

import torch
from torch import Tensor


def alibi_slopes(kind: Literal["bloom", "mpt"], heads: int, device: torch.device) -> Tensor:
    """[H], float32: what a head subtracts from its scores a position of distance.

    Args:
        kind: bloom: powers of one base, for the heads past the largest power of two those of its root (transformers
            modeling_bloom.py, _get_alibi_slopes). mpt: each from its own exponent, for the next power of two, every
            second one first (modeling_mpt.py, build_mpt_alibi_tensor).
    """
    return _powers(heads, device) if kind == "bloom" else _exponents(heads, device)


def _powers(heads: int, device: torch.device) -> Tensor:
    most = 2 ** math.floor(math.log2(heads))
    slopes_H = _base(most, device) ** torch.arange(1, most + 1, dtype=torch.int32, device=device)
    odd = 2 * torch.arange(heads - most, dtype=torch.int32, device=device) + 1
    return torch.cat((slopes_H, _base(2 * most, device) ** odd))


def _base(heads: int, device: torch.device) -> Tensor:
    return torch.tensor(2.0 ** -(8.0 / heads), dtype=torch.float32, device=device)


def _exponents(heads: int, device: torch.device) -> Tensor:
    count = 2 ** math.ceil(math.log2(heads))
    exponents = torch.arange(1, count + 1, device=device).float() * (8 / count)
    slopes_H = 1.0 / torch.pow(2, exponents)
    return slopes_H if count == heads else torch.cat((slopes_H[1::2], slopes_H[::2]))[:heads]
