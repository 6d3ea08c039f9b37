"""Logits that are a promise: what the loss makes of them, and that whoever looks gets them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import porter
from porter.patching.deferred import DeferredLogits
from porter.patching.head import FusedHead, FusedLoss, fuse_head_alone
from porter.patching.log_probs import token_log_probs
from porter.patching.patch import PatchError
from tests.models.tiny import porter_cache
from tests.patching.tiny_hf import hf_ids, hf_model

__all__ = ["porter_cache"]
_WITH = {"gemma2": "softcap", "granite": "divisor", "cohere": "factor", "phi": "bias", "llama": "plain"}


def _deferred(H: int = 8, V: int = 11, B: int = 2, T: int = 5) -> tuple[DeferredLogits, Tensor]:
    """A promise, and the logits that it promises."""
    torch.manual_seed(0)
    head, hidden = nn.Linear(H, V), torch.randn(B, T, H, requires_grad=True)
    logits = F.linear(hidden, head.weight, head.bias)
    fuse_head_alone(head)
    assert isinstance(head, FusedHead)
    found = head.forward(hidden, deferred=True)
    assert isinstance(found, DeferredLogits)
    return found, logits


@pytest.mark.parametrize(
    ("done", "noted"),
    [
        (lambda x: x, (1.0, None)),
        (lambda x: x * 0.25, (0.25, None)),
        (lambda x: 0.25 * x, (0.25, None)),
        (lambda x: x / 4, (0.25, None)),
        (lambda x: x.float() / 4 * 2, (0.5, None)),
        (lambda x: torch.tanh(x / 30) * 30, (1.0, 30.0)),
        (lambda x: torch.tanh(x * 0.5 / 30) * 30, (0.5, 30.0)),
        (lambda x: (x / 30).tanh() * 15, (0.5, 15.0)),
        (lambda x: torch.tanh(torch.tanh(x)), None),
        (lambda x: torch.tanh(x) * -2, None),
    ],
)
def test_what_a_forward_does_to_logits_is_noted(done: Any, noted: Any) -> None:
    deferred, logits = _deferred()
    found = done(deferred)
    assert isinstance(found, DeferredLogits) and found.scale_and_cap() == pytest.approx(noted)
    torch.testing.assert_close(found.logits(), done(logits))


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x[..., :-1, :],
        lambda x: x.argmax(-1),
        lambda x: torch.softmax(x, dim=-1),
        lambda x: torch.cat([x, x]),
        lambda x: F.cross_entropy(x.view(-1, 11), torch.zeros(10, dtype=torch.long)),
        lambda x: x + 1,
        lambda x: 1 - x,
        lambda x: -x,
        lambda x: x * torch.ones(11),
        lambda x: x / torch.ones(11),
        lambda x: x > 0,
        lambda x: x @ torch.ones(11, 2),
        lambda x: torch.stack(list(x)),
    ],
)
def test_who_looks_gets_logits(look: Any) -> None:
    deferred, logits = _deferred()
    assert torch.equal(look(deferred), look(logits))
    assert len(deferred) == len(logits)


def test_shape_dtype_and_device_are_known_without_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    deferred, logits = _deferred()
    monkeypatch.setattr(DeferredLogits, "logits", lambda self: pytest.fail("the logits were computed"))
    assert (deferred.shape, deferred.dtype, deferred.device) == (logits.shape, logits.dtype, logits.device)
    assert "DeferredLogits" in repr(deferred)


@pytest.mark.parametrize("family", _WITH)
def test_a_loss_makes_no_logits_and_their_reader_gets_them(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids_BT = hf_model(family), hf_ids(family)
    plain = model(ids_BT, labels=ids_BT)
    porter.patch(model)
    looked: list[int] = []
    own = DeferredLogits.logits
    monkeypatch.setattr(DeferredLogits, "logits", lambda self: looked.append(1) or own(self))
    out = model(ids_BT, labels=ids_BT)
    torch.testing.assert_close(out.loss, plain.loss)
    assert looked == []
    torch.testing.assert_close(out.logits[...], plain.logits)
    assert looked


def test_without_labels_in_evaluation_and_without_gradients_logits_are_logits() -> None:
    model, ids_BT = hf_model("llama"), hf_ids("llama")
    porter.patch(model)
    assert isinstance(model(ids_BT).logits, Tensor)
    with torch.no_grad():
        assert isinstance(model(ids_BT, labels=ids_BT).logits, Tensor)
    out = model.eval()(ids_BT, labels=ids_BT)
    assert isinstance(out.logits, Tensor) and out.loss is not None
    model.train()(ids_BT, labels=ids_BT)
    assert isinstance(model.lm_head(torch.zeros(1, 96)), Tensor)  # what calls the head by itself


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_items_in_batch": 7},
        {"num_items_in_batch": torch.tensor(7)},
        {"ignore_index": 3},
        {"shift_labels": True},
        {"shift_labels": True, "num_items_in_batch": 7},
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_options_of_the_loss_are_hfs(family: str, options: dict[str, Any]) -> None:
    model, ids_BT = hf_model(family), hf_ids(family)
    labels_BT = ids_BT.clone()
    labels_BT[:, ::3] = options.get("ignore_index", -100)
    given = {**options, "labels": labels_BT}
    if "shift_labels" in options:
        given = {
            **options,
            "shift_labels": F.pad(labels_BT, (0, 1), value=-100)[:, 1:].contiguous(),
            "labels": labels_BT,
        }
    plain = model(ids_BT, **given).loss
    porter.patch(model)
    patched = model(ids_BT, **given).loss
    torch.testing.assert_close(patched, plain)


@pytest.mark.parametrize("shape", [(24,), (1, 24), (4, 6), (12, 2)], ids=str)
@pytest.mark.parametrize("shifted", [False, True], ids=["labels", "shift_labels"])
def test_labels_of_another_layout_are_taken_as_hf_takes_them(shape: tuple[int, ...], shifted: bool) -> None:
    model, ids_BT = hf_model("llama"), hf_ids("llama").flatten()[:24].view(2, 12)
    given = {"shift_labels" if shifted else "labels": ids_BT.reshape(shape)}
    given |= {"labels": ids_BT.reshape(shape)} if shifted else {}
    plain = model(ids_BT, **given).loss
    porter.patch(model)
    torch.testing.assert_close(model(ids_BT, **given).loss, plain)
    with pytest.raises(RuntimeError, match="shape"):
        model(ids_BT, labels=ids_BT[:, :-1])


@pytest.mark.parametrize("redeemed", [False, True], ids=["deferred", "looked at"])
def test_label_smoothing_and_losses_of_tokens(redeemed: bool) -> None:
    deferred, logits = _deferred()
    target = torch.randint(11, (2, 5), generator=torch.Generator().manual_seed(1))
    target[0, 2] = -100
    given: Any = deferred + 0 if redeemed else deferred
    loss = FusedLoss(None, was_set=False)
    shifted = F.pad(target, (0, 1), value=-100)[:, 1:]
    smooth = F.cross_entropy(logits.view(-1, 11), shifted.flatten(), label_smoothing=0.1)
    torch.testing.assert_close(loss(given, target, label_smoothing=0.1), smooth)
    each = F.cross_entropy(logits.view(-1, 11), shifted.flatten(), reduction="none").view(2, 5)
    torch.testing.assert_close(loss(given, target, reduction="none"), each)
    weight = torch.rand(2, 5)
    shifted_weight = F.pad(weight, (0, 1))[:, 1:]
    torch.testing.assert_close(
        loss(given, target, token_weight=weight, num_items_in_batch=3), (each * shifted_weight).sum() / 3
    )


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom", "gemma2"])
def test_log_probabilities_of_tokens(family: str) -> None:
    model, ids_BT = hf_model(family), hf_ids(family)
    log_probs_BTV = model(ids_BT).logits.float().log_softmax(-1)
    wanted = log_probs_BTV[:, :-1].gather(-1, ids_BT[:, 1:, None])[..., 0]
    gradient = torch.autograd.grad(wanted.mean(), model.get_input_embeddings().weight)[0]
    porter.patch(model)
    found = token_log_probs(model, ids_BT)
    assert found.shape == (2, 23) and found.dtype == torch.float32
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found.mean(), model.get_input_embeddings().weight)[0], gradient)
    labels_BT = ids_BT.masked_fill(torch.arange(24) < 9, -100)
    masked = token_log_probs(model, ids_BT, labels=labels_BT)
    assert torch.equal(masked[:, :8], torch.zeros(2, 8))
    torch.testing.assert_close(masked[:, 8:], wanted[:, 8:])


def test_log_probabilities_need_a_patched_model() -> None:
    with pytest.raises(PatchError, match="whose loss is not fused"):
        token_log_probs(hf_model("llama"), hf_ids("llama"))
