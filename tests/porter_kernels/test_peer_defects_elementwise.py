"""Defects that were reported of other libraries' activations and rotations, as tests that porter's pass.

Numbers are issues of Liger-Kernel (github.com/linkedin/Liger-Kernel) unless another project is named.
"""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from porter_kernels.accuracy import excess
from porter_kernels.glu import activation, activation_reference, glu, glu_reference, packed_glu, packed_glu_reference
from porter_kernels.rope import rope, rope_reference
from porter_kernels.rope_tables import halve_tables, rope_frequencies, rope_tables
from porter_kernels.softcap import softcap, softcap_reference
from tests.porter_kernels.gradients import run, run_in_float64

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LARGE_GPU = DEVICE == "cuda" and torch.cuda.get_device_properties(0).total_memory > 60 * 2**30

Op = Callable[[Tensor], Tensor]


def tables(positions: Tensor, R: int) -> tuple[Tensor, Tensor]:
    inv_freq, factor = rope_frequencies("default", theta=100.0, dim=R, scaling={}, max_positions=64)
    cos, sin = rope_tables(
        inv_freq, positions, attention_factor=factor, inv_freq_dtype="fp32", pos_dtype="fp32", table_dtype="fp32",
        act_dtype=torch.float32,
    )  # fmt: skip
    return cos.to(DEVICE), sin.to(DEVICE)


def rotate(x: Tensor) -> Tensor:
    cos, sin = (t.to(x) for t in tables(torch.arange(x.shape[-2]), x.shape[-1]))
    if x.dtype == torch.float64:
        return rope_reference(x[None], x[None], cos, sin, style="half", apply_dtype="act")[0][0]
    return rope(x[None], None, cos, sin, style="half")[0][0]


OPS: dict[str, tuple[Op, Op]] = {  # on [2, 5, 12]
    "glu": (lambda x: glu(x, x.flip(0), act="silu"), lambda x: glu_reference(x, x.flip(0), act="silu")),
    "packed_glu": (partial(packed_glu, act="gelu"), partial(packed_glu_reference, act="gelu")),
    "activation": (partial(activation, act="gelu_tanh"), partial(activation_reference, act="gelu_tanh")),
    "softcap": (partial(softcap, cap=2.0), partial(softcap_reference, cap=2.0)),
    "rope": (rotate, rotate),
}


UPSTREAM: dict[str, Op] = {"exp": torch.exp, "softmax": partial(torch.softmax, dim=-1), "sigmoid": torch.sigmoid}


@pytest.mark.parametrize("upstream", UPSTREAM)
@pytest.mark.parametrize("op", OPS)
def test_input_is_what_an_upstream_op_saved(op: str, upstream: str, generator: torch.Generator) -> None:
    """#272, #254, #343, #1251: a backward that overwrites its input spoils the gradient of exp, which saved it."""
    x = torch.randn(2, 5, 12, generator=generator).to(DEVICE)
    fused, reference = OPS[op]
    dy = torch.randn(fused(x).shape, generator=generator).to(DEVICE)
    actual = run(lambda x: fused(UPSTREAM[upstream](x)), [x], [dy])
    truth = run_in_float64(lambda x: reference(UPSTREAM[upstream](x)), [x], [dy])
    for a, t in zip(actual, truth, strict=True):
        assert excess(a, t, 12, t.abs().max()) <= 1


@pytest.mark.parametrize("op", OPS)
def test_second_backward_and_untouched_inputs(op: str, generator: torch.Generator) -> None:
    """SwiGLU's second backward (retain_graph) was garbage; a rotation overwrote its input where it lay in order."""
    fused, _ = OPS[op]
    x = torch.randn(2, 5, 12, generator=generator).to(DEVICE)
    before = x.clone()
    leaf = x.requires_grad_()
    y = fused(leaf)
    dy = torch.randn(y.shape, generator=generator).to(DEVICE)
    kept = dy.clone()
    gradients = [torch.autograd.grad(y, leaf, dy, retain_graph=True)[0].clone() for _ in range(3)]
    assert torch.equal(leaf.detach(), before) and torch.equal(dy, kept)
    assert torch.equal(gradients[0], gradients[1]) and torch.equal(gradients[0], gradients[2])


