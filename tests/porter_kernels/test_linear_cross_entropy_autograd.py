"""linear_cross_entropy under autograd: what is frozen, second backwards, tied heads, traces, autocast."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from porter_kernels.linear_cross_entropy import autograd, linear_cross_entropy, problem
from porter_kernels.linear_cross_entropy.gradients import HeadGradient, Need
from tests.porter_kernels.linear_cross_entropy_budget import (
    DEVICE,
    Case,
    assert_within_budget,
    draw,
    leaves_of,
    run_case,
)

NAMES = ("hidden", "weight", "bias")
LATE = [torch.bfloat16, torch.float16]  # gradients computed in forward, and in backward
REDUCTIONS = ["mean", "none"]  # likewise


def call(case: Case, leaves: dict[str, Tensor]) -> Tensor:
    loss = linear_cross_entropy(
        leaves["hidden"], leaves["weight"], case.target, bias=leaves["bias"], **case.options, **case.only
    )
    assert isinstance(loss, Tensor)
    return loss


@pytest.mark.parametrize(
    ("trainable", "reduction"),
    [(trainable, "mean") for trainable in product([True, False], repeat=3)]
    + [((False, True, False), "none"), ((True, False, True), "none")],
    ids=str,
)
def test_what_is_frozen_gets_no_gradient(
    trainable: tuple[bool, bool, bool], reduction: str, generator: torch.Generator
) -> None:
    case = draw(generator).but(reduction=reduction).walked(chunk_rows=12)
    whole = run_case(linear_cross_entropy, case)
    leaves = {name: x.requires_grad_(on) for (name, x), on in zip(leaves_of(case).items(), trainable, strict=True)}
    loss = call(case, leaves)
    assert torch.equal(loss, whole["loss"]) and loss.requires_grad == any(trainable)
    if any(trainable):
        loss.sum().backward()
    for name, on in zip(NAMES, trainable, strict=True):
        assert torch.equal(leaves[name].grad, whole[name]) if on else leaves[name].grad is None, name


@pytest.mark.parametrize(
    ("upstream", "dtype", "reduction"),
    [
        (1.0, torch.bfloat16, "mean"),
        (3.0, torch.bfloat16, "mean"),
        (3.0, torch.bfloat16, "none"),
        (3.0, torch.float16, "mean"),
    ],
    ids=str,
)
def test_second_backward_gives_equal_gradients(
    upstream: float, dtype: torch.dtype, reduction: str, generator: torch.Generator
) -> None:
    case = draw(generator, dtype=dtype).but(reduction=reduction).walked(chunk_rows=12)
    leaves = leaves_of(case)
    loss = call(case, leaves)
    d_loss = torch.full_like(loss, upstream)
    first = torch.autograd.grad(loss, list(leaves.values()), d_loss, retain_graph=True)
    kept = [gradient.clone() for gradient in first]
    second = torch.autograd.grad(loss, list(leaves.values()), d_loss, retain_graph=True)
    third = torch.autograd.grad(loss, list(leaves.values()), 2 * d_loss)
    for a, b, c, d in zip(first, kept, second, third, strict=True):
        assert torch.equal(a, b) and torch.equal(b, c) and a.data_ptr() != c.data_ptr()
        if dtype == torch.bfloat16:  # float16's smallest numbers round in other places when they are doubled
            assert torch.equal(2 * b, d)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_second_derivative_is_refused(reduction: str, generator: torch.Generator) -> None:
    case = draw(generator).but(reduction=reduction)
    leaves = leaves_of(case)
    with pytest.raises(RuntimeError, match=r"create_graph=True\), expected a first derivative.*_reference"):
        torch.autograd.grad(call(case, leaves).sum(), list(leaves.values()), create_graph=True)


def test_without_gradients_nothing_is_kept(generator: torch.Generator) -> None:
    case = draw(generator, dtype=torch.bfloat16).walked(chunk_rows=12)
    leaves = leaves_of(case)
    with torch.no_grad():
        loss = call(case, leaves)
    assert loss.grad_fn is None and torch.equal(loss, call(case, leaves))


@pytest.mark.parametrize("dtype", LATE, ids=str)
def test_equal_bits_on_every_run_and_inputs_untouched(dtype: torch.dtype, generator: torch.Generator) -> None:
    case = draw(generator, N=30, dtype=dtype).walked(chunk_rows=16)
    copies = [x.clone() for x in (case.hidden, case.weight, case.bias, case.target)]
    first, second = (run_case(linear_cross_entropy, case) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    for x, copy in zip((case.hidden, case.weight, case.bias, case.target), copies, strict=True):
        assert torch.equal(x, copy)


def test_a_head_that_is_the_embedding_too_gets_both_gradients(generator: torch.Generator) -> None:
    case = draw(generator, bias=False, dtype=torch.float32)
    tokens = torch.randint(37, (19,), generator=generator).to(DEVICE)

    def train(weight: Tensor, loss: Any, **only: Any) -> Tensor:
        hidden = torch.nn.functional.embedding(tokens, weight).tanh()
        (gradient,) = torch.autograd.grad(loss(hidden, weight, case.target, **only), weight)
        return gradient

    tied = train(case.weight.clone().requires_grad_(), linear_cross_entropy, chunk_rows=12)
    embedding, head = (case.weight.clone().requires_grad_() for _ in range(2))
    hidden = torch.nn.functional.embedding(tokens, embedding).tanh()
    parts = torch.autograd.grad(linear_cross_entropy(hidden, head, case.target, chunk_rows=12), (embedding, head))
    torch.testing.assert_close(tied, parts[0] + parts[1], rtol=0, atol=0)


# --- traced ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # Inductor's import
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (torch.float32, {"label_smoothing": 0.1, "softcap": 5.0}),
        (torch.bfloat16, {"num_items": 9}),
        (torch.bfloat16, {"reduction": "none"}),
        (torch.float16, {}),
    ],
    ids=str,
)
def test_compiled_equals_eager(dtype: torch.dtype, options: dict[str, Any], generator: torch.Generator) -> None:
    upstream = torch.randn(19, generator=generator) if "reduction" in options else torch.tensor(-1.7)
    case = replace(draw(generator, dtype=dtype, **options), upstream=upstream.to(DEVICE)).walked(chunk_rows=12)
    torch._dynamo.reset()
    compiled = run_case(torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager"), case)
    for name, value in run_case(linear_cross_entropy, case).items():
        assert torch.equal(value, compiled[name]), name


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_compiled_statistics_equal_eager(generator: torch.Generator) -> None:
    case = draw(generator)
    compiled = torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager")
    calls = [op(case.hidden, case.weight, case.target, stats=True) for op in (linear_cross_entropy, compiled)]
    (loss, stats), (compiled_loss, compiled_stats) = calls
    assert torch.equal(loss, compiled_loss) and type(stats) is type(compiled_stats)
    assert all(torch.equal(a, b) for a, b in zip(stats, compiled_stats, strict=True))


def arguments_of(case: Case, needed: tuple[bool, bool, bool], reduction: str) -> tuple[Any, ...]:
    stated = problem.state_problem(
        "op", case.hidden, case.weight, case.target, bias=case.bias, class_weight=None, token_weight=None,
        ignore_index=-100, reduction=reduction, label_smoothing=0.0, z_loss=0.0, softcap=None, logit_scale=1.0,
        num_items=None, stats=False, chunk_rows=12, byte_budget=None, accumulate="float32", drop_ignored=True,
        shift=False,
    )  # fmt: skip
    return (*stated, *needed)


def test_without_gradients_none_is_computed(generator: torch.Generator) -> None:
    case = draw(generator)
    for leaf in (case.hidden, case.weight, case.bias):
        leaf.requires_grad_()
    stated = problem.Problem(*arguments_of(case, (True, True, True), "mean")[:-3])
    assert stated.need == Need(True, True, True)
    with torch.no_grad():
        assert stated.need == Need(False, False, False)


def test_gradients_that_wait_for_their_upstream_are_not_computed_before(generator: torch.Generator) -> None:
    case = draw(generator)
    leaves = case.hidden.requires_grad_(), case.weight.requires_grad_()
    for reduction, ready in (("none", False), ("mean", True)):
        node = linear_cross_entropy(*leaves, case.target, reduction=reduction).grad_fn
        while not hasattr(node, "gradients"):  # below a view
            node = node.next_functions[0][0]
        assert [x is not None for x in node.gradients] == [ready, ready, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_bias_gradient_is_rounded_once_over_all_chunks(dtype: torch.dtype, generator: torch.Generator) -> None:
    parts = torch.randn(16, 7, 11, generator=generator).to(DEVICE, dtype)
    head = HeadGradient(parts.new_empty(11, 3), parts.new_empty(11), Need(False, False, True), 16, "float32")
    for part in parts:
        head.add(part, part[:, :3])
    _, d_bias = head.finish()
    truth = parts.double().sum((0, 1))
    assert d_bias.dtype is dtype and torch.equal(d_bias, truth.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("needed", "reduction"), [((True, True, True), "mean"), ((False, True, False), "sum"), ((True, True, True), "none")]
)
def test_op_keeps_its_contract(
    needed: tuple[bool, bool, bool], reduction: str, dtype: torch.dtype, generator: torch.Generator
) -> None:  # fmt: skip
    arguments = arguments_of(draw(generator, N=7, V=11, dtype=dtype), needed, reduction)
    leaves = [x.detach().requires_grad_(on) for x, on in zip(arguments, needed, strict=False)]
    torch.library.opcheck(autograd._forward, (*leaves, *arguments[3:]))


def test_a_second_derivative_of_what_was_traced_is_refused(generator: torch.Generator) -> None:
    arguments = arguments_of(draw(generator, N=7, V=11), (True, True, True), "mean")
    leaves = [x.detach().requires_grad_() for x in arguments[:3]]
    loss, *_ = autograd._forward(*leaves, *arguments[3:])
    with pytest.raises(RuntimeError, match=r"create_graph=True\), expected a first derivative"):
        torch.autograd.grad(loss, leaves, create_graph=True)


def test_a_trace_sees_the_op(generator: torch.Generator) -> None:
    case = draw(generator)
    op = lambda hidden, weight: linear_cross_entropy(hidden, weight, case.target)  # noqa: E731
    traced = make_fx(op)(case.hidden, case.weight)
    assert any(str(node.target).startswith("porter.linear_cross_entropy") for node in traced.graph.nodes)
    with FakeTensorMode() as mode:
        fake = linear_cross_entropy(*map(mode.from_tensor, (case.hidden, case.weight, case.target)), reduction="none")
    assert (fake.shape, fake.dtype) == ((19,), torch.float32)


@pytest.mark.skipif(DEVICE != "cuda", reason="captures a CUDA graph")
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_captured_graph_replays_on_other_labels(reduction: str, generator: torch.Generator) -> None:
    """Captured, nothing waits for the device: rows that do not count are multiplied too, and labels may change."""
    case = draw(generator, dtype=torch.bfloat16).but(reduction=reduction).walked(chunk_rows=12)
    leaves = leaves_of(case)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # compiles the kernels of both ways
        for drop in (True, False):
            run_case(linear_cross_entropy, case.walked(drop_ignored=drop), leaves)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run_case(linear_cross_entropy, case.walked(drop_ignored=None), leaves)
    case.target.copy_(torch.where(case.target == -100, 5, -100))
    graph.replay()
    assert_within_budget(captured, case)


# --- autocast --------------------------------------------------------------------------------


def test_autocast_leaves_float64_alone() -> None:
    inputs = [torch.zeros(2, 3, dtype=torch.float64, device=DEVICE) for _ in range(2)]
    with torch.autocast(DEVICE, torch.bfloat16):
        cast = problem.cast_under_autocast(*inputs, None)
    assert [x.dtype for x in cast[:2]] == [torch.float64] * 2


@pytest.mark.parametrize("bias", [True, False], ids="bias={}".format)
@pytest.mark.parametrize("dtype", LATE, ids=str)
def test_autocast_casts_float32_masters(dtype: torch.dtype, bias: bool, generator: torch.Generator) -> None:
    case = draw(generator, dtype=dtype, bias=bias).walked(chunk_rows=12)
    inputs = (case.hidden, case.weight, case.bias)
    masters = Case(*(None if x is None else x.float() for x in (inputs[0], inputs[1])), case.target)
    masters = replace(masters, bias=None if case.bias is None else case.bias.float(), only=case.only)
    with torch.autocast(DEVICE, dtype):
        actual = run_case(linear_cross_entropy, masters)
    for name, value in run_case(linear_cross_entropy, case).items():
        assert actual[name].dtype == torch.float32 and torch.equal(actual[name], value.float()), name
