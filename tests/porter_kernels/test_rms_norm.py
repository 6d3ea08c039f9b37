"""rms_norm against its reference in float64, forward and backward; the reference against the models' own norms."""

from typing import Literal

import pytest
import torch
from torch import Tensor

from porter_kernels.accuracy import excess
from porter_kernels.rms_norm import op as module
from porter_kernels.rms_norm import rms_norm, rms_norm_reference
from tests.porter_kernels.gradients import gradients_by_frozen, run, run_in_float64

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
EPS = 1e-2  # large enough to show in every element


def op(offset: Literal[0, 1] = 0):
    return lambda x, w=None: rms_norm(x, w, EPS, offset=offset)


def reference(offset: Literal[0, 1] = 0, math: Literal["cast_then_scale", "scale_then_cast"] = "scale_then_cast"):
    return lambda x, w=None: rms_norm_reference(x, w, EPS, offset=offset, math=math)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", [0, 1], ids="offset={}".format)
@pytest.mark.parametrize("shape", [(1, 1), (300, 1), (4, 33), (3, 5, 63), (2, 7, 128), (21, 96), (3, 5000)], ids=str)
@pytest.mark.usefixtures("tile", "either_way")
def test_matches_reference(
    shape: tuple[int, ...], offset: Literal[0, 1], dtype: torch.dtype, generator: torch.Generator
) -> None:
    x, w, dy = (torch.randn(s, generator=generator).to(DEVICE, dtype) for s in (shape, shape[-1:], shape))
    actual = run(op(offset), (x, w), [dy])
    truth = run_in_float64(reference(offset), (x, w), [dy])

    D, N = shape[-1], x.numel() // shape[-1]
    rstd = torch.rsqrt(x.double().square().mean(-1, keepdim=True) + EPS)
    scales = truth[0].abs().max(), (dy.double() * (offset + w.double()) * rstd).abs().max(), (dy * x * rstd).abs().max()
    for name, a, t, terms, scale in zip(("y", "dx", "dw"), actual, truth, (D, D, N), scales, strict=True):
        assert (a.dtype, a.shape) == (dtype, t.shape), name
        assert (worst := excess(a, t, terms, scale)) <= 1, f"{name}: {worst:.2g} times its budget"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_without_weight_matches_reference(dtype: torch.dtype, generator: torch.Generator) -> None:
    x, dy = (torch.randn(9, 100, generator=generator).to(DEVICE, dtype) for _ in range(2))
    actual, truth = run(op(), [x], [dy]), run_in_float64(reference(), [x], [dy])
    for a, t in zip(actual, truth, strict=True):
        assert excess(a, t, 100, t.abs().max()) <= 1


@pytest.mark.parametrize("math", ["cast_then_scale", "scale_then_cast"])
@pytest.mark.parametrize("offset", [0, 1])
def test_reference_gradient(math: Literal["cast_then_scale", "scale_then_cast"], offset: Literal[0, 1]) -> None:
    x, w = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((4, 6), (6,)))
    assert torch.autograd.gradcheck(reference(offset, math), (x, w))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("model", ["llama", "gemma3", "olmo2", "nanochat"])
