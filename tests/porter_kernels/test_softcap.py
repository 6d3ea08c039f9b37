"""softcap against its reference in float64, forward and backward; the reference against Gemma 2's own lines."""

import pytest
import torch

from porter_kernels.accuracy import excess
from porter_kernels.softcap import softcap, softcap_reference
from tests.porter_kernels.gradients import run, run_in_float64

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spread", [1e-3, 1.0, 300.0], ids="spread={}".format)
@pytest.mark.parametrize("shape", [(), (1,), (3, 63), (2, 3, 350)], ids=str)
def test_matches_reference(
    shape: tuple[int, ...], spread: float, dtype: torch.dtype, generator: torch.Generator
) -> None:
    x, dy = (torch.randn(shape, generator=generator).to(DEVICE) for _ in range(2))
    x, dy = (spread * x).to(dtype), dy.to(dtype)
    actual = run(lambda x: softcap(x, 30.0), [x], [dy])
    truth = run_in_float64(lambda x: softcap_reference(x, 30.0), [x], [dy])
    # Every element has its own scale: a small score may not borrow the budget of a large one.
    for name, a, t in zip(("y", "dx"), actual, truth, strict=True):
        # exp(-2|x|/cap) multiplies the rounding of its argument; the truth is itself a float64 of size dy or less
        scale = t.abs() * (1 + 2 * x.double().abs() / 30) + 1e-8 * dy.double().abs()
        assert (a.dtype, a.shape) == (dtype, t.shape), name
        assert (worst := excess(a, t, 1, scale)) <= 1, f"{name}: {worst:.2g} times its budget"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reference_has_gemma2s_bits(dtype: torch.dtype, generator: torch.Generator) -> None:
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

    class Attention(torch.nn.Module):
        num_key_value_groups, head_dim = 1, 4

    q, k = (3 * torch.randn(1, 2, 9, 4, generator=generator).to(dtype) for _ in range(2))
    values = torch.eye(9, dtype=dtype).expand(1, 2, 9, 9)
    _, weights = eager_attention_forward(Attention().eval(), q, k, values, None, scaling=1.0, softcap=5.0)
    scores = softcap_reference(torch.matmul(q, k.transpose(2, 3)) * 1.0, 5.0)
    assert torch.equal(torch.softmax(scores, dim=-1, dtype=torch.float32).to(dtype), weights)


def test_reference_gradient() -> None:
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: softcap_reference(x, 1.5), x)


def test_never_beyond_the_cap() -> None:
    x = torch.tensor([-3e38, -1e4, 1e4, 3e38], device=DEVICE, requires_grad=True)
    y = softcap(x, 30.0)
    y.sum().backward()
    assert (y.tolist(), x.grad.tolist()) == ([-30.0, -30.0, 30.0, 30.0], [0.0] * 4)


def test_strided_and_empty_input(generator: torch.Generator) -> None:
    x = torch.randn(6, 10, generator=generator).to(DEVICE)
    assert torch.equal(softcap(x.t()[::2], 0.5), softcap(x, 0.5).t()[::2])
    empty = torch.zeros(0, 3, device=DEVICE, requires_grad=True)
    softcap(empty, 2.0).sum().backward()
    assert empty.grad.shape == (0, 3)


@pytest.mark.parametrize("cap", [0.0, -1.0, float("nan")])
def test_wrong_cap_says_what_to_do(cap: float) -> None:
    with pytest.raises(ValueError, match=rf"cap is {cap}, expected a positive number.*do not call softcap"):
        softcap(torch.zeros(2), cap)
