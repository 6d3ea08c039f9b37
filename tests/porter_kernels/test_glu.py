"""glu and activation against their references in float64, forward and backward; the references against ACT2FN."""

import pytest
import torch
from torch import Tensor

from porter_kernels.accuracy import excess
from porter_kernels.glu import ACTIVATIONS, activation, activation_reference, glu, glu_reference
from tests.porter_kernels.gradients import gradients_by_frozen, run, run_in_float64

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
HUGGINGFACE = {act: act for act in ACTIVATIONS} | {"gelu_tanh": "gelu_pytorch_tanh"}


def draw(generator: torch.Generator, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Normal numbers, the first tensor wide enough to reach both tails of every activation."""
    first, *rest = (torch.randn(shape, generator=generator) for shape in shapes)
    return [t.to(DEVICE, dtype) for t in (4 * first, *rest)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(1,), (5, 63), (2, 3, 700), (2, 1, 3, 5)], ids=str)
def test_glu_matches_reference(
    shape: tuple[int, ...], act: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    gate, up, dy = draw(generator, dtype, shape, shape, shape)
    actual = run(lambda gate, up: glu(gate, up, act=act), (gate, up), [dy])
    truth = run_in_float64(lambda gate, up: glu_reference(gate, up, act=act), (gate, up), [dy])
    # An element's scale is the largest number it was made of: x * sigmoid(x) cancels nothing, 1 + erf(x) does.
    g, u, d = (t.double().abs() for t in (gate, up, dy))
    powers = g.square() if act == "relu2" else g
    scales = powers * u, d * u * (1 + powers), d * powers
    for name, a, t, scale in zip(("y", "dgate", "dup"), actual, truth, scales, strict=True):
        assert (a.dtype, a.shape) == (dtype, t.shape), name
        assert (worst := excess(a, t, 1, scale)) <= 1, f"{name}: {worst:.2g} times its budget"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_activation_matches_reference(act: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    x, dy = draw(generator, dtype, (3, 700), (3, 700))
    actual = run(lambda x: activation(x, act=act), [x], [dy])
    truth = run_in_float64(lambda x: activation_reference(x, act=act), [x], [dy])
    powers = x.double().square() if act == "relu2" else x.double().abs()
    for name, a, t, scale in zip(("y", "dx"), actual, truth, (powers, dy.double().abs() * (1 + powers)), strict=True):
        assert (a.dtype, a.shape) == (dtype, t.shape), name
        assert (worst := excess(a, t, 1, scale)) <= 1, f"{name}: {worst:.2g} times its budget"


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_far_arguments_stay_finite(act: str) -> None:
    x = torch.tensor([-1e18, -300.0, -0.0, 0.0, 300.0, 1e18], device=DEVICE)
    actual = run(lambda x: activation(x, act=act), [x], [torch.ones_like(x)])
    limit = [0.0, 0.0, 0.0, 0.0, *((x[4:] ** 2).tolist() if act == "relu2" else [300.0, x[5].item()])]
    assert actual[0].tolist() == limit
    slope = (2 * x[4:]).tolist() if act == "relu2" else [1.0, 1.0]
    assert (actual[1][:2].tolist(), actual[1][4:].tolist()) == ([0.0, 0.0], slope)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_nan_is_kept(act: str) -> None:
    assert activation(torch.tensor([float("nan"), 1.0], device=DEVICE), act=act).isnan().tolist() == [True, False]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_reference_has_huggingfaces_bits(act: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    from transformers.activations import ACT2FN
    from transformers.models.bloom.modeling_bloom import BloomGelu

    gate, up = (t.cpu() for t in draw(generator, dtype, (5, 700), (5, 700)))
    theirs = BloomGelu()(gate) if act == "gelu_bloom" else ACT2FN[HUGGINGFACE[act]](gate)
    assert torch.equal(activation_reference(gate, act=act), theirs)
    assert torch.equal(glu_reference(gate, up, act=act), theirs * up)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_reference_gradient(act: str) -> None:
    gate, up = torch.randn(2, 4, 6, dtype=torch.float64).unbind()
    gate = (gate.abs() + 0.1) * gate.sign()  # away from the kink of relu
    inputs = gate.requires_grad_(), up.requires_grad_()
    assert torch.autograd.gradcheck(lambda gate, up: glu_reference(gate, up, act=act), inputs)


@pytest.mark.parametrize("cut", ["halves", "every second column", "transposed"])
@pytest.mark.parametrize("F", [1, 20, 600])
@pytest.mark.usefixtures("tile")
def test_strided_input(F: int, cut: str, generator: torch.Generator) -> None:
    both = torch.randn(2, 3, 2 * F, generator=generator).to(DEVICE)
    gate, up = {
        "halves": lambda: both.chunk(2, dim=-1),
        "every second column": lambda: (both[..., 0::2], both[..., 1::2]),
        "transposed": lambda: (both[..., :F].transpose(0, 1), both[..., F:].transpose(0, 1)),
    }[cut]()
    dy = torch.randn(gate.shape[::-1], generator=generator).to(DEVICE).permute(2, 1, 0)
    strided = run(lambda gate, up: glu(gate, up, act="silu"), (gate, up), [dy])
    packed = [t.contiguous() for t in (gate, up, dy)]
    for a, b in zip(strided, run(lambda gate, up: glu(gate, up, act="silu"), packed[:2], packed[2:]), strict=True):
        assert torch.equal(a, b)


def test_one_tensor_as_gate_and_up(generator: torch.Generator) -> None:
    (x, dy) = draw(generator, torch.float32, (3, 50), (3, 50))
    actual = run(lambda x: glu(x, x, act="silu"), [x], [dy])
    truth = run_in_float64(lambda x: glu_reference(x, x, act="silu"), [x], [dy])
    for a, t in zip(actual, truth, strict=True):
        assert excess(a, t, 2, t.abs().max()) <= 1


@pytest.mark.parametrize("frozen", [(True, False), (False, True)], ids=str)
def test_frozen_inputs(frozen: tuple[bool, bool], generator: torch.Generator) -> None:
    def op(gate: Tensor, up: Tensor) -> Tensor:
        return glu(gate, up, act="gelu_tanh")

    inputs = draw(generator, torch.float32, (6, 20), (6, 20))
    everything = gradients_by_frozen(op, inputs, [False, False])
    for still, gradient, whole in zip(frozen, gradients_by_frozen(op, inputs, frozen), everything, strict=True):
        assert gradient is None if still else torch.equal(gradient, whole)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)  # Inductor's own import
def test_compiled_equals_eager(generator: torch.Generator) -> None:
    def op(gate: Tensor, up: Tensor) -> Tensor:
        return activation(glu(gate, up, act="silu"), act="gelu")

    gate, up, dy = draw(generator, torch.float32, (5, 63), (5, 63), (5, 63))
    compiled = run(torch.compile(op, fullgraph=True), (gate, up), [dy])
    for a, b in zip(compiled, run(op, (gate, up), [dy]), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0)], ids=str)
def test_empty(shape: tuple[int, ...]) -> None:
    gate, up = (torch.zeros(shape, device=DEVICE, requires_grad=True) for _ in range(2))
    glu(gate, up, act="silu").sum().backward()
    assert (gate.grad.shape, up.grad.shape) == (shape, shape)


def test_scalar() -> None:
    x = torch.tensor(2.0, device=DEVICE)
    assert (activation(x, act="relu2").shape, activation(x, act="relu2").item()) == ((), 4.0)


def test_unknown_act_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"glu: act is 'swish', expected one of silu, gelu, .* its swish is silu"):
        glu(torch.zeros(2), torch.zeros(2), act="swish")
    with pytest.raises(ValueError, match=r"activation: act is 'gelu_pytorch_tanh', expected one of .* is gelu_tanh"):
        activation(torch.zeros(2), act="gelu_pytorch_tanh")


def test_unlike_halves_say_what_to_do() -> None:
    with pytest.raises(
        ValueError, match=r"up is torch.float32 \[3\] on cpu, expected torch.float32 \[2\] .*both halves"
    ):
        glu(torch.zeros(2), torch.zeros(3), act="silu")
    with pytest.raises(ValueError, match=r"up is torch.float16 \[2\] on cpu, expected torch.float32 \[2\]"):
        glu(torch.zeros(2), torch.zeros(2).half(), act="silu")
    with pytest.raises(ValueError, match=r"up is torch.float32 \[2\] on meta, expected torch.float32 \[2\] on cpu"):
        glu(torch.zeros(2), torch.zeros(2, device="meta"), act="silu")
