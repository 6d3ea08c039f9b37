"""packed_glu, and the limits of glu, against their references in float64, forward and backward."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from porter_kernels.accuracy import excess
from porter_kernels.glu import glu, glu_reference, packed_glu, packed_glu_reference, split_packed
from tests.porter_kernels.gradients import run, run_in_float64

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LAYOUTS = ["halves", "halves_up_first", "interleaved"]
GATES: dict[str, dict[str, Any]] = {
    "SwiGLU": {"act": "silu"},
    "GeGLU": {"act": "gelu"},
    "gpt-oss": {"act": "silu", "alpha": 1.702, "limit": 7.0, "up_offset": 1.0},
    "DeepSeek V4": {"act": "silu", "limit": 2.5},
    "Step 3.7": {"act": "silu", "limit": 2.5, "clamp": "act"},
    "limited GeGLU": {"act": "gelu_tanh", "limit": 2.5},
}


def draw(generator: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    """Normal numbers wide enough to pass every limit, some at it, some beyond it."""
    x = 4 * torch.randn(shape, generator=generator)
    edges = torch.tensor([s * limit for limit in (7.0, 2.5) for s in (1, -1, 1.5, -1.5)])
    x.view(-1)[: x.numel() // 2 : 2] = edges.repeat(x.numel())[: len(range(0, x.numel() // 2, 2))]
    return x.to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("gate", "shape"),
    [(gate, (5, 126)) for gate in GATES] + [(gate, s) for gate in ("SwiGLU", "gpt-oss") for s in ((2,), (2, 3, 1402))],
    ids=str,
)
def test_matches_reference(
    shape: tuple[int, ...], layout: Any, gate: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    x, dy = draw(generator, dtype, *shape), torch.randn(*shape[:-1], shape[-1] // 2, generator=generator)
    dy, options = dy.to(DEVICE, dtype), GATES[gate] | {"layout": layout}
    actual = run(lambda x: packed_glu(x, **options), [x], [dy])
    truth = run_in_float64(lambda x: packed_glu_reference(x, **options), [x], [dy])
    g, u = (t.double().abs() for t in split_packed(x, layout))
    u, d = u + options.get("up_offset", 0), dy.double().abs()
    dx_scale = torch.empty_like(truth[1])
    dg_scale, du_scale = split_packed(dx_scale, layout)
    dg_scale.copy_(d * u * (1 + g))
    du_scale.copy_(d * g)
    for name, a, t, scale in zip(("y", "dx"), actual, truth, (g * u, dx_scale), strict=True):
        assert (a.dtype, a.shape) == (dtype, t.shape), name
        assert (worst := excess(a, t, 2, scale)) <= 1, f"{name}: {worst:.2g} times its budget"


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_has_the_bits_of_split(layout: Any, gate: str, generator: torch.Generator) -> None:
    x, dy = draw(generator, torch.float32, 3, 70), torch.randn(3, 35, generator=generator).to(DEVICE)
    packed = run(lambda x: packed_glu(x, **GATES[gate], layout=layout), [x], [dy])
    split = run(lambda g, u: glu(g, u, **GATES[gate]), split_packed(x, layout), [dy])
    assert torch.equal(packed[0], split[0])
    for a, b in zip(split_packed(packed[1], layout), split[1:], strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("clamp", ["gate", "act"])
def test_limit_has_clamps_gradient(clamp: Any) -> None:
    """At the limit the gradient passes, beyond it and for a NaN it is 0."""
    limit = 2.0
    gate = torch.tensor([1.0, 2.0, 2.0001, 50.0, -50.0, float("nan"), 1.0, 1.0, 1.0, 1.0], device=DEVICE)
    up = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, -2.0, 2.0001, -3.0], device=DEVICE)
    options: dict[str, Any] = {"act": "relu", "limit": limit, "clamp": clamp, "up_offset": 1.0}
    actual = run(lambda g, u: glu(g, u, **options), (gate, up), [torch.ones_like(up)])
    truth = run(lambda g, u: glu_reference(g, u, **options), (gate.cpu(), up.cpu()), [torch.ones(10)])
    for a, t in zip(actual, truth, strict=True):
        torch.testing.assert_close(a.cpu(), t, rtol=0, atol=0, equal_nan=True)
    assert actual[1].tolist()[:4] == [2.0, 2.0, 0.0, 0.0]
    assert actual[2].tolist()[6:] == [1.0, 1.0, 0.0, 0.0]


def test_quick_gelu_is_silu_with_its_alpha(generator: torch.Generator) -> None:
    gate, up, dy = (torch.randn(3, 50, generator=generator).to(DEVICE) for _ in range(3))
    quick = run(lambda g, u: glu(g, u, act="quick_gelu"), (gate, up), [dy])
    for a, b in zip(quick, run(lambda g, u: glu(g, u, act="silu", alpha=1.702), (gate, up), [dy]), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("F", [1, 20, 150])
@pytest.mark.usefixtures("tile")
def test_strided_input(F: int, layout: Any, generator: torch.Generator) -> None:
    wide = torch.randn(2, 3, 4 * F, generator=generator).to(DEVICE)
    dy = torch.randn(F, 3, 2, generator=generator).to(DEVICE).permute(2, 1, 0)
    for x in (wide[..., : 2 * F], wide[..., ::2], wide.transpose(0, 1)[..., F : 3 * F].transpose(0, 1)):
        strided = run(lambda x: packed_glu(x, act="gelu", layout=layout), [x], [dy])
        dense = run(lambda x: packed_glu(x, act="gelu", layout=layout), [x.contiguous()], [dy.contiguous()])
        for a, b in zip(strided, dense, strict=True):
            assert torch.equal(a, b)
    row = wide[0, 0, : 2 * F]
    expanded = packed_glu(row.expand(2, 3, -1), act="gelu", layout=layout)
    assert torch.equal(expanded[1, 2], packed_glu(row, act="gelu", layout=layout))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_backward_is_one_kernel_that_writes_one_tensor(layout: Any, generator: torch.Generator) -> None:
    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(str(func))
            return func(*args, **kwargs or {})

    names: list[str] = []
    x, dy = torch.randn(3, 8, generator=generator).to(DEVICE), torch.ones(3, 4, device=DEVICE)
    leaf = x.requires_grad_()
    with Record():
        torch.autograd.grad(packed_glu(leaf, act="silu", layout=layout), leaf, dy)
    called = [name for name in names if "view" not in name and "detach" not in name]
    assert [name for name in called if name.startswith("porter")] == [
        "porter.packed_glu.default", "porter.packed_glu_backward.default",
    ]  # fmt: skip
    assert not [name for name in called if any(copy in name for copy in ("cat", "copy", "clone", "add", "slice_back"))]


def test_traced_equals_eager(generator: torch.Generator) -> None:
    def op(x: Tensor) -> Tensor:
        return packed_glu(packed_glu(x, act="gelu"), layout="interleaved", **GATES["gpt-oss"])

    x, dy = torch.randn(5, 64, generator=generator).to(DEVICE), torch.randn(5, 16, generator=generator).to(DEVICE)
    for a, b in zip(
        run(torch.compile(op, fullgraph=True, backend="aot_eager"), [x], [dy]), run(op, [x], [dy]), strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(0, 8), (3, 0)], ids=str)
def test_empty(shape: tuple[int, int], layout: Any) -> None:
    x = torch.zeros(shape, device=DEVICE, requires_grad=True)
    y = packed_glu(x, act="silu", layout=layout)
    y.sum().backward()
    assert (y.shape, x.grad.shape) == ((shape[0], shape[1] // 2), shape)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reference_gradient(layout: Any) -> None:
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    for options in GATES.values():
        assert torch.autograd.gradcheck(lambda x, o=options: packed_glu_reference(x, layout=layout, **o), x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": "pairs"}, r"packed_glu: layout is 'pairs', expected 'halves'.*\[\.\.\., ::2\] interleaved"),
        ({"x": torch.zeros(2, 5)}, r"x has shape \[2, 5\], expected an even last axis.*two tensors, call glu"),
        ({"x": torch.zeros(())}, r"x has shape \[\], expected an even last axis"),
        ({"act": "swish"}, r"packed_glu: act is 'swish', expected one of silu"),
        ({"act": "gelu", "alpha": 1.0}, r"alpha is 1.0 with act 'gelu', expected .* act 'silu'.*leave it out"),
        ({"alpha": 0.0}, r"alpha is 0.0 with act 'silu', expected a positive number"),
        ({"limit": -1.0}, r"limit is -1.0, expected a positive number. Without a limit, leave it out"),
        ({"clamp": "up"}, r"clamp is 'up', expected 'gate' or 'act'"),
    ],
    ids=str,
)
def test_wrong_argument_says_what_to_do(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        packed_glu(**{"x": torch.zeros(2, 4), "act": "silu"} | change)
