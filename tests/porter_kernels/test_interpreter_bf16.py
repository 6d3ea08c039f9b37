"""The mended interpreter computes in bfloat16 as torch does; the shipped one does not, which is why there is a mend."""

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("kernels are compiled on this machine", allow_module_level=True)

import numpy as np
import triton
import triton.language as tl

from porter_kernels.interpreter_bf16 import SHIPPED, Builder, Handle, round_to_bfloat16, widen


@triton.jit
def _arithmetic_kernel(x_ptr, y_ptr, out_ptr, n: tl.constexpr):
    i = tl.arange(0, n)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    tl.store(out_ptr + i, x + y)
    tl.store(out_ptr + n + i, x * y)
    tl.store(out_ptr + 2 * n + i, tl.where(x > y, x, -y))
    tl.store(out_ptr + 3 * n + i, tl.maximum(x, y))
    tl.store(out_ptr + 4 * n + i, x.to(tl.float32) / 3.0)


def test_arithmetic_has_torchs_bits(generator: torch.Generator) -> None:
    x, y = torch.randn(2, 64, generator=generator).bfloat16()
    out = torch.empty(5, 64, dtype=torch.bfloat16)
    _arithmetic_kernel[(1,)](x, y, out, n=64)
    truth = torch.stack([x + y, x * y, torch.where(x > y, x, -y), torch.maximum(x, y), (x.float() / 3).bfloat16()])
    assert torch.equal(out, truth)


def test_rounding_has_torchs_bits() -> None:
    ties = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 3.4e38, float("inf"), float("nan"), 0.0, 1e-40])
    rounded = torch.from_numpy(widen(round_to_bfloat16(ties.numpy())).copy())
    torch.testing.assert_close(rounded, ties.bfloat16().float(), rtol=0, atol=0, equal_nan=True)


def test_what_is_rounded_may_be_wider_and_strided() -> None:
    wide = np.linspace(-3, 3, 32)[::2]
    assert torch.equal(torch.from_numpy(widen(round_to_bfloat16(wide)).copy()), torch.tensor(wide).bfloat16().float())


def test_what_is_not_a_number_stays_so() -> None:
    low = np.array([0x7F800001, 0xFFFFFFFF], dtype=np.uint32).view(np.float32)  # whose fraction a cut or a carry loses
    assert np.isnan(widen(round_to_bfloat16(low))).all()


def test_integers_of_16_bits_are_no_bfloat16() -> None:
    builder, x = Builder(), Handle(np.array([3, 2**15], dtype=np.uint16), tl.uint16)
    assert builder.create_add(x, x).data.tolist() == [6, 0]


def test_a_comparison_is_a_boolean() -> None:
    builder, x = Builder(), Handle(round_to_bfloat16(np.array([1.0, 2.0])), tl.bfloat16)
    y = Handle(round_to_bfloat16(np.array([2.0, 1.0])), tl.bfloat16)
    less = builder.create_fcmpOLT(x, y).data
    assert less.dtype == np.bool_ and less.tolist() == [True, False]


def test_shipped_interpreter_still_truncates() -> None:
    builder, nearly_two = Builder(), Handle(np.array([1.999], dtype=np.float32), tl.float32)
    bits = SHIPPED["cast_impl"](builder, nearly_two, tl.bfloat16).data
    assert widen(bits).item() < 2, "Triton rounds to bfloat16 itself now: drop porter_kernels/interpreter_bf16.py"
