"""Defects that were reported of other libraries' norms, as tests that porter's pass.

Numbers are issues of Liger-Kernel (github.com/linkedin/Liger-Kernel).
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import pytest
import torch
from torch import Tensor

from porter_kernels.accuracy import excess
from porter_kernels.layer_norm import layer_norm, layer_norm_reference
from porter_kernels.rms_norm import add_rms_norm, rms_norm, rms_norm_reference
from tests.porter_kernels.gradients import run, run_in_float64

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LARGE_GPU = DEVICE == "cuda" and torch.cuda.get_device_properties(0).total_memory > 60 * 2**30
EPS = 1e-2
OPS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "rms_norm": (
        lambda x, w: rms_norm(x, w, EPS),
        lambda x, w: rms_norm_reference(x, w, EPS, math="scale_then_cast"),
    ),
    "layer_norm": (
        lambda x, w: layer_norm(x, w, None, EPS),
        lambda x, w: layer_norm_reference(x, w, None, EPS, math="scale_then_cast"),
    ),
    "add_rms_norm": (
        lambda x, w: add_rms_norm(x, x.flip(0), w, EPS)[0],
        lambda x, w: rms_norm_reference(x + x.flip(0), w, EPS, math="scale_then_cast"),
    ),
}


def draw(generator: torch.Generator, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes]


@pytest.mark.parametrize("op", OPS)
def test_the_residual_of_a_post_norm_keeps_its_gradient(op: str, generator: torch.Generator) -> None:
    """#370, #376: residual + norm(x), and the norm's backward wrote dx over the gradient that both of them got."""
    x, w, dy = draw(generator, torch.float32, (6, 40), (40,), (6, 40))
    fused, reference = OPS[op]
    actual, truth = (
        runner(lambda x, w, norm=norm: x + norm(x, w), (x, w), [dy])
        for runner, norm in ((run, fused), (run_in_float64, reference))
    )
    for a, t in zip(actual, truth, strict=True):
        assert excess(a, t, 40, t.abs().max() * (1 + w.abs().max())) <= 1


@pytest.mark.parametrize("op", OPS)
def test_input_is_what_an_upstream_op_saved(op: str, generator: torch.Generator) -> None:
    """#272, #254, #343, #1251: a backward that overwrites its input spoils the gradient of exp, which saved it."""
    x, w, dy = draw(generator, torch.float32, (6, 40), (40,), (6, 40))
    fused, reference = OPS[op]
    actual = run(lambda x, w: fused(x.exp(), w), (x, w), [dy])
    truth = run_in_float64(lambda x, w: reference(x.exp(), w), (x, w), [dy])
    for a, t in zip(actual, truth, strict=True):
        assert excess(a, t, 40, t.abs().max() * x.exp().max()) <= 1


@pytest.mark.parametrize("model", ["llama", "gemma"])
def test_each_family_has_its_own_norm(model: str, generator: torch.Generator) -> None:
    """#74, #92: Gemma got Llama's norm, without the 1 that is added to its weight and with its cast."""
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    offset: Literal[0, 1]
    module, offset, math = {
        "llama": (LlamaRMSNorm(96, eps=EPS), 0, "cast_then_scale"),
        "gemma": (GemmaRMSNorm(96, eps=EPS), 1, "scale_then_cast"),
    }[model]
    torch.nn.init.normal_(module.weight, generator=generator)
    module, (x,) = module.to(torch.bfloat16), draw(generator, torch.bfloat16, (33, 96))
    theirs = module(x.cpu())
    assert torch.equal(rms_norm_reference(x.cpu(), module.weight, EPS, offset=offset, math=math), theirs)
    y = rms_norm(x, module.weight.to(DEVICE), EPS, offset=offset).cpu()
    steps = (y.double() - theirs.double()).abs() / (torch.finfo(torch.bfloat16).eps * theirs.double().abs() + 1e-30)
    assert steps.max() <= (1 if model == "gemma" else 2)  # llama's own code rounds twice
    other = rms_norm(x, module.weight.to(DEVICE), EPS, offset=1 - offset).cpu()
    assert not torch.allclose(other.double(), theirs.double(), rtol=0.1)