@pytest.mark.parametrize("op", OPS)
def test_four_runs_have_equal_bits(op: str, generator: torch.Generator) -> None:
    """#1364: gradients differed from run to run."""
    x = torch.randn(2, 5, 12, generator=generator).to(DEVICE)
    dy = torch.randn(OPS[op][0](x).shape, generator=generator).to(DEVICE)
    first, *others = (run(OPS[op][0], [x], [dy]) for _ in range(4))
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("act", ["gelu", "gelu_tanh"])
def test_geglu_in_float16_has_a_right_gradient_of_up(act: str, generator: torch.Generator) -> None:
    """#986, #959: the activation recomputed in backward was not the one that forward had rounded and stored."""
    gate, up, dy = (scale * torch.randn(64, 100, generator=generator) for scale in (4.0, 1.0, 8.0))
    gate, up, dy = (x.to(DEVICE, torch.float16) for x in (gate, up, dy))
    actual = run(lambda g, u: glu(g, u, act=act), (gate, up), [dy])
    truth = run_in_float64(lambda g, u: glu_reference(g, u, act=act), (gate, up), [dy])
    scale = (dy.double() * gate.double()).abs()
    assert excess(actual[2], truth[2], 1, scale) <= 1


@pytest.fixture
def lazy_memory() -> Iterator[None]:
    """Fresh memory stays unwritten, so that what lies between rows far apart is never there."""
    torch.utils.deterministic.fill_uninitialized_memory = False
    yield
    torch.utils.deterministic.fill_uninitialized_memory = True


def far_apart(x: Tensor, axis: int, stride: int) -> Tensor:
    """x as a view into a buffer in which steps along axis are `stride` elements."""
    rest = [n if i != axis else 1 for i, n in enumerate(x.shape)]
    strides = list(torch.empty(rest).stride())
    strides[axis] = stride
    size = sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True)) + 1
    y = torch.empty(size, dtype=x.dtype, device=x.device).as_strided(x.shape, strides)
    return y.copy_(x)


@pytest.mark.skipif(DEVICE == "cuda" and not LARGE_GPU, reason="needs 40 GB of a GPU's memory")
@pytest.mark.usefixtures("lazy_memory")
@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_rows_further_apart_than_2_to_the_31(layout: str, generator: torch.Generator) -> None:
    """#803, #804, #1246, #1248, #1296: row times stride in 32 bits wraps round."""
    x = torch.randn(4, 24, generator=generator).to(DEVICE, torch.bfloat16)
    far = far_apart(x, 0, 2**30)
    assert torch.equal(packed_glu(far, act="silu", layout=layout), packed_glu(x, act="silu", layout=layout))
    gate, up = (torch.randn(4, 12, generator=generator).to(DEVICE, torch.bfloat16) for _ in range(2))
    dy = torch.randn(4, 12, generator=generator).to(DEVICE, torch.bfloat16)
    near = run(lambda g, u: glu(g, u, act="silu"), (gate, up), [dy])
    away = run(lambda g, u: glu(g, u, act="silu"), (gate, far_apart(up, 0, 2**30)), [dy])
    assert all(torch.equal(a, b) for a, b in zip(near, away, strict=True))


@pytest.mark.skipif(DEVICE == "cuda" and not LARGE_GPU, reason="needs 40 GB of a GPU's memory")
@pytest.mark.usefixtures("lazy_memory")
@pytest.mark.parametrize("axis", [0, 1, 2], ids=["samples", "heads", "positions"])
@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_heads_further_apart_than_2_to_the_31(style: str, axis: int, generator: torch.Generator) -> None:
    """#803, #804: the same, of each stride of a rotation."""
    q = torch.randn(4, 4, 4, 8, generator=generator).to(DEVICE, torch.bfloat16)
    cos, sin = tables(torch.arange(4), 6)
    far, _ = rope(far_apart(q, axis, 2**30), None, cos, sin, style=style)
    assert torch.equal(far, rope(q, None, cos, sin, style=style)[0])


