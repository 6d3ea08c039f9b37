"""add_rms_norm: the sum that a layer hands on and its norm, against both in float64, forward and backward."""

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from porter_kernels.accuracy import excess
from porter_kernels.rms_norm import RMSNorm, add_rms_norm, add_rms_norm_reference, op, rms_norm
from tests.porter_kernels.gradients import run

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
EPS = 1e-2


def draw(generator: torch.Generator, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", [0, 1], ids="offset={}".format)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 63), (21, 96), (2, 5000)], ids=str)
@pytest.mark.usefixtures("tile", "either_way")
def test_matches_float64(
    shape: tuple[int, ...], offset: Literal[0, 1], dtype: torch.dtype, generator: torch.Generator
) -> None:
    x, residual, w, dy, dtotal = draw(generator, dtype, shape, shape, shape[-1:], shape, shape)
    actual = run(lambda *leaves: add_rms_norm(*leaves, EPS, offset=offset), (x, residual, w), (dy, dtotal))

    total = (x + residual).double()  # the norm reads the sum as it is stored
    leaves = total.requires_grad_(), w.double().requires_grad_()
    y = leaves[0] * torch.rsqrt(leaves[0].square().mean(-1, keepdim=True) + EPS) * (offset + leaves[1])
    dx, dw = torch.autograd.grad((y, leaves[0]), leaves, (dy.double(), dtotal.double()))
    rstd = torch.rsqrt(total.detach().square().mean(-1, keepdim=True) + EPS)
    through = (dy.double() * (offset + w.double()) * rstd).abs().max()
    N, D = x.numel() // shape[-1], shape[-1]
    truths = y.detach(), total.detach(), dx, dx, dw
    scales = y.detach().abs().max(), 0.0, through + dtotal.abs().max(), through + dtotal.abs().max()
    scales = *scales, (dy * total.detach() * rstd).abs().max()
    for name, a, t, terms, scale in zip(
        ("y", "sum", "dx", "dresidual", "dw"), actual, truths, (D, 1, D, D, N), scales, strict=True
    ):
        assert (a.dtype, a.shape) == (dtype, t.shape), name
        assert (worst := excess(a, t, terms, scale)) <= 1, f"{name}: {worst:.2g} times its budget"


def test_has_the_bits_of_a_sum_and_a_norm(generator: torch.Generator) -> None:
    x, residual, w = draw(generator, torch.bfloat16, (9, 96), (9, 96), (96,))
    y, total = add_rms_norm(x, residual, w, EPS)
    assert torch.equal(total, residual + x) and torch.equal(y, rms_norm(residual + x, w, EPS))


@pytest.mark.parametrize("math", ["cast_then_scale", "scale_then_cast"])
def test_reference_has_the_bits_of_a_layer(
    math: Literal["cast_then_scale", "scale_then_cast"], generator: torch.Generator
) -> None:
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    norm = (LlamaRMSNorm if math == "cast_then_scale" else GemmaRMSNorm)(96, eps=EPS).bfloat16()
    nn.init.normal_(norm.weight, mean=0.5, std=0.4, generator=generator)
    x, residual = (torch.randn(9, 96, generator=generator).bfloat16() for _ in range(2))
    y, total = add_rms_norm_reference(
        x, residual, norm.weight, EPS, offset=0 if math == "cast_then_scale" else 1, math=math
    )
    assert torch.equal(total, residual + x) and torch.equal(y, norm(residual + x))


@pytest.mark.parametrize("used", ["norm", "sum"])
def test_one_output_unused(used: str, generator: torch.Generator) -> None:
    leaves = [t.requires_grad_() for t in draw(generator, torch.float32, (6, 40), (6, 40), (40,))]
    outputs = dict(zip(("norm", "sum"), add_rms_norm(*leaves, EPS), strict=True))
    gradients = torch.autograd.grad(outputs[used].sum(), leaves, allow_unused=True)
    reference = dict(zip(("norm", "sum"), add_rms_norm_reference(*leaves, EPS, math="scale_then_cast"), strict=True))
    truth = torch.autograd.grad(reference[used].sum(), leaves, allow_unused=True)
    for a, t in zip(gradients, truth, strict=True):
        assert (a is None) == (t is None)
        if a is not None:
            assert excess(a, t.double(), 40, 8.0) <= 1


@pytest.mark.parametrize("frozen", range(7), ids="{:03b}".format)
def test_frozen_inputs(frozen: int, generator: torch.Generator) -> None:
    inputs = draw(generator, torch.float32, (6, 20), (6, 20), (20,))

    def gradients(still: int) -> list[Tensor | None]:
        leaves = [x.clone().requires_grad_(not still >> i & 1) for i, x in enumerate(inputs)]
        sum(y.square().sum() for y in add_rms_norm(*leaves, EPS)).backward()
        return [leaf.grad for leaf in leaves]

    for i, (some, whole) in enumerate(zip(gradients(frozen), gradients(0), strict=True)):
        assert some is None if frozen >> i & 1 else torch.equal(some, whole)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_compiled_equals_eager(generator: torch.Generator) -> None:
    def op(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x, residual, w, EPS)

    *inputs, dy, dtotal = draw(generator, torch.float32, (5, 63), (5, 63), (63,), (5, 63), (5, 63))
    compiled = run(torch.compile(op, fullgraph=True), inputs, (dy, dtotal))
    for a, b in zip(compiled, run(op, inputs, (dy, dtotal)), strict=True):
        assert torch.equal(a, b)


def test_empty() -> None:
    x, residual = (torch.zeros(0, 8, device=DEVICE, requires_grad=True) for _ in range(2))
    w = torch.ones(8, device=DEVICE, requires_grad=True)
    y, total = add_rms_norm(x, residual, w, EPS)
    (y.sum() + total.sum()).backward()
    assert (x.grad.shape, residual.grad.shape, w.grad.tolist()) == ((0, 8), (0, 8), [0.0] * 8)


def test_unlike_residual_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"residual is torch.float32 \[6\] on cpu, expected torch.float32 \[2, 6\]"):
        add_rms_norm(torch.zeros(2, 6), torch.zeros(6), None, EPS)


