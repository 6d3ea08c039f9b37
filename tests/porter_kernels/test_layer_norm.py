"""layer_norm against its reference in float64, forward and backward; the reference against the models' own norms."""

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from porter_kernels.accuracy import excess
from porter_kernels.layer_norm import LayerNorm, layer_norm, layer_norm_reference
from tests.porter_kernels.gradients import gradients_by_frozen, run, run_in_float64

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
EPS = 1e-2  # large enough to show in every element
Math = Literal["fused", "scale_then_cast"]


def op(offset: Literal[0, 1] = 0):
    return lambda x, w=None, b=None: layer_norm(x, w, b, EPS, offset=offset)


def reference(offset: Literal[0, 1] = 0, math: Math = "scale_then_cast"):
    return lambda x, w=None, b=None: layer_norm_reference(x, w, b, EPS, offset=offset, math=math)


def draw(generator: torch.Generator, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes]


def check(inputs: list[Tensor], dy: Tensor, offset: Literal[0, 1] = 0) -> None:
    """y and the gradients of x, w, b are within their budgets."""
    gain = inputs[1] + offset  # in the weight's dtype, as the models add
    actual, truth = run(op(offset), inputs, [dy]), run_in_float64(reference(), [inputs[0], gain, inputs[2]], [dy])
    x, w, b = (t.double() for t in inputs)
    D, N, dy = x.shape[-1], x.numel() // w.numel(), dy.double()
    centred = x - x.mean(-1, keepdim=True)
    rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPS)
    gain = gain.double().abs().max()
    x_hat = x.abs().max() * rstd.max()  # centring subtracts numbers as large as x
    scales = x_hat * gain + b.abs().max(), dy.abs().max() * gain * rstd.max() * (1 + x_hat), dy.abs().max() * x_hat
    for name, a, t, terms, scale in zip(
        ("y", "dx", "dw", "db"), actual, truth, (D, D, N, N), (*scales, dy.abs().max()), strict=True
    ):
        assert (a.dtype, a.shape) == (inputs[0].dtype, t.shape), name
        assert (worst := excess(a, t, terms, scale)) <= 1, f"{name}: {worst:.2g} times its budget"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", [0, 1], ids="offset={}".format)
@pytest.mark.parametrize("shape", [(1, 1), (300, 1), (4, 33), (3, 5, 63), (2, 7, 128), (21, 96), (3, 5000)], ids=str)
@pytest.mark.usefixtures("tile", "either_way")
def test_matches_reference(
    shape: tuple[int, ...], offset: Literal[0, 1], dtype: torch.dtype, generator: torch.Generator
) -> None:
    *inputs, dy = draw(generator, dtype, shape, shape[-1:], shape[-1:], shape)
    check(inputs, dy, offset)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [1, 3, 6])
@pytest.mark.usefixtures("tile", "either_way")
def test_one_weight_row_a_head_matches_reference(heads: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    *inputs, dy = draw(generator, dtype, (2, 5, heads, 33), (heads, 33), (heads, 33), (2, 5, heads, 33))
    check(inputs, dy)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_far_from_zero_matches_reference(dtype: torch.dtype, generator: torch.Generator) -> None:
    x, w, b, dy = draw(generator, dtype, (6, 100), (100,), (100,), (6, 100))
    check([x + 30, w, b], dy)  # mean(x**2) - mean(x)**2 would lose the variance


@pytest.mark.parametrize("given", ["", "w", "b"])
@pytest.mark.usefixtures("either_way")
def test_without_weight_or_bias_matches_reference(given: str, generator: torch.Generator) -> None:
    x, row, dy = draw(generator, torch.float32, (9, 100), (100,), (9, 100))
    actual = run(lambda x, row: op()(x, **{given: row} if given else {}) + 0 * row, (x, row), [dy])
    truth = run_in_float64(lambda x, row: reference()(x, **{given: row} if given else {}) + 0 * row, (x, row), [dy])
    for a, t in zip(actual, truth, strict=True):
        assert excess(a, t, 100, t.abs().max()) <= 1


@pytest.mark.parametrize("math", ["fused", "scale_then_cast"])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("rows", [(6,), (4, 6)], ids=str)
def test_reference_gradient(rows: tuple[int, ...], offset: Literal[0, 1], math: Math) -> None:
    inputs = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((3, 4, 6), rows, rows)]
    assert torch.autograd.gradcheck(reference(offset, math), inputs)


def models_norm(model: str) -> tuple[nn.Module, Literal[0, 1], Math]:
    from transformers.models.cohere.modeling_cohere import CohereLayerNorm
    from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P

    return {
        "gpt2": (nn.LayerNorm(96, eps=EPS), 0, "fused"),
        "nemotron": (NemotronLayerNorm1P(96, eps=EPS), 1, "fused"),
        "cohere": (CohereLayerNorm(96, eps=EPS), 0, "scale_then_cast"),
        "cohere heads": (CohereLayerNorm((5, 96), eps=EPS), 0, "scale_then_cast"),
    }[model]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("model", ["gpt2", "nemotron", "cohere", "cohere heads"])
