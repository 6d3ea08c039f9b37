"""Mistakes that other libraries' cross entropies made, or make, as tests. Numbers are Liger-Kernel's issues."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from porter_kernels.accuracy import excess
from porter_kernels.cross_entropy import LossOptions, cross_entropy, loss_and_gradient_, rows, scale_
from tests.porter_kernels.cross_entropy.conftest import cut_small

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAN_IS_RIGHT = pytest.mark.filterwarnings(  # numpy's, in the interpreter
    "ignore:invalid value:RuntimeWarning", "ignore:divide by zero:RuntimeWarning"
)
INF = float("inf")


@pytest.fixture(autouse=True)
def small_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def loss_of(logits: Tensor, target: Tensor, **options: Any) -> Tensor:
    loss = cross_entropy(logits, target, **options)
    assert isinstance(loss, Tensor)
    return loss


def targets(*values: int) -> Tensor:
    return torch.tensor(values, device=DEVICE)


@pytest.mark.parametrize("p", [0.9, 0.99, 0.999, 0.9999])
def test_the_gradient_of_a_confident_target_keeps_its_digits(p: float) -> None:
    """#1329: p - 1 of a p rounded to bfloat16 was off by 2, 20 and 100 %."""
    V = 40
    logits = torch.zeros(3, V, device=DEVICE)
    logits[:, 7] = torch.tensor(p / (1 - p) * (V - 1)).log()
    logits = (logits + torch.tensor([[0.0], [-30.0], [30.0]], device=DEVICE)).bfloat16().requires_grad_()
    target = targets(7, 7, 7)
    (gradient,) = torch.autograd.grad(loss_of(logits, target, reduction="sum"), logits)
    wide = logits.detach().double().requires_grad_()
    (truth,) = torch.autograd.grad(F.cross_entropy(wide, target, reduction="sum"), wide)
    assert ((gradient.double() - truth) / truth).abs().max() <= 2**-8


@pytest.mark.parametrize("saver", [torch.exp, torch.sigmoid, lambda x: x.softmax(-1), torch.tanh])
@pytest.mark.parametrize("inplace", [False, True], ids="inplace={}".format)
def test_an_op_whose_saved_output_is_the_logits_gets_its_gradient_or_raises(saver: Any, inplace: bool) -> None:
    """#272, #254, #343, #1251: the gradient overwrote what exp or softmax had saved, and theirs came out wrong."""
    x = randn(5, 37).requires_grad_()
    target = torch.arange(5, device=DEVICE)
    loss = loss_of(saver(x), target, inplace=inplace)
    if inplace:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        return
    (gradient,) = torch.autograd.grad(loss, x)
    wide = x.detach().double().requires_grad_()
    (truth,) = torch.autograd.grad(F.cross_entropy(saver(wide), target), wide)
    assert excess(gradient, truth, 37, x.detach().exp().max() ** 2) <= 1


def test_logits_that_need_no_gradient_have_a_loss_in_every_grad_mode() -> None:
    """#507: it was 0."""
    logits, target = randn(4, 37), targets(3, 1, 4, 1)
    truth = F.cross_entropy(logits, target)
    losses = [loss_of(x, target) for x in (logits, logits.clone().requires_grad_())]
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            losses += [loss_of(x, target) for x in (logits, logits.clone().requires_grad_())]
    torch.testing.assert_close(losses[0], truth, rtol=1e-6, atol=0)
    assert all(torch.equal(loss, losses[0]) for loss in losses)


