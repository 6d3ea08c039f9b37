"""rope against its reference in float64, forward and backward."""

import pytest
import torch
from torch import Tensor

from porter_kernels.accuracy import excess
from porter_kernels.rope import Style, rope, rope_reference
from porter_kernels.rope_tables import rope_frequencies, rope_tables
from tests.porter_kernels.gradients import gradients_by_frozen, run, run_in_float64

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
STYLES = ["half", "interleaved"]


def tables(positions: Tensor, R: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    inv_freq, _ = rope_frequencies("default", theta=100.0, dim=R, scaling={}, max_positions=64)
    cos, sin = rope_tables(
        inv_freq, positions, attention_factor=1.25, inv_freq_dtype="fp32", pos_dtype="fp32", table_dtype="act",
        act_dtype=dtype,
    )  # fmt: skip
    return cos.to(DEVICE), sin.to(DEVICE)


def draw(generator: torch.Generator, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("B", "H", "G", "T", "K", "R"),
    [(1, 1, 1, 1, 2, 2), (2, 3, 1, 11, 12, 12), (1, 4, 4, 41, 10, 6), (2, 5, 2, 4, 96, 24)],
    ids=["least", "odd", "partial", "wide rest"],
)
@pytest.mark.usefixtures("tile")
def test_matches_reference(
    B: int, H: int, G: int, T: int, K: int, R: int, style: Style, dtype: torch.dtype, generator: torch.Generator
) -> None:
    cos, sin = tables(torch.randint(0, 60, (B, T), generator=generator), R, dtype)
    q, k, dq, dk = draw(generator, dtype, (B, H, T, K), (B, G, T, K), (B, H, T, K), (B, G, T, K))
    actual = run(lambda q, k: rope(q, k, cos, sin, style=style), (q, k), [dq, dk])
    truth = run_in_float64(
        lambda q, k: rope_reference(q, k, cos.double(), sin.double(), style=style, apply_dtype="act"), (q, k), [dq, dk]
    )
    for name, a, t, x in zip(("q", "k", "dq", "dk"), actual, truth, (q, k, dq, dk), strict=True):
        assert (a.dtype, a.shape) == (dtype, t.shape), name
        assert (worst := excess(a, t, 2, 1.25 * x.abs().max().double())) <= 1, f"{name}: {worst:.2g} times its budget"
        assert torch.equal(a[..., R:], x[..., R:]), f"{name} beyond R"


@pytest.mark.parametrize("apply_dtype", ["act", "fp32"])
@pytest.mark.parametrize("style", STYLES)
def test_reference_gradient(style: Style, apply_dtype: str) -> None:
    cos, sin = (t.cpu() for t in tables(torch.arange(3), 4, torch.float64))
    q, k = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((1, 2, 3, 6), (1, 1, 3, 6)))
    inputs = q, k, cos.requires_grad_(), sin.requires_grad_()
    assert torch.autograd.gradcheck(lambda *x: rope_reference(*x, style=style, apply_dtype=apply_dtype), inputs)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.usefixtures("tile")
def test_tables_wider_than_the_activations(style: Style, generator: torch.Generator) -> None:
    cos, sin = tables(torch.arange(7), 10)
    q, k, dq, dk = draw(generator, torch.bfloat16, (2, 3, 7, 16), (2, 1, 7, 16), (2, 3, 7, 16), (2, 1, 7, 16))
    actual = run(lambda q, k: rope(q, k, cos, sin, style=style), (q, k), [dq, dk])
    truth = run_in_float64(
        lambda q, k: rope_reference(q, k, cos.double(), sin.double(), style=style, apply_dtype="act"), (q, k), [dq, dk]
    )
    for a, t in zip(actual, truth, strict=True):
        assert excess(a, t, 2, 1.25 * t.abs().max()) <= 1


