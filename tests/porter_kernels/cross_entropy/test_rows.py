"""What cross_entropy and linear_cross_entropy launch: one launch and several agree in bits, slices with the whole."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from porter_kernels.accuracy import excess
from porter_kernels.cross_entropy import (
    LossOptions,
    combine_partials,
    logits_gradient_,
    loss_and_gradient_,
    mean_denominator,
    row_partials,
    rows,
    scale_,
)
from porter_kernels.plans import forget_plans
from tests.porter_kernels.cross_entropy.cases import DEVICE, draw

PLAIN = LossOptions()
EVERYTHING = LossOptions(ignore_index=1, label_smoothing=0.1, z_loss=0.03, softcap=3.0, logit_scale=0.5)
INF, NAN = float("inf"), float("nan")


def equal(actual: Iterable[Tensor], expected: Iterable[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def inputs(
    generator: torch.Generator, N: int, V: int, options: LossOptions, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:  # fmt: skip
    """Logits, target (in the last row the likeliest), factor, weight and its sum."""
    case = draw(generator, (N, V), dtype, ignore_index=options.ignore_index, weight=True, token_weight=True)
    case.target[-1:] = case.logits[-1:].argmax(-1)
    weight = case.options["weight"]
    return case.logits, case.target, case.options["token_weight"], weight, weight.sum()


@pytest.mark.parametrize("options", [PLAIN, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("N", [1, 9])
@pytest.mark.usefixtures("small_cuts")
def test_one_launch_has_the_bits_of_three(N: int, options: LossOptions, generator: torch.Generator) -> None:
    logits, target, factor, weight, weight_sum = inputs(generator, N, 37, options)
    together, apart = torch.empty_like(logits), torch.empty_like(logits)
    stats = loss_and_gradient_(
        logits, target, factor, weight, weight_sum, options, together, entropy=True, argmax=True
    )  # fmt: skip
    partials = row_partials(logits, target, weight, options, entropy=True, argmax=True)
    assert equal(combine_partials(partials, target, weight, weight_sum, options, 37), stats)
    logits_gradient_(logits, target, stats.lse_N, factor, weight, weight_sum, options, 37, out=apart)
    scale = factor.max() * (1 + 2 * options.z_loss * stats.lse_N.abs().max()) * stats.lse_N.abs().max()
    assert excess(apart, together.double(), 37, scale) <= 1  # the log-sum-exp was rounded in between


def test_nothing_is_divided_by_unless_asked(generator: torch.Generator) -> None:
    logits, target, *_ = inputs(generator, 4, 37, PLAIN)
    target[0] = -100
    out = torch.empty_like(logits)
    partials = row_partials(logits, target, None, PLAIN)
    lse = combine_partials(partials, target, None, None, PLAIN, 37).lse_N
    logits_gradient_(logits, target, lse, None, None, None, PLAIN, 37, out=out)
    wide = logits.double().requires_grad_()
    torch.nn.functional.cross_entropy(wide, target, reduction="sum").backward()
    assert excess(out, wide.grad, 37, 1.0) <= 1


@pytest.mark.parametrize("options", [PLAIN, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("local_weight", [True, False], ids="local_weight={}".format)
@pytest.mark.usefixtures("small_cuts")
def test_slices_of_a_vocabulary_make_up_the_whole(
    local_weight: bool, options: LossOptions, generator: torch.Generator
) -> None:
    logits, target, factor, weight, weight_sum = inputs(generator, 5, 48, options)
    whole = row_partials(logits, target, weight, options, entropy=True, argmax=True)
    parts, gradient, truth = [], torch.empty_like(logits), torch.empty_like(logits)
    for start, end in ((0, 16), (16, 48)):
        weight_of_slice = weight[start:end] if local_weight else weight
        parts.append(
            row_partials(
                logits[:, start:end], target, weight_of_slice, options, vocab_start=start, entropy=True, argmax=True
            )
        )
    assert torch.equal(torch.cat(parts, dim=1), whole)
    lse = combine_partials(whole, target, weight, weight_sum, options, 48).lse_N
    logits_gradient_(logits, target, lse, factor, weight, weight_sum, options, 48, out=truth)
    for start, end in ((0, 16), (16, 48)):
        logits_gradient_(
            logits[:, start:end], target, lse, factor, weight, weight_sum, options, 48,
            vocab_start=start, out=gradient[:, start:end],
        )  # fmt: skip
    assert torch.equal(gradient, truth)


@pytest.mark.parametrize("rows_per_multiprocessor", [0, 10**6])
@pytest.mark.usefixtures("small_cuts")
def test_entropy_and_argmax_are_asked_for_apart(
    rows_per_multiprocessor: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rows.TUNABLES, "rows_per_multiprocessor", rows_per_multiprocessor)
    logits, target, *_ = inputs(generator, 4, 37, PLAIN)
    out = torch.empty_like(logits)
    both, entropy, argmax = (
        loss_and_gradient_(logits, target, None, None, None, PLAIN, out, entropy=e, argmax=a)
        for e, a in ((True, True), (True, False), (False, True))
    )
    assert torch.equal(entropy.entropy_N, both.entropy_N) and torch.equal(argmax.correct_N, both.correct_N)
    assert not torch.equal(argmax.entropy_N, both.entropy_N) and not torch.equal(entropy.correct_N, both.correct_N)


@pytest.mark.usefixtures("small_cuts")
def test_slices_that_end_within_a_chunk(generator: torch.Generator) -> None:
    logits, target, _, weight, weight_sum = inputs(generator, 9, 48, EVERYTHING)
    target[:3] = torch.tensor([20, 21, 31], device=DEVICE)  # on both sides of the border, and in the chunk before it
    whole = row_partials(logits, target, weight, EVERYTHING, entropy=True, argmax=True)
    parts = [
        row_partials(logits[:, a:b], target, weight, EVERYTHING, vocab_start=a, entropy=True, argmax=True)
        for a, b in ((0, 21), (21, 48))
    ]
    truth, stats = (
        combine_partials(partials, target, weight, weight_sum, EVERYTHING, 48)
        for partials in (whole, torch.cat(parts, dim=1))
    )
    for a, b in zip(stats[:4], truth[:4], strict=True):
        assert excess(a, b.double(), 48, 2 * b.abs().max()) <= 1
    assert torch.equal(stats.correct_N, truth.correct_N)


def test_partials_say_what_they_hold() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]], device=DEVICE)
    target, weight = torch.tensor([11, -100], device=DEVICE), torch.tensor([1.0, 2.0, 3.0], device=DEVICE)
    options = LossOptions(label_smoothing=0.1)
    partials = row_partials(logits, target, weight, options, vocab_start=10, entropy=True, argmax=True)
    e = torch.exp(torch.tensor([-2.0, -1.0])).tolist()
    assert partials[0, 0].tolist() == pytest.approx([2.0, 1 + sum(e), 2.0, 7.0, -2 * e[0] - e[1], 11.0])
    assert partials[1, 0, :5].tolist() == [-INF, 0.0, 0.0, 0.0, 0.0]
    assert row_partials(logits, target, None, PLAIN)[0, 0, 2:].tolist() == [0.0] * 4


@pytest.mark.parametrize("V", [1, 15, 16, 17, 37, 160])
@pytest.mark.usefixtures("small_cuts")
def test_chunks_follow_from_the_vocabulary_alone(V: int) -> None:
    assert {rows.cut(N, V).C for N in (1, 3, 1000)} == {-(-V // 16)}


@pytest.mark.parametrize("options", [PLAIN, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("N", [0, 4, 9])
@pytest.mark.parametrize("counted", [False, True], ids="counted={}".format)
@pytest.mark.usefixtures("small_cuts")
def test_rows_too_few_to_fill_a_gpu_are_split_over_programs_without_a_trace(
    counted: bool, N: int, options: LossOptions, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, target, factor, weight, weight_sum = inputs(generator, N, 37, options)
    denominator, results = None if counted else torch.tensor(0.3, device=DEVICE), []
    for rows_per_multiprocessor in (0, 10**6):
        monkeypatch.setitem(rows.TUNABLES, "rows_per_multiprocessor", rows_per_multiprocessor)
        forget_plans()
        out = torch.empty_like(logits)
        stats = loss_and_gradient_(
            logits, target, factor, weight, weight_sum, options, out, denominator=denominator, entropy=True,
            argmax=True, counted=counted,
        )  # fmt: skip
        results.append((*stats, out))
        assert not out.isnan().any()
    assert equal(*results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.usefixtures("small_cuts")
def test_the_gradient_may_overwrite_the_logits(dtype: torch.dtype, generator: torch.Generator) -> None:
    logits, target, factor, weight, weight_sum = inputs(generator, 9, 37, EVERYTHING, dtype)
    out = torch.empty_like(logits)
    apart = loss_and_gradient_(logits, target, factor, weight, weight_sum, EVERYTHING, out)
    late = logits.clone()
    together = loss_and_gradient_(logits, target, factor, weight, weight_sum, EVERYTHING, logits)
    assert equal(together, apart) and torch.equal(logits, out)
    logits_gradient_(late, target, apart.lse_N, factor, weight, weight_sum, EVERYTHING, 37, out=late)
    assert excess(late, out.double(), 37, 20.0) <= (1 if dtype == torch.float32 else 2)  # two roundings to bfloat16


@pytest.mark.usefixtures("small_cuts")
def test_rows_and_columns_outside_are_left_alone(generator: torch.Generator) -> None:
    logits, target, factor, _, _ = inputs(generator, 9, 37, PLAIN)
    around = torch.full((12, 50), 7.0, device=DEVICE)
    wide = torch.full((9, 60), 1e9, device=DEVICE)
    wide[:, 5:42] = logits
    loss_and_gradient_(wide[:, 5:42], target, factor, None, None, PLAIN, around[2:11, 3:40])
    packed = torch.empty_like(logits)
    loss_and_gradient_(logits, target, factor, None, None, PLAIN, packed)
    assert torch.equal(around[2:11, 3:40], packed)
    around[2:11, 3:40] = 7.0
    assert torch.all(around == 7.0)


def test_a_slice_needs_the_weights_of_all_classes() -> None:
    x, target, row = torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64), torch.zeros(2)
    with pytest.raises(ValueError, match=r"weight has shape \[4\], expected \[8\].*whole vocabulary"):
        logits_gradient_(x, target, row, row, torch.ones(4), None, PLAIN, 8, out=x)


@pytest.mark.parametrize(
    "options", [{}, {"weight": True}, {"token_weight": True}, {"weight": True, "token_weight": True}]
)
@pytest.mark.parametrize("N", [0, 1, 21])
@pytest.mark.usefixtures("small_cuts")
def test_mean_denominator(N: int, options: dict[str, Any], generator: torch.Generator) -> None:
    case = draw(generator, (N, 5), **options)
    counts = case.target != -100
    weight, token_weight = (case.options.get(name) for name in ("weight", "token_weight"))
    terms = torch.ones(N, dtype=torch.float64, device=DEVICE)
    if weight is not None:
        terms = terms * weight[case.target.where(counts, 0)]
    if token_weight is not None:
        terms = terms * token_weight
    denominator = mean_denominator(case.target, weight, token_weight, PLAIN)
    assert (denominator.dtype, denominator.shape) == (torch.float32, ())
    assert excess(denominator, terms[counts].sum(), N + 1, 1.1) <= 1


@pytest.mark.parametrize("upstream", [1.0, 1.01, 0.5, 0.0, NAN])
@pytest.mark.usefixtures("small_cuts")
def test_scale(upstream: float, generator: torch.Generator) -> None:
    x = torch.randn(9, 60, generator=generator).to(DEVICE, torch.bfloat16)
    copy = x.clone()
    scale_(x[:, 3:40], torch.tensor(upstream, device=DEVICE))
    copy[:, 3:40] *= upstream
    assert torch.equal(x.isnan(), copy.isnan()) and torch.equal(x.nan_to_num(), copy.nan_to_num())
