"""How packed weights are taken apart, in plain torch, and put together again: the `weight` rows of the plugin table.

A transform makes one tensor of the two that a checkpoint has for it, and its inverse makes the first of these again.
"""

import torch
from torch import Tensor

# E2M1: a sign, two bits of exponent, one of mantissa (OCP Microscaling Formats 1.0, section 5.3.3).
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_BLOCK = 128  # rows and columns that share a float8 scale
_BIAS = 127  # of E8M0, the exponent that a block shares


def dequantize_mxfp4(blocks: Tensor, scales: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The values of a tensor in MXFP4, exact in bfloat16.

    Args:
        blocks: [..., blocks, 16], uint8: two values a byte, the low four bits first.
        scales: [..., blocks], uint8: the exponent of each block, biased by 127.

    Returns:
        [..., blocks * 32], in `dtype`.

    Raises:
        ValueError: the two do not go together.
    """
    if blocks.dtype != torch.uint8 or scales.dtype != torch.uint8 or blocks.shape[:-1] != scales.shape:
        raise ValueError(
            f"dequantize_mxfp4: blocks are {blocks.dtype} {list(blocks.shape)} and scales {scales.dtype} "
            f"{list(scales.shape)}, expected uint8 [..., blocks, bytes], [..., blocks]. Pass X_blocks, X_scales."
        )
    table = torch.tensor(_FP4, dtype=dtype, device=blocks.device)
    pairs = torch.stack((table[(blocks & 15).long()], table[(blocks >> 4).long()]), dim=-1).flatten(-2)
    return torch.ldexp(pairs, scales[..., None].to(torch.int32) - _BIAS).flatten(-2)


def quantize_mxfp4(values: Tensor, scales: Tensor) -> Tensor:
    """The blocks that dequantize_mxfp4 makes `values` of, given the scales: its inverse, bit for bit.

    Raises:
        ValueError: a value is none that these scales can say.
    """
    grouped = values.float().view(*scales.shape, -1)
    units = torch.ldexp(grouped, _BIAS - scales[..., None].to(torch.int32))
    table = torch.tensor(_FP4, device=values.device)
    codes = (units.abs()[..., None] - table[:8]).abs().argmin(-1) + 8 * torch.signbit(units)
    if not torch.equal(table[codes], units):
        raise ValueError(
            "quantize_mxfp4: a value is no multiple that its block's scale can say; expected what dequantize_mxfp4 "
            "gave. Weights that were changed since cannot be packed without loss."
        )
    return (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)


def dequantize_fp8(weight: Tensor, scale_inv: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A matrix in float8 times the scale of each of its blocks, computed in float32 and rounded once (DeepSeek V3).

    Args:
        weight: [..., rows, columns], float8.
        scale_inv: [..., row blocks, column blocks], float32; the last block of an axis may be cut short.

    Returns:
        [..., rows, columns], in `dtype`.
    """
    return (weight.float() * _spread(scale_inv, weight)).to(dtype)


def quantize_fp8(values: Tensor, scale_inv: Tensor, kind: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """The float8 matrix that dequantize_fp8 makes `values` of, given the scales: its inverse."""
    return (values.float() / _spread(scale_inv, values)).to(kind)


def _spread(scale_inv: Tensor, like: Tensor) -> Tensor:
    """The scales, one for each element; blocks are 128 wide, or as wide as the axis needs where that is no multiple."""
    scale = scale_inv.float()
    for axis in (-2, -1):
        size, count = like.shape[axis], scale_inv.shape[axis]
        width = _BLOCK if -(-size // _BLOCK) == count else -(-size // count)
        scale = scale.repeat_interleave(width, dim=axis).narrow(axis, 0, size)
    return scale
