"""Elementary functions of kernels against float64, densely: small results may not borrow the budget of large ones."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from porter_kernels.accuracy import excess
from porter_kernels.elementary import normal_cdf, reciprocal, sigmoid, tanh_with_slope
from porter_kernels.launch import tl, triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def _apply_kernel(x_ptr, value_ptr, slope_ptr, n, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=1.0)
    if FUNCTION == "normal_cdf":
        value, slope = normal_cdf(x)
    elif FUNCTION == "sigmoid":
        value, slope = sigmoid(x)
    elif FUNCTION == "sigmoid of 1.7 x":
        value, slope = sigmoid(x, 1.7)
    elif FUNCTION == "tanh":
        value, slope = tanh_with_slope(x)
    else:
        value = reciprocal(x)
        slope = -value * value
    tl.store(value_ptr + at, value, mask=at < n)
    tl.store(slope_ptr + at, slope, mask=at < n)


def apply(function: str, x: Tensor) -> tuple[Tensor, Tensor]:
    value, slope = torch.empty_like(x), torch.empty_like(x)
    BLOCK = 2**15 if DEVICE == "cpu" else 1024
    _apply_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, value, slope, x.numel(), FUNCTION=function, BLOCK=BLOCK)
    return value, slope


def normal(x: Tensor) -> Tensor:
    return 0.5 * torch.special.erfc(-x / 2**0.5)  # torch's own ndtr cancels below -5


def logistic(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sigmoid(x), torch.sigmoid(x) * torch.sigmoid(-x)


# What it is in float64, where its results are no subnormals, and what the rounding of its exponent is multiplied by.
FUNCTIONS: dict[str, tuple[Callable[[Tensor], tuple[Tensor, Tensor]], tuple[float, float], Callable[[Tensor], Tensor]]]
FUNCTIONS = {
    "normal_cdf": (
        lambda x: (normal(x), torch.exp(-x * x / 2) / (2 * torch.pi) ** 0.5),
        (-12.9, 12.9),
        lambda x: 1 + x * x,
    ),
    "sigmoid": (logistic, (-86.0, 86.0), lambda x: 1 + x.abs()),
    "sigmoid of 1.7 x": (lambda x: logistic(1.7 * x), (-50.0, 50.0), lambda x: 1 + 2 * x.abs()),
    "tanh": (lambda x: (torch.tanh(x), torch.cosh(x) ** -2), (-43.0, 43.0), lambda x: 1 + 2 * x.abs()),
    "reciprocal": (lambda x: (1 / x, -1 / (x * x)), (1e-8, 100.0), torch.ones_like),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_matches_float64(function: str) -> None:
    compute, (low, high), condition = FUNCTIONS[function]
    x = torch.cat([torch.linspace(low, high, 40001), torch.linspace(max(low, -1), 1, 20001), torch.tensor([1e-8])])
    truth = compute(x.double())
    for name, actual, t in zip(("value", "slope"), apply(function, x.to(DEVICE)), truth, strict=True):
        # Two approximations are multiplied, an exponential and a quotient, hence two terms.
        worst = excess(actual.cpu(), t, 2, t.abs() * condition(x.double()))
        assert worst <= 1, f"{name}: {worst:.2g} times its budget"


@pytest.mark.parametrize(
    ("function", "values", "slopes"),
    [
        ("normal_cdf", [0.0, 0.5, 1.0], [0.0, 0.3989422804014327, 0.0]),
        ("sigmoid", [0.0, 0.5, 1.0], [0.0, 0.25, 0.0]),
        ("tanh", [-1.0, 0.0, 1.0], [0.0, 1.0, 0.0]),
    ],
)
def test_saturated_and_at_zero(function: str, values: list[float], slopes: list[float]) -> None:
    value, slope = apply(function, torch.tensor([-1e18, 0.0, 1e18], device=DEVICE))
    torch.testing.assert_close(value.tolist(), values, rtol=0, atol=2e-7)
    torch.testing.assert_close(slope.tolist(), slopes, rtol=0, atol=2e-7)
    assert (value[0].item(), value[2].item()) == (values[0], values[2])


@pytest.mark.parametrize("function", ["normal_cdf", "sigmoid", "tanh"])
def test_nan_is_kept(function: str) -> None:
    value, slope = apply(function, torch.tensor([float("nan")], device=DEVICE))
    assert value.isnan().all() and slope.isnan().all()


def test_tanh_near_zero_is_within_a_step() -> None:
    x = torch.linspace(-0.62, 0.62, 20001)  # where it is a polynomial: half a step of rounding, an eighth of its own
    value, _ = apply("tanh", x.to(DEVICE))
    truth = torch.tanh(x.double())
    assert ((value.cpu() - truth).abs() <= torch.finfo(torch.float32).eps * truth.abs()).all()


def test_gelu_keeps_its_relative_accuracy_where_the_usual_form_has_none() -> None:
    x = torch.linspace(-12.0, -4.0, 1001)
    cdf, _ = apply("normal_cdf", x.to(DEVICE))
    truth = normal(x.double())
    usual = 0.5 * (1 + torch.erf(x / 2**0.5))  # 1 + erf cancels
    assert ((usual - truth) / truth).abs().max() > 0.9
    assert ((cdf.cpu() - truth) / truth).abs().max() < 2e-5
