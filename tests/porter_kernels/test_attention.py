"""attention against its reference in float64, forward and backward; the reference against the models' own lines."""

import importlib
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from porter_kernels import attention as module
from porter_kernels.accuracy import excess
from porter_kernels.attention import REFUSALS, RUN, Backend, How, attention, attention_reference, choose_backend
from tests.porter_kernels.gradients import gradients_by_frozen, run, run_in_float64

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # Inductor
DTYPES = [torch.float32, torch.float64]


def padding(B: int, S: int) -> Tensor:
    """[B, 1, 1, S]: sample b is left-padded by 2 b."""
    return (torch.arange(S) >= 2 * torch.arange(B)[:, None])[:, None, None].to(DEVICE)


def packed(T: int) -> Tensor:
    """[1, 1, T, T]: three sequences one after another."""
    sequence = torch.arange(T) // (T // 3 + 1)
    return (sequence[:, None] == sequence)[None, None].to(DEVICE)


def own_keys(H: int, S: int) -> Tensor:
    """[1, H, 1, S]: head h sees every (h + 1)th key."""
    return (torch.arange(S) % torch.arange(1, H + 1)[:, None] == 0)[None, :, None].to(DEVICE)


def halves(S: int) -> Tensor:
    """[1, 2, 1, S]: head 0 sees the first half of the keys, head 1 all of them."""
    return (torch.arange(S) < torch.tensor([[S // 2], [S]]))[None, :, None].to(DEVICE)


# B, H, G, T, S, K, then how
CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "least": ((1, 1, 1, 1, 1, 1), {}),
    "causal": ((2, 2, 2, 11, 11, 8), {}),
    "both ways": ((2, 2, 2, 7, 11, 8), {"causal": False}),
    "grouped heads": ((2, 6, 2, 13, 13, 16), {}),
    "one key head": ((1, 4, 1, 17, 17, 5), {}),
    "beyond one block": ((1, 2, 1, 137, 137, 8), {}),
    "cached keys": ((2, 4, 2, 3, 19, 8), {}),
    "as many keys as features": ((1, 2, 2, 3, 8, 8), {}),
    "as many samples as heads": ((4, 4, 2, 5, 5, 8), {}),
    "own keys a head": ((1, 4, 2, 7, 7, 8), {"mask": own_keys(4, 7)}),
    "own blocks a head": ((1, 2, 2, 3, 256, 16), {"mask": halves(256), "causal": False}),
    "as many keys as heads": ((1, 4, 2, 1, 4, 8), {}),
    "one query": ((2, 4, 2, 1, 19, 8), {}),
    "window": ((2, 4, 2, 19, 19, 8), {"window": 4}),
    "window of one": ((1, 2, 2, 5, 5, 8), {"window": 1}),
    "window and cached keys": ((1, 4, 2, 3, 19, 8), {"window": 4}),
    "left padding": ((3, 4, 2, 11, 11, 8), {"mask": padding(3, 11)}),
    "packed": ((2, 2, 1, 11, 11, 8), {"mask": packed(11)}),
    "softcap": ((2, 4, 2, 11, 11, 16), {"softcap": 1.5}),
    "softcap and window": ((1, 4, 2, 19, 19, 16), {"softcap": 1.5, "window": 4}),
    "softcap and left padding": ((3, 4, 2, 11, 11, 16), {"softcap": 1.5, "mask": padding(3, 11)}),
    "softcap both ways": ((2, 2, 2, 7, 11, 16), {"softcap": 1.5, "causal": False}),
    "sinks": ((2, 6, 2, 13, 13, 16), {"sinks": True}),
    "sinks, an odd head": ((1, 2, 1, 13, 13, 7), {"sinks": True}),
    "sinks both ways": ((2, 2, 2, 7, 11, 8), {"sinks": True, "causal": False}),
    "sinks and window": ((2, 4, 2, 19, 19, 8), {"sinks": True, "window": 4}),
    "sinks and left padding": ((3, 4, 2, 11, 11, 8), {"sinks": True, "mask": padding(3, 11)}),
    "sinks and cached keys": ((2, 4, 2, 3, 19, 8), {"sinks": True}),
    "sinks, softcap, window": ((2, 4, 2, 11, 11, 8), {"sinks": True, "softcap": 1.5, "window": 4}),
}


def draw(case: str, dtype: torch.dtype, generator: torch.Generator) -> tuple[list[Tensor], Tensor, dict[str, Any]]:
    """q, k, v and perhaps sinks; the gradient of the output; the other arguments."""
    (B, H, G, T, S, K), how = CASES[case]
    shapes = [(B, H, T, K), (B, G, S, K), (B, G, S, K), *([(H,)] if how.get("sinks") else [])]
    inputs = [torch.randn(s, generator=generator, dtype=torch.float64).to(DEVICE, dtype) for s in shapes]
    dy = torch.randn(B, H, T, K, generator=generator, dtype=torch.float64).to(DEVICE, dtype)
    if "mask" in how:  # queries that see nothing are padding, which no loss looks at
        dy *= how["mask"].expand(-1, -1, T, -1).tril().any(-1, keepdim=True)
    return inputs, dy, {key: value for key, value in how.items() if key != "sinks"} | {"scale": 0.7}


def with_sinks(op: Any, how: dict[str, Any]) -> Any:
    return lambda q, k, v, sinks=None: op(q, k, v, sinks=sinks, **how)


def check(op: Any, case: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    inputs, dy, how = draw(case, dtype, generator)
    actual = run(with_sinks(op, how), inputs, [dy])
    truth = run_in_float64(with_sinks(attention_reference, how), inputs, [dy])
    if "mask" in how:  # the reference has a mean there
        truth[0] *= how["mask"].expand(-1, -1, dy.shape[2], -1).tril().any(-1, keepdim=True)
    terms = inputs[0].shape[3] + inputs[1].shape[2]  # of a score, and of what it weighs
    # The largest term of each sum. A score's gradient is p * (dp - sum(p * dp)), dp = dy @ v: of a window of one it is
    # 0, the difference of two numbers that large.
    q, k, v = (x.double().abs().amax() for x in inputs[:3])
    dp = inputs[0].shape[3] ** 0.5 * dy.double().abs().amax() * v
    scales = v, dp * k * how["scale"], dp * q * how["scale"], dy.double().abs().amax(), dp
    for name, a, t, scale in zip(("y", "dq", "dk", "dv", "dsinks"), actual, truth, scales, strict=False):
        assert (a.dtype, a.shape) == (dtype, t.shape), name
        if dtype == torch.float64:
            torch.testing.assert_close(a, t, rtol=0, atol=1e-14 * terms * float(scale), msg=name)
        else:
            assert (worst := excess(a, t, terms, scale)) <= 1, f"{name}: {worst:.2g} times its budget"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_matches_reference(case: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    check(attention, case, dtype, generator)


def able(case: str) -> list[Backend]:
    needs = {name for name in ("softcap", "sinks") if name in CASES[case][1]} | ({"cpu"} if DEVICE == "cpu" else set())
    needs |= {"narrow"} if CASES[case][0][-1] < 16 else set()
    return [backend for backend in REFUSALS if not needs & REFUSALS[backend].keys()]


@pytest.mark.parametrize(("case", "backend"), [(case, backend) for case in CASES for backend in able(case)[1:]])
def test_a_backend_that_is_not_chosen_matches_reference(
    case: str, backend: Backend, generator: torch.Generator
) -> None:
    def op(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        return RUN[backend](q, k, v, How(**{"softcap": None, "window": None, "causal": True, "mask": None} | how))

    check(op, case, torch.float32, generator)


@pytest.mark.parametrize(
    ("dtype", "how", "backend"),
    [
        (torch.float32, {"softcap": None, "sinks": None}, "sdpa"),
        (torch.float64, {"softcap": None, "sinks": torch.zeros(2)}, "sdpa"),
        (torch.float32, {"softcap": 1.0, "sinks": None}, "flex" if DEVICE == "cuda" else "plain"),
        (torch.float64, {"softcap": 1.0, "sinks": None}, "plain"),
        (torch.bfloat16, {"softcap": 1.0, "sinks": None, "K": 8}, "plain"),
        (torch.float32, {"softcap": 1.0, "sinks": torch.zeros(2)}, "plain"),
    ],
    ids=str,
)
def test_backend_follows_from_what_is_needed(dtype: torch.dtype, how: dict[str, Any], backend: str) -> None:
    how = dict(how)
    q = torch.zeros(1, 2, 1, how.pop("K", 16), dtype=dtype, device=DEVICE)
    assert choose_backend(q, **how) == backend


@pytest.mark.parametrize(("B", "K", "backend"), [(1, 16, "flex"), (32, 8, "plain")])
def test_on_a_gpu_flex_takes_heads_that_are_wide_enough(B: int, K: int, backend: str) -> None:
    q = SimpleNamespace(shape=(B, 2, 1, K), dtype=torch.bfloat16, device=torch.device("cuda"))
    assert choose_backend(q, softcap=1.0, sinks=None) == backend


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("case", [case for case in CASES if "sinks" not in CASES[case][1]])
def test_what_flex_is_given_matches_reference(
    case: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run as torch writes it down, which any device can."""
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(module, "_compile_flex", lambda: flex_attention)
    (q, k, v), _, how = draw(case, torch.float32, generator)
    whole = How(**{"softcap": None, "window": None, "causal": True, "mask": None, "sinks": None} | how)
    with torch.no_grad():
        y = module._run_flex(q, k, v, whole)
    truth = attention(q.double(), k.double(), v.double(), **how)
    assert excess(y, truth, q.shape[3] + k.shape[2], v.abs().max()) <= 1


@pytest.mark.parametrize(("case", "shape"), [("own keys a head", (1, 4, 7, 7)), ("left padding", (3, 1, 11, 11))])
def test_flexs_blocks_are_of_each_head_that_has_its_own(
    case: str, shape: tuple[int, ...], generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(module, "_compile_flex", lambda: lambda q, k, v, **options: given.append(options))
    inputs, _, how = draw(case, torch.float32, generator)
    module._run_flex(*inputs, How(**{"softcap": None, "window": None, "causal": True, "sinks": None} | how))
    assert given[0]["block_mask"].shape == shape


def their_mask(B: int, T: int, S: int, window: int | None, padded: bool, dtype: torch.dtype) -> Tensor:
    from transformers import masking_utils

    function = masking_utils.causal_mask_function
    if window is not None:
        function = masking_utils.sliding_window_causal_mask_function(window)
    mask: Tensor = masking_utils.eager_mask(
        B, T, S, q_offset=S - T, mask_function=function, dtype=dtype,
        attention_mask=padding(B, S)[:, 0, 0].cpu() if padded else None,
    )  # fmt: skip
    return mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "left-padded"])
@pytest.mark.parametrize(("T", "S"), [(13, 13), (1, 13), (4, 13)], ids=str)
@pytest.mark.parametrize(
    ("family", "window"),
    [
        ("llama", None),
        ("gemma2", None),
        ("gemma2", 4),
        ("gemma3", 4),
        ("gpt_oss", None),
        ("gpt_oss", 4),
        ("mistral", 4),
    ],
)
def test_reference_has_the_families_bits(
    family: str, window: int | None, T: int, S: int, padded: bool, dtype: torch.dtype, generator: torch.Generator
) -> None:
    eager = importlib.import_module(f"transformers.models.{family}.modeling_{family}").eager_attention_forward
    q, k, v = (torch.randn(s, generator=generator).to(dtype) for s in ((3, 4, T, 8), (3, 2, S, 8), (3, 2, S, 8)))
    sinks = torch.randn(4, generator=generator).to(dtype) if family == "gpt_oss" else None
    softcap = 5.0 if family == "gemma2" else None
    layer = SimpleNamespace(num_key_value_groups=2, training=False, sinks=sinks)
    options = {"softcap": softcap} if softcap else {}
    theirs, _ = eager(
        layer, 3 * q, k, v, their_mask(3, T, S, window, padded, dtype), scaling=0.3, dropout=0.0, **options
    )
    mine = attention_reference(
        3 * q,
        k,
        v,
        scale=0.3,
        softcap=softcap,
        window=window,
        sinks=sinks,
        mask=padding(3, S).cpu() if padded else None,
    )
    assert torch.equal(mine.transpose(1, 2), theirs)


@pytest.mark.parametrize("case", ["causal", "softcap and window", "sinks and left padding"])
def test_reference_gradient(case: str, generator: torch.Generator) -> None:
    inputs, _, how = draw(case, torch.float64, generator)
    small = [x[:2, :, :5, :3] if x.ndim == 4 else x for x in inputs]
    how = how | ({"mask": how["mask"][:2, ..., :5]} if "mask" in how else {})
    leaves = [x.cpu().requires_grad_() for x in small]
    how = {key: value.cpu() if isinstance(value, Tensor) else value for key, value in how.items()}
    assert torch.autograd.gradcheck(with_sinks(attention_reference, how), leaves)


@pytest.mark.parametrize("how", [{}, {"softcap": 2.0}, {"sinks": True}], ids=str)
def test_a_query_that_sees_nothing_gets_zeros_and_spoils_no_gradient(
    how: dict[str, Any], generator: torch.Generator
) -> None:
    q, k, v = (torch.randn(2, 2, 6, 8, generator=generator).to(DEVICE).requires_grad_() for _ in range(3))
    sinks = torch.zeros(2, device=DEVICE, requires_grad=True) if how.get("sinks") else None
    mask = padding(2, 6)
    y = attention(q, k, v, scale=0.3, softcap=how.get("softcap"), sinks=sinks, mask=mask)
    assert y[1, :, :2].eq(0).all()
    y.square().sum().backward()
    for x in (q, k, v):
        assert x.grad.isfinite().all() and x.grad[1, :, :2].eq(0).all() and x.grad[1, :, 2:].ne(0).any()


def test_sinks_take_all_or_nothing(generator: torch.Generator) -> None:
    q, k, v = (torch.randn(1, 2, 5, 8, generator=generator).to(DEVICE) for _ in range(3))
    least, most = (torch.full((2,), value, device=DEVICE) for value in (-200.0, 200.0))
    assert attention(q, k, v, scale=0.3, sinks=most).abs().max() < 1e-30
    without = attention(q, k, v, scale=0.3)
    torch.testing.assert_close(attention(q, k, v, scale=0.3, sinks=least), without, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_sinks_are_scores_to_float32(dtype: torch.dtype) -> None:
    """A sink of 7.77 in bfloat16 features alone would be off by 0.02."""
    sinks = torch.tensor([7.77, -3.333])
    q, k = torch.zeros(1, 2, 3, 16, dtype=dtype), torch.zeros(1, 1, 3, 16, dtype=dtype)
    q, k, v = module._with_sinks(q, k, k + 1, sinks, 0.0883)
    scores = 0.0883 * (q.double() @ k.double().transpose(2, 3))
    torch.testing.assert_close(scores[0, :, :, 0], sinks[:, None].double().expand(-1, 3), rtol=3e-7, atol=0)
    assert scores[..., 1:].eq(0).all() and v[:, :, 0].eq(0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", ["grouped heads", "softcap and window", "sinks", "sinks and window"])
def test_sixteen_bits(case: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    """torch's kernels round weights to 16 bits before they multiply values: half a step of each, and of the result."""
    inputs, dy, how = draw(case, dtype, generator)
    actual = run(with_sinks(attention, how), inputs, [dy])
    truth = run_in_float64(with_sinks(attention_reference, how), inputs, [dy])
    for a, t in zip(actual, truth, strict=True):
        assert a.dtype == dtype
        assert (a.double() - t).abs().max() <= 2 * torch.finfo(dtype).eps * (t.abs().max() + 1)


@pytest.mark.parametrize("frozen", [(True, False, False), (False, True, True), (False, False, True)], ids=str)
@pytest.mark.parametrize("how", [{}, {"softcap": 2.0}], ids=str)
def test_frozen_inputs(how: dict[str, Any], frozen: tuple[bool, ...], generator: torch.Generator) -> None:
    inputs = [torch.randn(1, 2, 5, 8, generator=generator).to(DEVICE) for _ in range(3)]
    op = partial(attention, scale=0.3, **how)
    everything = gradients_by_frozen(op, inputs, [False] * 3)
    for still, gradient, whole in zip(frozen, gradients_by_frozen(op, inputs, frozen), everything, strict=True):
        if still:
            assert gradient is None
        else:
            torch.testing.assert_close(gradient, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", [{"sinks": True}, {"softcap": 2.0, "window": 3}], ids=str)
def test_traced_equals_eager(how: dict[str, Any], generator: torch.Generator) -> None:
    sinks = torch.ones(4, device=DEVICE) if how.get("sinks") else None
    op = partial(attention, scale=0.3, **how | {"sinks": sinks})
    inputs = [torch.randn(1, heads, 5, 8, generator=generator).to(DEVICE) for heads in (4, 2, 2)]
    dy = torch.randn(1, 4, 5, 8, generator=generator).to(DEVICE)
    traced = run(torch.compile(op, fullgraph=True, backend="aot_eager"), inputs, [dy])
    for a, b in zip(traced, run(op, inputs, [dy]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_strided_and_empty_input(generator: torch.Generator) -> None:
    fused = torch.randn(2, 5, 4, 3 * 8, generator=generator).to(DEVICE)  # [B, T, heads, q k v]
    q, k, v = (x.transpose(1, 2) for x in fused.chunk(3, dim=-1))
    dense = attention(q.contiguous(), k.contiguous(), v.contiguous(), scale=0.3)
    torch.testing.assert_close(attention(q, k, v, scale=0.3), dense, rtol=0, atol=1e-6)
    assert attention(q[:0], k[:0], v[:0], scale=0.3).shape == (0, 4, 5, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.zeros(2, 3, 5, 8)}, r"k is .* \[2, 3, 5, 8\] .*expected .* \[2, G, S, 8\] .*G dividing 4"),
        ({"v": torch.zeros(2, 2, 6, 8)}, r"v is .* \[2, 2, 6, 8\]"),
        ({"softcap": 0.0}, r"softcap is 0.0, expected a positive number. Without a cap, leave it out"),
        ({"window": 0}, r"window is 0 with causal=True, expected a positive"),
        ({"window": 3, "causal": False}, r"window is 3 with causal=False, .*as mask"),
        ({"sinks": torch.zeros(2)}, r"sinks has shape \[2\], expected \[4\], one a query head"),
        ({"mask": torch.zeros(2, 1, 1, 5)}, r"mask is torch.float32 \[2, 1, 1, 5\], expected torch.bool .*mask == 0"),
        ({"mask": torch.ones(2, 5, dtype=torch.bool)}, r"mask is torch.bool \[2, 5\], expected torch.bool \[1 or 2"),
    ],
    ids=["k", "v", "softcap", "window", "both ways", "sinks", "additive", "rank"],
)
def test_wrong_argument_says_what_to_do(change: dict[str, Any], message: str) -> None:
    arguments = {"q": torch.zeros(2, 4, 5, 8), "k": torch.zeros(2, 2, 5, 8), "v": torch.zeros(2, 2, 5, 8)}
    with pytest.raises(ValueError, match=message):
        attention(**{"scale": 0.3, **arguments} | change)
