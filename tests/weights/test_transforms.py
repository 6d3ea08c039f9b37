"""MXFP4 and float8 by blocks against transformers' own dequantisation, and back."""

import pytest
import torch
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, _dequantize_fp8_weight
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from porter.weights.transforms import dequantize_fp8, dequantize_mxfp4, quantize_fp8, quantize_mxfp4

GENERATOR = torch.Generator().manual_seed(0)


def packed(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = torch.randint(256, (*shape, 16), generator=GENERATOR, dtype=torch.uint8)
    return blocks, torch.randint(110, 140, shape, generator=GENERATOR, dtype=torch.uint8)


def test_mxfp4_has_the_bits_of_transformers_and_packs_again() -> None:
    blocks, scales = packed(3, 10, 2)
    values = dequantize_mxfp4(blocks, scales)
    assert torch.equal(values.transpose(1, 2), convert_moe_packed_tensors(blocks, scales))
    assert values.shape == (3, 10, 64) and values.unique().numel() > 100
    assert torch.equal(quantize_mxfp4(values, scales), blocks)
    with pytest.raises(ValueError, match=r"no multiple that its block's scale can say"):
        quantize_mxfp4(values * 1.01, scales)
    with pytest.raises(ValueError, match=r"scales torch.uint8 \[3, 10\], expected uint8"):
        dequantize_mxfp4(blocks, scales[..., 0])


@pytest.mark.parametrize("shape", [(256, 384), (2, 128, 256)])
def test_fp8_has_the_bits_of_transformers_and_packs_again(shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape, generator=GENERATOR).to(torch.float8_e4m3fn)
    scale = torch.rand(*shape[:-2], shape[-2] // 128, shape[-1] // 128, generator=GENERATOR) + 0.01
    found = dequantize_fp8(weight, scale)
    assert torch.equal(found, Fp8Dequantize(None)._dequantize_one(weight, scale, torch.bfloat16))
    assert torch.equal(quantize_fp8(found, scale).float(), weight.float())


def test_the_last_fp8_block_may_be_cut_short() -> None:
    weight = torch.randn(200, 300, generator=GENERATOR).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 3, generator=GENERATOR) + 0.01
    expected = _dequantize_fp8_weight(weight, scale, [128, 128], torch.float32)
    assert torch.equal(dequantize_fp8(weight, scale, torch.float32), expected)