def test_reference_has_the_models_bits(model: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    norm, offset, math = models_norm(model)
    norm, b = norm.to(dtype), getattr(norm, "bias", None)
    torch.nn.init.normal_(norm.weight, mean=1.0 - offset, std=0.4, generator=generator)
    if b is not None:
        torch.nn.init.normal_(b, generator=generator)
    x = torch.randn(7, 5, 96, generator=generator).to(dtype)
    assert torch.equal(layer_norm_reference(x, norm.weight, b, EPS, offset=offset, math=math), norm(x))


def test_reference_has_olmos_bits(generator: torch.Generator) -> None:
    from transformers.models.olmo.modeling_olmo import OlmoLayerNorm

    x = torch.randn(4000, 96, generator=generator).bfloat16()
    theirs, eps = OlmoLayerNorm(96)(x), 1e-5  # whatever the config says
    assert torch.equal(layer_norm_reference(x, None, None, eps, math="fused_fp32"), theirs)
    assert not torch.equal(layer_norm_reference(x, None, None, eps, math="fused"), theirs)


def test_reference_has_stablelms_bits(generator: torch.Generator) -> None:
    from transformers.models.stablelm.modeling_stablelm import StableLmLayerNormPerHead

    norm = StableLmLayerNormPerHead(16, 3, eps=EPS).bfloat16()
    w = torch.stack([torch.nn.init.normal_(head.weight, generator=generator) for head in norm.norms])
    x = torch.randn(2, 3, 7, 16, generator=generator).bfloat16()
    mine = layer_norm_reference(x.transpose(1, 2), w, None, EPS, math="fused").transpose(1, 2)
    assert torch.equal(mine, norm(x))


def test_strided_input(generator: torch.Generator) -> None:
    x, w, b = draw(generator, torch.float32, (12, 5, 40), (40,), (40,))
    views = x.transpose(0, 1)[:, ::3, 4:36:2], w[4:36:2], b[4:36:2]
    dy = torch.randn(5, 16, 4, generator=generator).to(DEVICE).transpose(1, 2)
    strided = run(op(), views, [dy])
    packed = run(op(), [view.contiguous() for view in views], [dy.contiguous()])
    for a, b in zip(strided, packed, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "frozen", [(True, False, False), (False, True, False), (False, False, True), (False, True, True)]
)
@pytest.mark.usefixtures("tile", "either_way")
def test_frozen_inputs(frozen: tuple[bool, ...], generator: torch.Generator) -> None:
    inputs = draw(generator, torch.float32, (60, 20), (20,), (20,))
    everything = gradients_by_frozen(op(), inputs, [False] * 3)
    for still, gradient, whole in zip(frozen, gradients_by_frozen(op(), inputs, frozen), everything, strict=True):
        assert gradient is None if still else torch.equal(gradient, whole)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8), (0, 2, 8)], ids=str)
def test_empty(shape: tuple[int, ...]) -> None:
    affine = shape[1:] if shape[-2] else shape[-1:]  # a weight row a head, where there are heads
    x, w, b = (torch.ones(s, device=DEVICE, requires_grad=True) for s in (shape, affine, affine))
    op()(x, w, b).sum().backward()
    assert x.grad.shape == shape
    assert torch.equal(w.grad, torch.zeros_like(w)) and torch.equal(b.grad, torch.zeros_like(b))


@pytest.mark.parametrize(
    ("w", "b", "message"),
    [
        (torch.zeros(4), None, r"w has shape \[4\], expected \[6\] \(or one row a head\).*x\.movedim"),
        (
            torch.zeros(6),
            torch.zeros(3, 6),
            r"b has shape \[3, 6\], expected \[6\].*Pass the (weight|bias) of this layer",
        ),
        (torch.zeros(6), torch.zeros(2, 6), r"b has shape \[2, 6\], expected \[6\] like w.*Pass the bias"),
        (torch.zeros(6).half(), None, r"w is torch.float16 on cpu, expected torch.float32 .*w\.to\(x\)"),
    ],
    ids=["shape", "heads", "unlike", "dtype"],
)
def test_wrong_weight_says_what_to_do(w: Tensor, b: Tensor | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer_norm(torch.zeros(2, 6), w, b, EPS)


def test_a_weight_is_of_features_or_of_heads_and_features() -> None:
    x = torch.zeros(2, 3, 6)
    with pytest.raises(ValueError, match=r"w has shape \[2, 3, 6\], expected \[6\]"):
        layer_norm(x, torch.zeros(2, 3, 6), None, EPS)


@pytest.mark.parametrize("bias", [True, False])
def test_module_takes_the_place_of_torchs(bias: bool, generator: torch.Generator) -> None:
    (x,) = draw(generator, torch.float32, (4, 24))
    theirs = nn.LayerNorm(24, eps=EPS, bias=bias, device=DEVICE)
    for row in theirs.parameters():
        nn.init.normal_(row, generator=torch.Generator(DEVICE).manual_seed(1))
    mine = LayerNorm(24, EPS, bias=bias, device=DEVICE)
    assert torch.equal(mine(x), layer_norm(x, torch.ones(24, device=DEVICE), None, EPS))
    mine.load_state_dict(theirs.state_dict())
    assert excess(mine(x), theirs.double()(x.double()).detach(), 24, 8.0) <= 1


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU's count of its memory")
@pytest.mark.parametrize("shape", [(64, 2048), (8192, 2048)], ids=str)
def test_takes_no_more_memory_than_torchs_own(shape: tuple[int, int], generator: torch.Generator) -> None:
    *inputs, dy = draw(generator, torch.bfloat16, shape, shape[-1:], shape[-1:], shape)
    peaks = []
    for fn in (op(), lambda x, w, b: nn.functional.layer_norm(x, x.shape[-1:], w, b, EPS)):
        run(fn, inputs, [dy])
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(fn, inputs, [dy])
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[0] <= peaks[1] + 4096  # a few blocks of 512 bytes