def test_reference_has_the_models_bits(model: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.nanochat.modeling_nanochat import NanoChatRMSNorm
    from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

    norm, offset, math = {
        "llama": (LlamaRMSNorm(96, eps=EPS), 0, "cast_then_scale"),
        "gemma3": (Gemma3RMSNorm(96, eps=EPS), 1, "scale_then_cast"),
        "olmo2": (Olmo2RMSNorm(96, eps=EPS), 0, "scale_then_cast"),
        "nanochat": (NanoChatRMSNorm(eps=EPS), 0, "scale_then_cast"),
    }[model]
    norm = norm.to(dtype)
    w = getattr(norm, "weight", None)
    if w is not None:  # an identity weight would hide the order of the casts
        torch.nn.init.normal_(w, mean=1.0 - offset, std=0.4, generator=generator)
    x = torch.randn(33, 96, generator=generator).to(dtype)
    assert torch.equal(rms_norm_reference(x, w, EPS, offset=offset, math=math), norm(x))


def test_offset_is_added_in_the_weights_dtype_under_cast_then_scale(generator: torch.Generator) -> None:
    x, w = (torch.randn(s, generator=generator).bfloat16() for s in ((7, 96), (96,)))
    x_hat = rms_norm_reference(x, None, EPS, math="cast_then_scale")
    assert torch.equal(reference(1, "cast_then_scale")(x, w), x_hat * (1 + w))


def test_strided_input(generator: torch.Generator) -> None:
    x, w = torch.randn(12, 5, 40, generator=generator).to(DEVICE), torch.randn(40, generator=generator).to(DEVICE)
    views = x.transpose(0, 1)[:, ::3, 4:36:2], w[4:36:2]
    dy = torch.randn(5, 16, 4, generator=generator).to(DEVICE).transpose(1, 2)
    strided = run(op(), views, [dy])
    packed = run(op(), [view.contiguous() for view in views], [dy.contiguous()])
    for a, b in zip(strided, packed, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("frozen", [(True, False), (False, True)], ids=str)
@pytest.mark.usefixtures("either_way")
def test_frozen_inputs(frozen: tuple[bool, bool], generator: torch.Generator) -> None:
    inputs = [torch.randn(s, generator=generator).to(DEVICE) for s in ((6, 20), (20,))]
    everything = gradients_by_frozen(op(), inputs, [False, False])
    for still, gradient, whole in zip(frozen, gradients_by_frozen(op(), inputs, frozen), everything, strict=True):
        assert gradient is None if still else torch.equal(gradient, whole)


def test_a_frozen_weight_costs_no_sum(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = (torch.randn(s, generator=generator).to(DEVICE) for s in ((6, 20), (20,)))
    (rows_alone,), (and_columns,) = (
        module._plan_backward(6, 20, 0, True, False, need_dw, x.device).grid for need_dw in (False, True)
    )
    assert rows_alone < and_columns
    monkeypatch.setattr(module, "FEW_ROWS", 4)
    monkeypatch.setattr(module, "column_sums", lambda *_: pytest.fail("nobody asked for the weight's gradient"))
    rms_norm(x.requires_grad_(), w, EPS).sum().backward()


@pytest.mark.usefixtures("either_way")
def test_equal_bits_on_every_run_and_inputs_untouched(generator: torch.Generator) -> None:
    inputs = [torch.randn(s, generator=generator).to(DEVICE) for s in ((50, 33), (33,), (50, 33))]
    copies = [x.clone() for x in inputs]
    runs = [run(op(), inputs[:2], inputs[2:]) for _ in range(3)]
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(inputs, copies, strict=True))


def test_wrong_weight_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"w has shape \[4\], expected \[6\].*Pass the weight"):
        rms_norm(torch.zeros(2, 6), torch.zeros(4), EPS)


def test_wrong_dtype_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"w is torch.float32 on cpu, expected torch.bfloat16 .*w\.to\(x\)"):
        rms_norm(torch.zeros(2, 6, dtype=torch.bfloat16), torch.zeros(6), EPS)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)  # Inductor's own import
def test_compiled_equals_eager(generator: torch.Generator) -> None:
    inputs = [torch.randn(s, generator=generator).to(DEVICE) for s in ((5, 63), (63,), (5, 63))]
    compiled = run(torch.compile(op(1), fullgraph=True), inputs[:2], inputs[2:])
    for a, b in zip(compiled, run(op(1), inputs[:2], inputs[2:]), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8)], ids=str)
def test_empty(shape: tuple[int, ...]) -> None:
    x, w = torch.zeros(shape, device=DEVICE, requires_grad=True), torch.ones(8, device=DEVICE, requires_grad=True)
    y: Tensor = op()(x, w)
    y.sum().backward()
    assert (y.shape, x.grad.shape, w.grad.tolist()) == (shape, shape, [0.0] * 8)
