"""linear_cross_entropy against its reference in float64: every option, dtype and way to cut the rows."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from porter_kernels.accuracy import excess
from porter_kernels.linear_cross_entropy import linear_cross_entropy, linear_cross_entropy_reference
from tests.porter_kernels.linear_cross_entropy_budget import (
    DEVICE,
    ZERO_OVER_ZERO,
    Case,
    assert_within_budget,
    draw,
    run_case,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SIZES = {  # N, H, V, chunk_rows, bias
    "one of each": (1, 1, 1, None, True),
    "one row": (1, 7, 33, None, False),
    "one chunk": (13, 8, 50, 64, True),
    "chunks fit": (12, 5, 31, 6, False),
    "last chunk smaller": (19, 12, 37, 8, True),
    "a row a chunk": (3, 4, 6, 1, True),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "sum": {"reduction": "sum"},
    "unreduced": {"reduction": "none"},
    "ignore 3": {"ignore_index": 3},
    "smoothing": {"label_smoothing": 0.1},
    "z-loss": {"z_loss": 1e-2},
    "softcap": {"softcap": 3.0},
    "scale": {"logit_scale": 0.25},
    "num_items": {"num_items": 11},
    "all": {"label_smoothing": 0.2, "z_loss": 1e-2, "softcap": 5.0, "logit_scale": 0.5, "reduction": "none"},
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_every_size(size: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    N, H, V, chunk_rows, bias = SIZES[size]
    ignored = 0.0 if N == 1 else 0.2
    case = draw(generator, N=N, H=H, V=V, dtype=dtype, bias=bias, ignored=ignored).walked(chunk_rows=chunk_rows)
    assert_within_budget(run_case(linear_cross_entropy, case), case)


@pytest.mark.parametrize(
    ("weights", "dtype"),
    [("", torch.float32), ("class", torch.float32), ("class token", torch.bfloat16), ("token", torch.float16)],
    ids=str,
)
@pytest.mark.parametrize("options", OPTIONS)
def test_every_option(options: str, weights: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    case = draw(generator, N=11, H=6, V=21, dtype=dtype, **OPTIONS[options]).walked(chunk_rows=6)
    if "class" in weights:
        case = case.but(class_weight=torch.rand(21, generator=generator).to(DEVICE) + 0.5)
    if "token" in weights:
        token_weight = torch.rand(11, generator=generator).to(DEVICE) + 0.5
        token_weight[4] = 0.0
        case = case.but(token_weight=token_weight)
    if options in ("unreduced", "all"):
        case = replace(case, upstream=torch.randn(11, generator=generator).to(DEVICE))
    assert_within_budget(run_case(linear_cross_entropy, case), case)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("upstream", [0.5, -1.7])
def test_an_upstream_gradient_scales(upstream: float, dtype: torch.dtype, generator: torch.Generator) -> None:
    case = replace(draw(generator, dtype=dtype), upstream=torch.tensor(upstream, device=DEVICE)).walked(chunk_rows=8)
    assert_within_budget(run_case(linear_cross_entropy, case), case)


def test_float16_gradients_survive_under_a_scaled_loss(generator: torch.Generator) -> None:
    """Those of a mean lie below float16's smallest numbers; a GradScaler's factor must reach them before they round."""
    logits = 3 * torch.randn(8, 32, generator=generator)  # an identity for a head: d_hidden is their gradient
    case = Case(logits.half().to(DEVICE), torch.eye(32, dtype=torch.float16, device=DEVICE), torch.arange(8).to(DEVICE))
    case = replace(case, upstream=torch.tensor(65536.0 / 8, device=DEVICE))
    actual = run_case(linear_cross_entropy, case)
    assert_within_budget(actual, case)
    assert actual["hidden"].all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_and_columns_past_a_tile(dtype: torch.dtype, generator: torch.Generator, tile: int) -> None:
    V = 128 if tile == 512 else 700  # 4 rows a program, or all
    case = draw(generator, N=9, H=6, V=V, dtype=dtype).walked(chunk_rows=7)
    assert_within_budget(run_case(linear_cross_entropy, case), case)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_statistics(dtype: torch.dtype, generator: torch.Generator) -> None:
    case = draw(generator, N=24, dtype=dtype).but(softcap=4.0)
    case.hidden[5] = 3 * case.weight[case.target[5].clamp(0)]  # a token that is predicted rightly
    shape = (2, 3, 4)
    hidden, target = case.hidden.view(*shape, -1), case.target.view(shape)
    options = {"bias": case.bias, "stats": True} | case.options
    _, stats = linear_cross_entropy(hidden, case.weight, target, **options, chunk_rows=10)
    logits = functional.linear(case.hidden, case.weight, case.bias)  # rounded once, as in the op
    capped = 4 * torch.tanh(logits.double() / 4)
    _, truth = linear_cross_entropy_reference(hidden.double(), case.weight.double(), target, **options | {
        "bias": case.bias.double()
    })  # fmt: skip
    slack = 2 * torch.finfo(dtype).eps * logits.abs().max().double() + 1e-5
    for name, a, t in zip(stats._fields, stats, truth, strict=True):
        assert a.shape == shape and not a.requires_grad, name
        if name == "correct":
            assert a.dtype == torch.bool and torch.equal(a.flatten(), (capped.argmax(1) == case.target)), name
        else:
            assert a.dtype == torch.float32 and (a.double() - t).abs().max() <= slack, name
    assert stats.correct.any() and not stats.correct.all()
    assert all((x[target == -100] == 0).all() for x in stats)


def test_no_statistics_unless_asked(generator: torch.Generator) -> None:
    case = draw(generator)
    assert isinstance(linear_cross_entropy(case.hidden, case.weight, case.target), torch.Tensor)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@ZERO_OVER_ZERO
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3)], ids=str)
def test_no_rows(shape: tuple[int, ...], reduction: str) -> None:
    leaves = [torch.ones(s, device=DEVICE, requires_grad=True) for s in ((*shape, 5), (7, 5), (7,))]
    target = torch.zeros(shape, dtype=torch.int64, device=DEVICE)
    loss = linear_cross_entropy(leaves[0], leaves[1], target, bias=leaves[2], reduction=reduction)
    truth = functional.cross_entropy(torch.zeros(0, 7), torch.zeros(0, dtype=torch.int64), reduction=reduction)
    assert loss.shape == (shape if reduction == "none" else ()) and loss.isnan().all() == truth.isnan().all()
    loss.sum().backward()
    assert all(x.grad is not None and not x.grad.any() for x in leaves)


@ZERO_OVER_ZERO
@pytest.mark.parametrize("drop", [True, False], ids="drop={}".format)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_every_row_ignored(reduction: str, drop: bool, generator: torch.Generator) -> None:
    case = draw(generator, N=6, ignored=2.0).but(reduction=reduction).walked(drop_ignored=drop, chunk_rows=4)
    result = run_case(linear_cross_entropy, case)
    truth = run_case(linear_cross_entropy_reference, replace(case, only={}))
    assert result["loss"].isnan().all() if reduction == "mean" else not result["loss"].any()
    torch.testing.assert_close(result["loss"], truth["loss"], rtol=0, atol=0, equal_nan=True)
    assert not any(result[name].any() for name in ("hidden", "weight", "bias"))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_ignored_rows_change_nothing_wherever_they_are_left_out(reduction: str, generator: torch.Generator) -> None:
    case = draw(generator, N=21, dtype=torch.bfloat16, ignored=0.4).but(reduction=reduction)
    case = case.but(token_weight=(torch.rand(21, generator=generator) > 0.2).float().to(DEVICE)).walked(chunk_rows=64)
    kept, dropped = (run_case(linear_cross_entropy, case.walked(drop_ignored=drop)) for drop in (False, True))
    for name in ("loss", "hidden"):  # row by row the same products; d_weight is summed over other rows
        if DEVICE == "cpu":  # cuBLAS may sum a product of other shape in another order
            assert torch.equal(kept[name], dropped[name]), name
    silent = (case.target == -100) | (case.options["token_weight"] == 0)
    assert not kept["hidden"][silent].any() and not dropped["hidden"][silent].any()
    for result in (kept, dropped):
        assert_within_budget(result, case)


def test_ignored_rows_may_hold_anything(generator: torch.Generator) -> None:
    case = draw(generator, N=9).walked(drop_ignored=True)
    clean = run_case(linear_cross_entropy, case)
    dirty = replace(case, hidden=case.hidden.where((case.target != -100)[:, None], float("nan")))
    for name, value in run_case(linear_cross_entropy, dirty).items():
        assert torch.equal(value, clean[name]), name


@pytest.mark.parametrize("weights", ["class_weight", "token_weight"])
def test_a_weighted_mean_of_one_chunk(weights: str, generator: torch.Generator) -> None:
    case = draw(generator).walked(drop_ignored=False)
    size = case.weight.shape[0] if weights == "class_weight" else case.target.shape[0]
    case = case.but(**{weights: torch.rand(size, generator=generator).to(DEVICE) + 0.5})
    assert_within_budget(run_case(linear_cross_entropy, case), case)


def test_a_number_of_items_is_exact(generator: torch.Generator) -> None:
    case = draw(generator)
    total = run_case(linear_cross_entropy, case.but(reduction="sum"))["loss"]
    assert torch.equal(run_case(linear_cross_entropy, case.but(num_items=70001))["loss"], total / 70001)


def test_a_single_token_may_come_without_an_axis(generator: torch.Generator) -> None:
    hidden, weight = (torch.randn(s, generator=generator).to(DEVICE).requires_grad_() for s in ((6,), (11, 6)))
    found, truth = (
        (loss, *torch.autograd.grad(loss, (hidden, weight)))
        for loss in (
            linear_cross_entropy(hidden, weight, torch.tensor(3, device=DEVICE)),
            functional.cross_entropy(functional.linear(hidden, weight), torch.tensor(3, device=DEVICE)),
        )
    )
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", [-1, 37])
def test_a_target_that_is_no_class_is_seen(target: int, generator: torch.Generator) -> None:
    case = draw(generator)
    case.target[3] = target
    assert run_case(linear_cross_entropy, case)["loss"].isnan()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shift_is_that_of_labels(dtype: torch.dtype, generator: torch.Generator) -> None:
    case = draw(generator, N=15, dtype=dtype)
    hidden, target = case.hidden.view(3, 5, -1), case.target.view(3, 5)
    token_weight = torch.rand(3, 5, generator=generator).to(DEVICE) + 0.5
    shifted = run_case(linear_cross_entropy, replace(case, hidden=hidden, target=target).but(
        token_weight=token_weight, reduction="none"
    ).walked(shift=True))  # fmt: skip
    by_hand = torch.full_like(target, -100)
    by_hand[:, :-1] = target[:, 1:]
    flat = Case(case.hidden, case.weight, by_hand.flatten(), case.bias).but(reduction="none")
    flat = flat.but(token_weight=functional.pad(token_weight[:, 1:], (0, 1)).flatten())
    for name, value in run_case(linear_cross_entropy, flat).items():
        if name in ("weight", "bias"):  # sums over rows, of which the shifted call has fewer: grouped otherwise
            assert excess(shifted[name], value.double(), 15, value.abs().max()) <= 1, name
        else:
            assert torch.equal(value.flatten(), shifted[name].flatten()), name
    assert shifted["loss"].shape == (3, 5) and not shifted["loss"][:, -1].any()
    assert not shifted["hidden"][:, -1].any()


def test_strides(generator: torch.Generator) -> None:
    case = draw(generator, N=20, H=9, V=21)
    wide = torch.zeros(21, 30, device=DEVICE)
    wide[:, 3:21:2] = case.weight
    strided = Case(
        case.hidden.T.contiguous().T, wide[:, 3:21:2], case.target.repeat_interleave(2)[::2],
        case.bias.repeat_interleave(3)[::3],
    )  # fmt: skip
    assert not any(x.is_contiguous() for x in (strided.hidden, strided.weight, strided.target, strided.bias))
    class_weight = torch.rand(21, generator=generator).to(DEVICE) + 0.5
    case = case.but(class_weight=class_weight)
    strided = strided.but(class_weight=class_weight.repeat_interleave(2)[::2])
    for upstream in (None, torch.tensor(3.0, device=DEVICE)):
        strided, dense = replace(strided, upstream=upstream), replace(case, upstream=upstream)
        assert_within_budget(run_case(linear_cross_entropy, strided), dense)
    transposed = replace(case, weight=case.weight.T.contiguous().T)
    assert_within_budget(run_case(linear_cross_entropy, transposed), case)
