"""The reference against transformers' losses and torch's cross entropy, bit for bit, and against its own equation."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from porter_kernels.cross_entropy import cross_entropy_reference
from tests.porter_kernels.cross_entropy.cases import DEVICE, DTYPES, draw


@pytest.mark.parametrize("num_items", [None, 11, torch.tensor(11)], ids=repr)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_has_the_bits_of_transformers(
    dtype: torch.dtype, num_items: Tensor | int | None, generator: torch.Generator
) -> None:
    from transformers.loss.loss_utils import ForCausalLMLoss

    case = draw(generator, (2, 9, 37), dtype)
    labels = torch.cat((case.target[:, :1], case.target[:, :-1]), dim=1)  # transformers shifts them back
    x, y = (case.logits.clone().requires_grad_() for _ in range(2))
    truth = ForCausalLMLoss(x, labels, vocab_size=37, num_items_in_batch=num_items)
    shifted = F.pad(labels, (0, 1), value=-100)[:, 1:]
    loss = cross_entropy_reference(y, shifted, num_items=num_items)
    assert isinstance(loss, Tensor) and torch.equal(loss, truth)
    assert torch.equal(torch.autograd.grad(loss, y)[0], torch.autograd.grad(truth, x)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True], ids="weighted={}".format)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_has_the_bits_of_torch(
    reduction: Any, weighted: bool, label_smoothing: float, dtype: torch.dtype, generator: torch.Generator
) -> None:
    case = draw(generator, (15, 37), dtype, weight=weighted)
    weight = case.options["weight"] if weighted else None
    truth = F.cross_entropy(
        case.logits, case.target, None if weight is None else weight.to(dtype), reduction=reduction,
        label_smoothing=label_smoothing,
    )  # fmt: skip
    loss = cross_entropy_reference(
        case.logits, case.target, weight=weight, reduction=reduction, label_smoothing=label_smoothing
    )
    assert isinstance(loss, Tensor) and loss.dtype == dtype and torch.equal(loss, truth)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("num_items", [None, 3])
def test_is_its_equation(num_items: int | None, reduction: Any, generator: torch.Generator) -> None:
    if num_items and reduction == "none":
        return
    eps, z, cap, scale = 0.1, 0.3, 2.0, 0.5
    case = draw(generator, (4, 6), torch.float64, weight=True, token_weight=True)
    w, u = (case.options[name].double() for name in ("weight", "token_weight"))
    rows, total, denominator = [], 0.0, 0.0
    for logits, t, factor in zip(case.logits, case.target.tolist(), u, strict=True):
        x = cap * torch.tanh(scale * logits / cap)
        lse = x.exp().sum().log()
        log_p = x - lse
        row = -(1 - eps) * w[t] * log_p[t] - eps / 6 * (w * log_p).sum() + z * lse**2 if t != -100 else 0 * lse
        rows.append(factor * row)
        denominator += factor * w[t] if t != -100 else 0.0
    total = sum(rows)
    truth = {"mean": total / denominator, "sum": total, "none": torch.stack(rows)}[reduction]
    truth = total / num_items if num_items else truth
    loss = cross_entropy_reference(
        case.logits, case.target, weight=w, token_weight=u, reduction=reduction, label_smoothing=eps, z_loss=z,
        softcap=cap, logit_scale=scale, num_items=num_items,
    )  # fmt: skip
    torch.testing.assert_close(loss, truth, rtol=1e-12, atol=0)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_gradient(reduction: Any, generator: torch.Generator) -> None:
    case = draw(generator, (5, 6), torch.float64, weight=True, token_weight=True)
    w, u = (case.options[name].double() for name in ("weight", "token_weight"))

    def loss(logits: Tensor) -> Any:
        return cross_entropy_reference(
            logits, case.target, weight=w, token_weight=u, label_smoothing=0.1, z_loss=0.3, softcap=2.0,
            logit_scale=0.5, reduction=reduction,
        )  # fmt: skip

    assert torch.autograd.gradcheck(loss, case.logits.requires_grad_())


def test_stats(generator: torch.Generator) -> None:
    case = draw(generator, (2, 4, 6), torch.float64)
    case.logits[0, 0, 2] = -torch.inf
    logits = case.logits.requires_grad_()
    loss, stats = cross_entropy_reference(logits, case.target, stats=True)
    assert torch.equal(loss, cross_entropy_reference(logits, case.target))
    p, counts = logits.detach().softmax(-1), case.target != -100
    assert not counts.all()
    truth = {
        "log_prob": p.gather(-1, case.target.clamp(min=0)[..., None])[..., 0].log(),
        "entropy": -(p * p.log()).nan_to_num().sum(-1),
        "lse": logits.detach().exp().sum(-1).log(),
    }
    for name, value in truth.items():
        torch.testing.assert_close(getattr(stats, name), value.where(counts, 0.0), rtol=1e-12, atol=1e-12)
    assert torch.equal(stats.correct, (p.argmax(-1) == case.target) & counts)
    assert not any(value.requires_grad for value in stats)


def test_a_target_that_is_no_class_is_torchs_error() -> None:
    if DEVICE == "cuda":
        pytest.skip("an assertion on the device ends the process")
    with pytest.raises(IndexError, match="out of bounds"):
        cross_entropy_reference(torch.zeros(1, 4), torch.tensor([4]))