def test_wrong_weight_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"add_rms_norm: w has shape \[4\], expected \[6\]"):
        add_rms_norm(torch.zeros(2, 6), torch.zeros(2, 6), torch.zeros(4), EPS)


def test_module_takes_the_place_of_torchs(generator: torch.Generator) -> None:
    (x,) = draw(generator, torch.float32, (4, 24))
    theirs = nn.RMSNorm(24, eps=EPS, device=DEVICE)
    nn.init.normal_(theirs.weight, generator=torch.Generator(DEVICE).manual_seed(1))
    mine = RMSNorm(24, EPS, device=DEVICE)
    assert torch.equal(mine(x), rms_norm(x, torch.ones(24, device=DEVICE), EPS))
    mine.load_state_dict(theirs.state_dict())
    assert excess(mine(x), theirs.double()(x.double()).detach(), 24, 8.0) <= 1
    assert RMSNorm(24, offset=1).weight.count_nonzero() == 0 and RMSNorm(24).eps == 1e-6


@pytest.mark.parametrize("frozen", [True, False])
def test_of_a_frozen_weight_no_gradient_is_computed(
    frozen: bool, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, function = [], op._backward.function
    monkeypatch.setattr(
        op._backward, "function", lambda *arguments: asked.append(arguments[-1]) or function(*arguments)
    )
    x, residual = (torch.randn(4, 6, generator=generator).to(DEVICE).requires_grad_() for _ in range(2))
    w = torch.ones(6, device=DEVICE, requires_grad=not frozen)
    for y in (rms_norm(x, w, 1e-6), add_rms_norm(x, residual, w, 1e-6)[0]):
        y.sum().backward()
    assert asked == [not frozen] * 2