@pytest.mark.parametrize("style", STYLES)
def test_one_tensor_alone(style: Style, generator: torch.Generator) -> None:
    q, k = (t.requires_grad_() for t in draw(generator, torch.float32, (2, 3, 5, 12), (2, 1, 5, 12)))
    cos, sin = tables(torch.arange(5), 8)
    both, _ = rope(q, k, cos, sin, style=style)
    alone, nothing = rope(q, None, cos, sin, style=style)
    assert nothing is None
    assert torch.equal(alone, both)
    dq = torch.ones_like(q)
    assert torch.equal(torch.autograd.grad(alone, q, dq)[0], torch.autograd.grad(both, q, dq)[0])


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("H", [1, 9, 21])
@pytest.mark.usefixtures("tile")
def test_heads_in_any_number_and_order_in_memory(H: int, style: Style, generator: torch.Generator) -> None:
    """[B, T, H, K], transposed, costs nothing: it is read in place, and rotated into memory that lies the same."""
    q, k = draw(generator, torch.float32, (2, 6, H, 8), (2, 6, 1, 8))
    cos, sin = tables(torch.arange(6), 8)
    by_position = rope(q.transpose(1, 2), k.transpose(1, 2), cos, sin, style=style)
    by_head = rope(q.transpose(1, 2).contiguous(), k.transpose(1, 2).contiguous(), cos, sin, style=style)
    for x, y, z in zip((q, k), by_position, by_head, strict=True):
        assert torch.equal(y, z)
        assert y.transpose(1, 2).is_contiguous() and y.transpose(1, 2).shape == x.shape


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.usefixtures("tile")
def test_each_sample_has_its_own_positions(style: Style, generator: torch.Generator) -> None:
    positions = torch.tensor([[0, 1, 2], [7, 8, 9]])
    q, k = draw(generator, torch.float32, (2, 2, 3, 8), (2, 1, 3, 8))
    together = rope(q, k, *tables(positions, 8), style=style)
    for b in range(2):
        alone = rope(q[b : b + 1], k[b : b + 1], *tables(positions[b], 8), style=style)
        assert torch.equal(together[0][b], alone[0][0])
        assert torch.equal(together[1][b], alone[1][0])


@pytest.mark.parametrize("style", STYLES)
def test_negated_sine_turns_back(style: Style, generator: torch.Generator) -> None:
    cos, sin = (t / 1.25 for t in tables(torch.arange(5), 8))
    q, k = draw(generator, torch.float32, (2, 2, 5, 8), (2, 1, 5, 8))
    back = rope(*rope(q, k, cos, sin, style=style), cos, -sin, style=style)
    torch.testing.assert_close(back, (q, k), rtol=0, atol=1e-6)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.usefixtures("tile")
def test_strided_input(style: Style, generator: torch.Generator) -> None:
    fused = torch.randn(2, 5, 4, 20, generator=generator).to(DEVICE)  # [B, T, heads, K], as a projection leaves it
    q, k = fused[:, :, :3, 4:16].transpose(1, 2), fused[:, :, 3:, ::2][..., :10].transpose(1, 2)
    k = torch.nn.functional.pad(k, (0, 2)).transpose(2, 3).contiguous().transpose(2, 3)
    cos, sin = (t.expand(2, -1, -1) for t in tables(torch.arange(5), 8))
    dq = torch.randn(12, 5, 3, 2, generator=generator).to(DEVICE).permute(3, 2, 1, 0)
    dk = torch.ones((), device=DEVICE).expand(2, 1, 5, 12)
    strided = run(lambda q, k: rope(q, k, cos, sin, style=style), (q, k), [dq, dk])
    packed = [t.contiguous() for t in (q, k, dq, dk)]
    for a, b in zip(strided, run(lambda q, k: rope(q, k, cos, sin, style=style), packed[:2], packed[2:]), strict=True):
        assert torch.equal(a, b)


