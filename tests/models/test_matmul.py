"""Narrow products on a CPU: the float32 product, rounded once."""

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from porter.models import matmul
from porter.models.matmul import _PRODUCTS, Float32Matmul, needs_float32, quick_matmul, widened_once

CPU, NARROW = torch.device("cpu"), [torch.bfloat16, torch.float16]


def operands(dtype: torch.dtype):
    generator = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((7, 33), (33, 5), (5,)))
    return x, w, b


PRODUCTS = {
    "linear": lambda x, w, b: F.linear(x, w.T, b),
    "matmul": lambda x, w, b: torch.matmul(x, w),
    "@": lambda x, w, b: x @ w,
    "x.matmul": lambda x, w, b: x.matmul(w),
    "bmm": lambda x, w, b: torch.bmm(x[None], w[None]),
    "addmm": lambda x, w, b: torch.addmm(b, x, w),
    "baddbmm": lambda x, w, b: torch.baddbmm(b.expand(1, 7, 5), x[None], w[None], alpha=0.5),
    "linear by keyword": lambda x, w, b: F.linear(x, w.T, bias=b),
}


class Multiplied(TorchFunctionMode):
    """Notes the dtypes that torch is left to multiply."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in _PRODUCTS:
            self.dtypes.add(args[0].dtype)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("product", PRODUCTS)
def test_a_narrow_product_is_the_float32_product_rounded_once(product: str, dtype: torch.dtype) -> None:
    given = operands(dtype)
    wanted = PRODUCTS[product](*(each.float() for each in given)).to(dtype)
    with Multiplied() as multiplied, Float32Matmul():
        found = PRODUCTS[product](*given)
    assert found.dtype == dtype and torch.equal(found, wanted)
    assert multiplied.dtypes == {torch.float32}  # torch's own narrow product may have the same bits at this size


@pytest.mark.parametrize("product", PRODUCTS)
def test_float32_products_are_untouched(product: str) -> None:
    given = operands(torch.float32)
    wanted = PRODUCTS[product](*given)
    with Float32Matmul():
        found = PRODUCTS[product](*given)
    assert found.dtype == torch.float32 and torch.equal(found, wanted)


def test_other_functions_keep_their_dtype_and_their_rounding() -> None:
    x = operands(torch.bfloat16)[0]
    with Float32Matmul():
        assert torch.equal(x * x, x.mul(x)) and (x + 1).dtype == torch.bfloat16
        assert torch.softmax(x, -1, dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize(
    ("dtype", "flags", "wanted"),
    [
        (torch.bfloat16, "avx2", True), (torch.bfloat16, "avx2 avx512_bf16", False),
        (torch.float16, "avx512_bf16", True), (torch.float16, "avx512_fp16", False),
        (torch.float32, "", False), (torch.float64, "", False),
    ],
    ids=str,
)  # fmt: skip
def test_only_a_cpu_without_units_needs_it(monkeypatch, dtype: torch.dtype, flags: str, wanted: bool) -> None:
    monkeypatch.setattr(matmul, "cpu_flags", lambda: frozenset(flags.split()))
    assert needs_float32(dtype, CPU) is wanted
    assert isinstance(quick_matmul(dtype, CPU), Float32Matmul) is wanted
    assert not needs_float32(dtype, torch.device("cuda"))


@pytest.fixture
def widened(monkeypatch) -> list[torch.Tensor]:
    """What was widened."""
    found: list[torch.Tensor] = []
    widen = torch.Tensor.float
    monkeypatch.setattr(torch.Tensor, "float", lambda value: found.append(value) or widen(value))
    return found


@torch.no_grad()
def test_parameters_are_widened_once_for_all_who_hold_the_same_memory(widened) -> None:
    x, w, b = operands(torch.bfloat16)
    one, other, turned = (torch.nn.Parameter(each) for each in (w.T, w.T, w))
    wanted = F.linear(*(each.to(torch.float32) for each in (x, w.T, b))).bfloat16()
    with widened_once():
        for weight in (one, other, one):
            with Float32Matmul():
                assert torch.equal(F.linear(x, weight, b), wanted)
        assert sum(each is one or each is other for each in widened) == 1 and sum(each is b for each in widened) == 3
        with Float32Matmul():
            assert torch.equal(torch.matmul(x, turned), x.to(torch.float32).matmul(w.to(torch.float32)).bfloat16())
    with Float32Matmul():
        F.linear(x, one, b), F.linear(x, one, b)
    assert sum(each is one for each in widened) == 3 and matmul._kept is None


def test_gradients_reach_a_parameter_that_was_widened_before(widened) -> None:
    x, w, _ = operands(torch.bfloat16)
    weight = torch.nn.Parameter(w.T)
    with widened_once(), Float32Matmul():
        with torch.no_grad():
            F.linear(x, weight)
        F.linear(x, weight).sum().backward()
    assert weight.grad is not None and weight.grad.dtype == torch.bfloat16