@pytest.mark.skipif(not LARGE_GPU, reason="needs 40 GB of a GPU's memory")
@pytest.mark.usefixtures("lazy_memory")
@pytest.mark.parametrize("n", [2**31 - 64, 2**31 + 4096 + 8], ids=["just below", "beyond"])
@pytest.mark.parametrize("op", ["glu", "packed_glu", "packed_glu interleaved", "activation", "softcap"])
def test_more_elements_than_2_to_the_31(op: str, n: int) -> None:
    """#1246, #1296: element numbers in 32 bits; and the number of tiles, where rounding up passes 2**31."""
    call: Op = {
        "glu": lambda x: glu(x, x, act="silu"),
        "packed_glu": partial(packed_glu, act="silu"),
        "packed_glu interleaved": partial(packed_glu, act="silu", layout="interleaved"),
        "activation": partial(activation, act="gelu"),
        "softcap": partial(softcap, cap=2.0),
    }[op]
    x = torch.zeros(n // 8, 8, dtype=torch.bfloat16, device=DEVICE)
    x[-1000:] = torch.linspace(-3, 3, 8000, device=DEVICE).view(1000, 8)
    end = x[-1000:].clone().requires_grad_()
    y_end = call(end)
    (dx_end,) = torch.autograd.grad(y_end, end, torch.ones_like(y_end))
    leaf = x.requires_grad_()
    y = call(leaf)
    assert torch.equal(y[-1000:], y_end)
    (dx,) = torch.autograd.grad(y, leaf, torch.ones((), dtype=y.dtype, device=DEVICE).expand_as(y))
    assert torch.equal(dx[-1000:], dx_end)


def test_every_sample_has_its_own_positions(generator: torch.Generator) -> None:
    """#477: every sample was rotated by the first one's positions. Left-padded and packed, as HuggingFace does."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    positions = torch.stack([torch.arange(9), torch.arange(9).clamp(min=3) - 3, torch.arange(9) % 4])
    q, k = (torch.randn(3, heads, 9, 12, generator=generator) for heads in (4, 2))
    cos, sin = tables(positions, 12)
    theirs = apply_rotary_pos_emb(q, k, *(torch.cat((t, t), -1).cpu() for t in (cos, sin)))
    mine = rope(q.to(DEVICE), k.to(DEVICE), cos, sin, style="half")
    for x, y in zip(mine, theirs, strict=True):
        torch.testing.assert_close(x.cpu(), y, rtol=0, atol=2e-6)


def test_part_of_a_head_and_tables_of_half_its_width(generator: torch.Generator) -> None:
    """#1451: a table narrower than the head was read past its end; gpt-oss's tables say each frequency once."""
    from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb as rotate_part
    from transformers.models.gpt_oss.modeling_gpt_oss import apply_rotary_pos_emb as rotate_halves

    q, k = (torch.randn(2, heads, 9, 12, generator=generator) for heads in (4, 2))
    for R, rotate_theirs in ((4, rotate_part), (12, rotate_halves)):
        cos, sin = (t.cpu() for t in tables(torch.arange(9), R))
        doubled = (torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)) if R == 4 else (cos, sin)
        theirs = rotate_theirs(q, k, *doubled)
        halved = halve_tables(*doubled, doubled="halves") if R == 4 else doubled
        mine = rope(q.to(DEVICE), k.to(DEVICE), *(t.to(DEVICE) for t in halved), style="half")
        for x, y in zip(mine, theirs, strict=True):
            torch.testing.assert_close(x.cpu(), y, rtol=0, atol=2e-6)


def test_heads_after_positions_and_halves_that_differ(generator: torch.Generator) -> None:
    """unsqueeze_dim=2 was ignored, and so was the second half of a table: errors above 4, without a word."""
    q = torch.randn(2, 9, 4, 12, generator=generator).to(DEVICE)  # [B, T, H, K]
    cos, sin = tables(torch.arange(9), 12)
    right = rope(q.transpose(1, 2).contiguous(), None, cos, sin, style="half")[0]
    assert torch.equal(rope(q.transpose(1, 2), None, cos, sin, style="half")[0], right)
    with pytest.raises(ValueError, match=r"cos has shape \[1, 9, 6\], expected \[1 or 2, 4, at most 6\]"):
        rope(q, None, cos, sin, style="half")
    with pytest.raises(ValueError, match="differs between the columns of a frequency"):
        halve_tables(torch.cat((cos, sin), -1), torch.cat((sin, cos), -1), doubled="halves")


@pytest.mark.parametrize("op", OPS)
def test_empty_batch(op: str) -> None:
    """An empty batch divided by 0."""
    x = torch.zeros(0, 5, 12, device=DEVICE, requires_grad=True)
    y = OPS[op][0](x)
    y.sum().backward()
    assert (y.shape[0], x.grad.shape) == (0, x.shape)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("op", OPS)
def test_tensors_on_another_gpu_than_the_current(op: str, generator: torch.Generator) -> None:
    """#593, #401: launched on the current device, with pointers of another."""
    x = torch.randn(2, 5, 12, generator=generator).to("cuda:1")
    y = OPS[op][0](x.requires_grad_())
    y.sum().backward()
    assert y.device == x.device and x.grad.device == x.device