@pytest.mark.parametrize("V", [37, 33, 31, 17, 1])
def test_padding_past_the_vocabulary_is_not_capped_to_a_class(V: int) -> None:
    """Liger 0.8.2, unsloth#10616: with softcap and V no power of two, padded lanes counted as -softcap."""
    logits, target = randn(3, V), targets(0, V - 1, V // 2)
    truth = F.cross_entropy(2 * torch.tanh(logits.double() / 2), target, reduction="none")
    for grad in (False, True):
        loss = loss_of(logits.requires_grad_(grad), target, softcap=2.0, reduction="none")
        assert excess(loss.detach(), truth, V, 2.0) <= 1


@pytest.mark.parametrize("masked", [16, 32, 36], ids="{} masked".format)
@pytest.mark.parametrize("side", ["first", "last"])
def test_blocks_that_are_wholly_minus_infinity(side: str, masked: int) -> None:
    """Live in 0.8.5: a row whose first 32768 logits are -inf gave NaN (torch 4.11)."""
    logits = randn(3, 37)
    keep = slice(masked, None) if side == "first" else slice(None, 37 - masked)
    target = torch.arange(37, device=DEVICE)[keep][[0, -1, 0]]
    masked_logits = torch.full_like(logits, -INF)
    masked_logits[:, keep] = logits[:, keep]
    x = masked_logits.requires_grad_()
    loss, stats = cross_entropy(x, target, reduction="none", stats=True)
    truth = F.cross_entropy(x.detach().double(), target, reduction="none")
    assert excess(loss.detach(), truth, 37, logits.abs().max()) <= 1
    (gradient,) = torch.autograd.grad(loss.sum(), x)
    (also,) = torch.autograd.grad(loss_of(x, target, reduction="sum"), x)
    wide = x.detach().double().requires_grad_()
    (truth,) = torch.autograd.grad(F.cross_entropy(wide, target, reduction="sum"), wide)
    assert torch.equal(gradient, also) and excess(gradient, truth, 37, logits.abs().max()) <= 1
    entropy = torch.distributions.Categorical(logits=logits[:, keep].double()).entropy()
    assert excess(stats.entropy, entropy, 37, logits.abs().max()) <= 1


@NAN_IS_RIGHT
def test_a_row_of_minus_infinity_is_nan_and_leaves_the_others_alone() -> None:
    """As in torch: softmax of nothing is no distribution."""
    logits, target = randn(6, 37), targets(1, 2, 3, 4, 5, 6)
    logits[2] = -INF
    x = logits.requires_grad_()
    loss = loss_of(x, target, reduction="none")
    truth = F.cross_entropy(x, target, reduction="none")
    assert loss.isnan().tolist() == truth.isnan().tolist() == [False, False, True, False, False, False]
    gradients = (torch.autograd.grad(y.nansum(), x)[0] for y in (loss, truth))
    others = [0, 1, 3, 4, 5]
    torch.testing.assert_close(*(gradient[others] for gradient in gradients), rtol=0, atol=1e-6)
    assert torch.autograd.grad(loss_of(x, target, reduction="sum"), x)[0][2].isnan().all()


@NAN_IS_RIGHT
@pytest.mark.parametrize("wrong", [37, -1, 48, 10**12, -(10**12), 2**31, -(2**63)])
@pytest.mark.parametrize("weighted", [False, True], ids="weighted={}".format)
def test_a_target_that_is_no_class_is_nan_and_reads_nothing(weighted: bool, wrong: int) -> None:
    """Elsewhere it reads past the row, or past the tensor; conftest checks every address."""
    x, target = randn(5, 37).requires_grad_(), targets(1, wrong, 3, 4, 5)
    options = {"weight": randn(37).abs()} if weighted else {}
    loss, stats = cross_entropy(x, target, reduction="none", stats=True, **options)
    assert loss.isnan().tolist() == stats.log_prob.isnan().tolist() == [False, True, False, False, False]
    assert not stats.correct[1] and stats.lse.isfinite().all()
    gradient = torch.autograd.grad(loss.nansum(), x)[0]
    assert gradient.isfinite().all(-1).tolist() == [True, False, True, True, True]
    summed = loss_of(x, target, **options)
    assert summed.isnan() and torch.autograd.grad(summed, x)[0][0].isfinite().all()


@NAN_IS_RIGHT
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1, "z_loss": 0.1, "softcap": 3.0}], ids=str)
def test_a_batch_of_ignored_tokens(options: dict[str, Any]) -> None:
    """Live in 0.8.5: the mean was 0. torch's is NaN, the sum 0, and gradients are 0 in both."""
    target = targets(*[-100] * 5)
    for reduction, truth in (("mean", "nan"), ("sum", "0.0"), ("none", "0.0")):
        x = randn(5, 37).requires_grad_()
        loss, stats = cross_entropy(x, target, reduction=reduction, stats=True, **options)
        assert {str(value) for value in loss.flatten().tolist()} == {truth}
        loss.sum().backward()
        assert torch.equal(x.grad, torch.zeros_like(x))
        assert not any(value.any() for value in stats)
    assert loss_of(x, target, num_items=8) == 0