@pytest.mark.parametrize("op", OPS)
def test_weight_gradient_of_many_rows_is_rounded_once(op: str, generator: torch.Generator) -> None:
    """#950: dw of a block of rows was summed in bfloat16; the truth must be within one step over 32,768 rows."""
    x, w, dy = draw(generator, torch.bfloat16, (2**15, 16), (16,), (2**15, 16))
    fused, reference = OPS[op]
    dw = run(fused, (x, w), [dy])[-1]
    truth = run_in_float64(reference, (x, w), [dy])[-1]
    if op == "add_rms_norm":  # which rounds the sum that it norms
        truth = run_in_float64(lambda x, w: OPS["rms_norm"][1](x, w), (x + x.flip(0), w), [dy])[-1]
    assert excess(dw, truth, 2**15, dy.abs().max() * x.abs().max() * 4) <= 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_mean_far_from_zero_is_kept_in_float32(dtype: torch.dtype, generator: torch.Generator) -> None:
    """Liger 0.8.2 kept mean and rstd in bfloat16: dx was 52 % off for inputs near 30."""
    x, w, dy = draw(generator, dtype, (6, 100), (100,), (6, 100))
    x = x + 30
    dx = run(OPS["layer_norm"][0], (x, w), [dy])[1]
    truth = run_in_float64(OPS["layer_norm"][1], (x, w), [dy])[1]
    rstd = torch.rsqrt(x.double().var(-1, unbiased=False) + EPS).max()
    assert excess(dx, truth, 100, dy.abs().max() * w.abs().max() * rstd * (1 + 33 * rstd)) <= 1


@pytest.mark.parametrize("op", OPS)
def test_weight_gradient_has_equal_bits_on_every_run(op: str, generator: torch.Generator) -> None:
    """#1364: the weight's gradient differed from run to run."""
    x, w, dy = draw(generator, torch.bfloat16, (300, 64), (64,), (300, 64))
    first, *others = (run(OPS[op][0], (x, w), [dy]) for _ in range(4))
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


@pytest.mark.skipif(not LARGE_GPU, reason="needs 40 GB of a GPU's memory")
@pytest.mark.parametrize("op", OPS)
def test_more_elements_than_2_to_the_31(op: str, generator: torch.Generator) -> None:
    """#803, #804, #1246: row * stride in 32 bits wraps round."""
    torch.use_deterministic_algorithms(False)  # filling 4 GB with NaN first would only take time
    rows, D = 2**31 // 512 + 40, 512
    x = torch.empty(rows, D, dtype=torch.bfloat16, device=DEVICE).fill_(1.0)
    x[-40:] = torch.randn(40, D, generator=generator).to(x)
    (w,) = draw(generator, torch.bfloat16, (D,))
    norm: Callable[[Tensor], Tensor] = {
        "rms_norm": partial(rms_norm, w=w, eps=EPS),
        "layer_norm": partial(layer_norm, w=w, b=w, eps=EPS),
        "add_rms_norm": lambda x: add_rms_norm(x, x, w, EPS)[0],
    }[op]
    end = x[-40:].clone().requires_grad_()
    y_end = norm(end)
    (dx_end,) = torch.autograd.grad(y_end, end, torch.ones_like(y_end))
    leaf = x.requires_grad_()
    y = norm(leaf)
    assert torch.equal(y[-40:], y_end)
    (dx,) = torch.autograd.grad(y, leaf, torch.ones((), dtype=y.dtype, device=DEVICE).expand_as(y))
    assert torch.equal(dx[-40:], dx_end)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("op", OPS)
def test_tensors_on_another_gpu_than_the_current(op: str, generator: torch.Generator) -> None:
    """#593, #401: launched on the current device, with pointers of another."""
    x, w = (t.to("cuda:1").requires_grad_() for t in draw(generator, torch.float32, (6, 40), (40,)))
    y = OPS[op][0](x, w)
    y.sum().backward()
    assert {t.device for t in (y, x.grad, w.grad)} == {x.device}
    here = [t.detach().to("cuda:0") for t in (x, w)]
    assert torch.equal(OPS[op][0](*here), y.detach().to("cuda:0"))