def test_the_second_product_is_rounded_and_the_first_is_not(generator: torch.Generator) -> None:
    """Compiled or not, for all strides: left to a compiler, which product is fused into the sum follows the layout."""
    (q,), (cos, sin) = draw(generator, torch.float32, (2, 3, 5, 8)), tables(torch.arange(5), 8)
    a, b = q.double().chunk(2, dim=-1)
    rounded = [(x * sin).float().double() for x in (b, a)]
    bits = torch.cat((a * cos - rounded[0], b * cos + rounded[1]), dim=-1).float()
    assert torch.equal(rope(q, None, cos, sin, style="half")[0], bits)
    spread = torch.stack((q, q), dim=-1)[..., 0]
    assert torch.equal(rope(spread, None, cos, sin, style="half")[0], bits)


@pytest.mark.parametrize("frozen", [(True, False), (False, True)], ids=str)
def test_frozen_inputs(frozen: tuple[bool, bool], generator: torch.Generator) -> None:
    cos, sin = tables(torch.arange(3), 8)
    inputs = draw(generator, torch.float32, (2, 2, 3, 8), (2, 1, 3, 8))

    def op(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return rope(q, k, cos, sin, style="half")

    everything = gradients_by_frozen(op, inputs, [False, False])
    for still, gradient, whole in zip(frozen, gradients_by_frozen(op, inputs, frozen), everything, strict=True):
        assert gradient is None if still else torch.equal(gradient, whole)


def test_key_unused(generator: torch.Generator) -> None:
    q, k = (t.requires_grad_() for t in draw(generator, torch.float32, (1, 2, 3, 8), (1, 1, 3, 8)))
    rope(q, k, *tables(torch.arange(3), 8), style="half")[0].sum().backward()
    assert q.grad is not None
    assert k.grad is None  # not zeros that a kernel had to rotate


def test_inputs_untouched_and_equal_bits_on_every_run(generator: torch.Generator) -> None:
    q, k = draw(generator, torch.bfloat16, (1, 2, 3, 8), (1, 1, 3, 8))
    before = q.clone(), k.clone()
    runs = [rope(q, k, *tables(torch.arange(3), 8), style="half") for _ in range(2)]
    assert torch.equal(q, before[0])
    assert torch.equal(k, before[1])
    assert torch.equal(runs[0][0], runs[1][0])


@pytest.mark.parametrize(("B", "H", "T"), [(0, 2, 3), (2, 2, 0)], ids=str)
def test_empty(B: int, H: int, T: int) -> None:
    q, k = (torch.zeros(B, heads, T, 8, device=DEVICE, requires_grad=True) for heads in (H, 1))
    sum(x.sum() for x in rope(q, k, *tables(torch.arange(T), 8), style="half")).backward()
    assert (q.grad.shape, k.grad.shape) == (q.shape, k.shape)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"style": "halves"}, r"style is 'halves', expected 'half' or 'interleaved'"),
        ({"k": torch.zeros(2, 1, 4, 8)}, r"k is .* \[2, 1, 4, 8\] .*expected torch.float32 \[2, heads, 3, 8\].*Rotate"),
        (
            {"q": torch.zeros(2, 3, 8)},
            r"q has shape \[2, 3, 8\] and k .*expected \[samples, heads, positions, features\]",
        ),
        (
            {"cos": torch.zeros(1, 3, 8)},
            r"cos has shape \[1, 3, 8\], expected \[1 or 2, 3, at most 4\].*one column",
        ),
        (
            {"sin": torch.zeros(1, 3, 2)},
            r"sin is .* \[1, 3, 2\] on cpu, expected .* \[1, 3, 4\].*rope_tables",
        ),
        ({"cos": torch.zeros(1, 3, 4, requires_grad=True)}, r"requires a gradient, expected constants.*rope_reference"),
    ],
    ids=["style", "k", "rank", "cos", "sin", "gradient"],
)
def test_wrong_argument_says_what_to_do(change: dict[str, object], message: str) -> None:
    arguments = {
        "q": torch.zeros(2, 2, 3, 8), "k": torch.zeros(2, 1, 3, 8),
        "cos": torch.zeros(1, 3, 4), "sin": torch.zeros(1, 3, 4), "style": "half",
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        rope(**arguments | change)