@pytest.mark.parametrize("ignore", [-100, 2])
def test_ignored_rows_are_not_read(ignore: int) -> None:
    """Padding may hold anything, so may its weights: its loss and gradient are 0."""
    x, target, token_weight = randn(6, 37), targets(1, ignore, 3, ignore, ignore, 6), torch.ones(6, device=DEVICE)
    x[[1, 3, 4]], token_weight[[1, 3, 4]] = float("nan"), float("nan")
    x.requires_grad_()
    options = {"token_weight": token_weight, "ignore_index": ignore, "label_smoothing": 0.1, "z_loss": 0.1}
    for reduction in ("mean", "sum", "none"):
        loss = loss_of(x, target, reduction=reduction, **options)
        (gradient,) = torch.autograd.grad(loss.sum(), x)
        assert loss.isfinite().all() and gradient.isfinite().all() and not gradient[[1, 3, 4]].any()


@NAN_IS_RIGHT
@pytest.mark.parametrize("shape", [(0, 37), (2, 0, 37)], ids=str)
def test_an_empty_batch(shape: tuple[int, ...]) -> None:
    """Live in 0.8.5: an error of max(), a division by zero."""
    for reduction, truth in (("mean", ["nan"]), ("sum", ["0.0"]), ("none", [])):
        x = torch.zeros(shape, device=DEVICE, requires_grad=True)
        target = torch.zeros(shape[:-1], dtype=torch.int64, device=DEVICE)
        loss, stats = cross_entropy(x, target, reduction=reduction, stats=True)
        assert [str(value) for value in loss.flatten().tolist()] == truth
        loss.sum().backward()
        assert x.grad.shape == shape and all(value.shape == target.shape for value in stats)


@pytest.mark.parametrize("inplace", [False, True], ids="inplace={}".format)
def test_a_loss_without_gradients_overwrites_no_leaf(inplace: bool) -> None:
    """Live in 0.8.5: under no_grad the logits of a leaf that requires a gradient were overwritten."""
    leaf, target = randn(5, 37).requires_grad_(), targets(0, 1, 2, 3, 4)
    copy = leaf.detach().clone()
    with torch.no_grad():
        loss_of(leaf, target, inplace=inplace)
    assert torch.equal(leaf, copy)


def test_z_loss_has_its_gradient() -> None:
    """Live in 0.8.5: an output that claimed to require a gradient, and gave 0."""
    x, target = randn(5, 37).requires_grad_(), targets(0, 1, -100, 3, 4)
    (gradient,) = torch.autograd.grad(loss_of(x, target, z_loss=0.5) - loss_of(x, target), x)
    wide = x.detach().double().requires_grad_()
    (truth,) = torch.autograd.grad(0.5 * wide.logsumexp(-1)[target >= 0].square().mean(), wide)
    assert excess(gradient, truth, 37, 4.0) <= 1 and gradient[:2].abs().min() > 0


def test_the_mean_of_bfloat16_rows_is_float32() -> None:
    """Live in 0.8.5: the loss of each row was rounded to bfloat16, their mean 0.33 % off."""
    x = (4 * randn(16, 37)).bfloat16()
    target = torch.arange(16, device=DEVICE)
    truth = F.cross_entropy(x.double(), target)
    for grad in (False, True):
        loss = loss_of(x.requires_grad_(grad), target).detach()
        assert loss.dtype == torch.float32 and abs(loss.double() - truth) < 1e-6 * truth


