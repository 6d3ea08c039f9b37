"""Defects other libraries had in their fused linear cross-entropy, as tests. Numbers are of Liger-Kernel's issues."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from porter_kernels.accuracy import excess
from porter_kernels.linear_cross_entropy import (
    linear_cross_entropy,
    linear_cross_entropy_reference,
    multi_head_linear_cross_entropy,
    vocab_parallel_linear_cross_entropy,
)
from tests.porter_kernels.linear_cross_entropy_budget import (
    DEVICE,
    ZERO_OVER_ZERO,
    Case,
    assert_within_budget,
    draw,
    leaves_of,
    run_case,
    run_in_float64,
)


def test_unreduced_losses_with_their_own_upstream_gradients(generator: torch.Generator) -> None:
    """#1298, #968, #680: d_weight and d_bias were scaled by the upstream gradient of the first token."""
    upstream = torch.tensor([100.0, 0.0, -3.0, *torch.randn(16, generator=generator).tolist()], device=DEVICE)
    case = replace(draw(generator, ignored=0.0), upstream=upstream).but(reduction="none").walked(chunk_rows=8)
    actual = run_case(linear_cross_entropy, case)
    assert_within_budget(actual, case)
    weighted = case.but(reduction="sum", token_weight=upstream)
    weighted = run_case(linear_cross_entropy, replace(weighted, upstream=None))
    for name in ("hidden", "weight", "bias"):
        torch.testing.assert_close(actual[name], weighted[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("probability", [0.9, 0.99, 0.999])
def test_gradient_of_a_sure_token(probability: float, reduction: str) -> None:
    """#1329: in bfloat16 the target's gradient, p - 1, was off by 2, 20 and 100 %, since p was rounded before.

    Through the head: an identity for weight makes d_hidden the gradient of the logits, rounded once.
    """
    V = 32
    logit = torch.tensor(probability / (1 - probability) * (V - 1)).log().bfloat16()
    hidden = torch.zeros(4, V, dtype=torch.bfloat16)
    target = torch.tensor([3, 0, 31, 7])
    hidden[torch.arange(4), target] = logit
    case = Case(hidden.to(DEVICE), torch.eye(V, dtype=torch.bfloat16, device=DEVICE), target.to(DEVICE))
    case = case.but(reduction=reduction)
    d_hidden, truth = (run(case)["hidden"] for run in (lambda c: run_case(linear_cross_entropy, c), run_in_float64))
    one = 1.0 if reduction == "none" else 0.25  # p and 1 are off by eps32 each, their difference by as much
    assert excess(d_hidden, truth, 16, one) <= 1
    of_target = torch.arange(4, device=DEVICE), case.target
    assert ((d_hidden[of_target].double() - truth[of_target]) / truth[of_target]).abs().max() < 0.004


def test_weights_gradient_over_32_chunks(generator: torch.Generator) -> None:
    """#512, #827, #830: d_weight was summed in bfloat16 over chunks; 64 of them made 1.1 % of 0.4 %."""
    N, H, V = 64, 5, 8
    hidden = (1 + torch.rand(N, H, generator=generator)).bfloat16().to(DEVICE)
    case = Case(hidden, hidden.new_zeros(V, H), torch.randint(V, (N,), generator=generator).to(DEVICE))
    case = case.but(reduction="sum")  # logits of 0 over 8 classes: gradients of 1/8 and -7/8, exact in bfloat16
    truth = run_in_float64(case)["weight"]
    for rows in (N, 2):
        d_weight = run_case(linear_cross_entropy, case.walked(chunk_rows=rows))["weight"]
        assert excess(d_weight, truth, N, 2.0) <= 1, rows


@pytest.mark.parametrize("grad", [True, False], ids="grad={}".format)
@pytest.mark.parametrize("trainable", list(product([True, False], repeat=3)), ids=str)
def test_any_input_may_be_frozen(
    trainable: tuple[bool, bool, bool], grad: bool, generator: torch.Generator
) -> None:  # fmt: skip
    """#930, #931, #1156, #1157: UnboundLocalError under no_grad, AttributeError with a frozen input and a bias.

    With hidden frozen and the head trainable, the head got no gradient, silently.
    """
    case = draw(generator, N=7, V=11)
    leaves = {name: x.requires_grad_(on) for (name, x), on in zip(leaves_of(case).items(), trainable, strict=True)}
    with torch.set_grad_enabled(grad):
        loss = linear_cross_entropy(leaves["hidden"], leaves["weight"], case.target, bias=leaves["bias"], **case.only)
    assert loss.requires_grad == (grad and any(trainable))
    if loss.requires_grad:
        loss.backward()
        golden = run_case(linear_cross_entropy, case)
        for (name, x), on in zip(leaves.items(), trainable, strict=True):
            assert torch.equal(x.grad, golden[name]) if on else x.grad is None


@pytest.mark.parametrize("bias", [True, False], ids="bias={}".format)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("hidden_is_cast", [True, False])
def test_autocast_with_float32_masters(
    hidden_is_cast: bool, dtype: torch.dtype, bias: bool, generator: torch.Generator
) -> None:
    """#305, #318, #501, #502, #1283: without a bias, the products met two dtypes and raised."""
    case = draw(generator, N=9, bias=bias)
    leaves = leaves_of(case)
    if hidden_is_cast:  # as the layers before the head leave it
        leaves["hidden"] = leaves["hidden"].detach().to(dtype).requires_grad_()
    with torch.autocast(DEVICE, dtype):
        loss = linear_cross_entropy(leaves["hidden"], leaves["weight"], case.target, bias=leaves.get("bias"))
    loss.backward()
    low = Case(*(x.to(dtype) for x in (case.hidden, case.weight)), case.target, case.bias.to(dtype) if bias else None)
    golden = run_case(linear_cross_entropy, low)
    for name, x in leaves.items():
        assert x.grad.dtype == x.dtype and torch.equal(x.grad.to(dtype), golden[name]), name


@pytest.mark.parametrize("training", [True, False])
def test_labels_that_are_shifted_already(training: bool, generator: torch.Generator) -> None:
    """#888, #1181, #1242: with shifted labels alone the loss was None, or of T - 1 positions, or wrote to labels."""
    case = draw(generator, N=15)
    hidden, labels = case.hidden.view(3, 5, -1).requires_grad_(training), case.target.view(3, 5)
    shifted = functional.pad(labels, (0, 1), value=-100)[:, 1:].contiguous()
    copies = labels.clone(), shifted.clone()
    from_labels = linear_cross_entropy(hidden, case.weight, labels, shift=True)
    from_shifted, stats = linear_cross_entropy(hidden, case.weight, shifted, stats=True)
    assert torch.equal(from_labels, from_shifted) and stats.log_prob.shape == (3, 5)
    assert torch.equal(labels, copies[0]) and torch.equal(shifted, copies[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_accumulating_eight_batches_of_one_is_one_batch_of_eight(
    dtype: torch.dtype, generator: torch.Generator
) -> None:  # fmt: skip
    """#802, #322: num_items_in_batch was ignored, so that the loss grew with the number of accumulated steps."""
    case = draw(generator, N=40, dtype=dtype, ignored=0.4)
    num_items = (case.target != -100).sum()
    whole = run_case(linear_cross_entropy, case.but(num_items=num_items))
    steps = [
        run_case(linear_cross_entropy, replace(case, hidden=hidden, target=target).but(num_items=num_items))
        for hidden, target in zip(case.hidden.chunk(8), case.target.chunk(8), strict=True)
    ]
    mean = run_case(linear_cross_entropy, case)
    torch.testing.assert_close(sum(step["loss"] for step in steps), mean["loss"], rtol=1e-5, atol=0)
    torch.testing.assert_close(whole["loss"], mean["loss"], rtol=1e-6, atol=0)
    summed = {name: sum(step[name].float() for step in steps).to(dtype) for name in ("weight", "bias")}
    summed["hidden"] = torch.cat([step["hidden"] for step in steps])
    assert_within_budget(summed, case, rounds=9)  # each step rounds its part, no more than the sum


def test_the_heads_bias_counts(generator: torch.Generator) -> None:
    """Live: an lm_head's bias was dropped, 4.69 for 6.83, since its weight alone was read."""
    case = draw(generator)
    case.bias[:] = 3 * torch.randn(37, generator=generator).to(DEVICE)
    with_bias, without = run_case(linear_cross_entropy, case)["loss"], run_in_float64(replace(case, bias=None))["loss"]
    assert_within_budget(run_case(linear_cross_entropy, case), case)
    assert (with_bias - without).abs() > 0.1


class Adapted(torch.nn.Module):
    """As PEFT wraps an lm_head: the weight is that of the base."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base_layer = base

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight


def test_a_wrapped_head_is_refused(generator: torch.Generator) -> None:
    """trl#4612, trl#5977: the base weight under a LoRA adapter was read, and the adapter left out, silently."""
    case = draw(generator)
    head = Adapted(torch.nn.Linear(12, 37, device=DEVICE))
    for op in (linear_cross_entropy, vocab_parallel_linear_cross_entropy, multi_head_linear_cross_entropy):
        message = rf"^{op.__name__}: weight is a Adapted module, expected the tensor.*merge the adapter.*or call"
        with pytest.raises(TypeError, match=message):
            op(case.hidden, head, case.target)


@ZERO_OVER_ZERO
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_an_empty_batch(reduction: str) -> None:
    """Live: ZeroDivisionError. Right is what torch gives: NaN for the mean, 0 for the sum, gradients of 0."""
    hidden, weight = (torch.ones(s, 4, device=DEVICE, requires_grad=True) for s in (0, 6))
    loss = linear_cross_entropy(hidden, weight, torch.zeros(0, dtype=torch.int64, device=DEVICE), reduction=reduction)
    loss.backward()
    assert loss.isnan() if reduction == "mean" else loss == 0
    assert hidden.grad.shape == (0, 4) and not weight.grad.any()


def test_scaling_twice(generator: torch.Generator) -> None:
    """Live: a second backward through a scaled loss returned gradients scaled again."""
    case = draw(generator, N=9, dtype=torch.bfloat16)
    leaves = leaves_of(case)
    loss = 4 * linear_cross_entropy(leaves["hidden"], leaves["weight"], case.target, bias=leaves["bias"])
    loss.backward(retain_graph=True)
    first = {name: x.grad.clone() for name, x in leaves.items()}
    loss.backward()
    for name, x in leaves.items():
        assert torch.equal(x.grad, 2 * first[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training_does_not_depend_on_chunks(dtype: torch.dtype, generator: torch.Generator) -> None:
    """#1472: a small model converged with some numbers of chunks and not with others. Here: one budget for all."""
    case = draw(generator, N=24, H=6, V=17, dtype=dtype)
    for rows in (24, 12, 5):
        assert_within_budget(run_case(linear_cross_entropy, case.walked(chunk_rows=rows)), case)


@ZERO_OVER_ZERO
def test_every_token_ignored_is_nan_as_in_torch(generator: torch.Generator) -> None:
    """Live: 0 for the mean over no tokens, which hides that a batch had none."""
    case = draw(generator, N=5, ignored=2.0)
    losses = (
        op(case.hidden, case.weight, case.target) for op in (linear_cross_entropy, linear_cross_entropy_reference)
    )
    assert all(loss.isnan() for loss in losses)