@pytest.mark.parametrize("upstream", [1.0, 0.3])
def test_a_second_backward_is_the_first(upstream: float) -> None:
    """Live in 0.8.5: with retain_graph the second gradient was scaled twice."""
    x, target = randn(5, 37).bfloat16().requires_grad_(), targets(0, 1, 2, 3, 4)
    loss = upstream * loss_of(x, target)
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_accumulated_batches_make_up_the_whole_one() -> None:
    """#802, #322: num_items_in_batch was ignored, so the loss grew with the number of steps."""
    x, target = randn(4, 3, 37).requires_grad_(), torch.arange(12, device=DEVICE).view(4, 3)
    target[2, 1:] = -100
    items = (target != -100).sum()
    whole = loss_of(x, target)
    parts = [loss_of(x[i], target[i], num_items=items) for i in range(4)]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-6, atol=0)
    gradients = [torch.autograd.grad(loss, x)[0] for loss in (whole, sum(parts))]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_compiled_repeats_have_the_eager_bits() -> None:
    """#1364: compiled outputs differed from eager ones, and gradients from run to run."""
    x, target = randn(5, 37).bfloat16().requires_grad_(), targets(0, 1, 2, -100, 4)

    def call(x: Tensor) -> Tensor:
        return 0.3 * loss_of(x, target, softcap=3.0, label_smoothing=0.1, z_loss=0.01)

    compiled = torch.compile(call, fullgraph=True, backend="inductor" if DEVICE == "cuda" else "aot_eager")
    truth = [call(x).detach(), torch.autograd.grad(call(x), x)[0]]
    for _ in range(3):
        loss = compiled(x)
        assert torch.equal(loss, truth[0]) and torch.equal(torch.autograd.grad(loss, x)[0], truth[1])


@pytest.mark.parametrize("split", [False, True], ids="split={}".format)
def test_rows_further_apart_than_int32(split: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """#803, #804, #1246: row * stride beyond 2**31 wrapped around."""
    monkeypatch.setitem(rows.TUNABLES, "rows_per_multiprocessor", 10**6 if split else 0)
    monkeypatch.setitem(rows.TUNABLES, "few_chunks", 0)
    V, stride = 37, 2**30
    size = 2 * stride + V
    if DEVICE == "cuda":
        memory = torch.empty(size, dtype=torch.bfloat16, device=DEVICE)
    else:  # a file with holes, of which a few bytes are touched
        memory = torch.from_file(str(tmp_path / "holes"), shared=True, size=size, dtype=torch.bfloat16)
    far = memory.as_strided((3, V), (stride, 1))
    far.copy_(randn(3, V))
    near, target = far.clone(), targets(1, 2, 3)
    outcomes = [loss_and_gradient_(x, target, None, None, None, LossOptions(), x) for x in (far, near)]
    assert torch.equal(far, near) and torch.equal(outcomes[0].loss_N, outcomes[1].loss_N)
    scaled = near * 0.5
    scale_(far, torch.tensor(0.5, device=DEVICE))
    assert torch.equal(far, scaled)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU's memory")
def test_more_logits_than_int32_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of one dense tensor: 17000 rows of Llama 3's vocabulary."""
    monkeypatch.undo()
    N, V = 17000, 128256
    logits = torch.zeros(N, V, dtype=torch.bfloat16, device=DEVICE)
    logits[-3:] = randn(3, V)
    last, target = logits[-3:].clone().requires_grad_(), torch.arange(N, device=DEVICE)
    logits.requires_grad_()
    for reduction in ("sum", "none"):
        loss = loss_of(logits, target, reduction=reduction)
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        truth = loss_of(last, target[-3:], reduction=reduction)
        (last_gradient,) = torch.autograd.grad(truth.sum(), last)
        assert torch.equal(gradient[-3:], last_gradient)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_device_that_is_not_the_current_one() -> None:
    """#593, #401: kernels ran on the current device and met pointers of another."""
    x, target = randn(5, 37).to("cuda:1").requires_grad_(), targets(0, 1, 2, 3, 4).to("cuda:1")
    loss = loss_of(x, target)
    loss.backward()
    assert loss.device == x.device and torch.allclose(loss, F.cross_entropy(x, target), rtol=1e-6)
