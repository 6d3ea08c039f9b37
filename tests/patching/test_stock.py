"""What somebody changed stays: a module is fused only where its code is HuggingFace's and its numbers the config's."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

import porter
from porter.patching.deferred import DeferredLogits
from porter.patching.head import FusedLoss
from porter.patching.patch import PatchError
from porter.patching.verify import verify_patch
from tests.models.tiny import porter_cache, tiny
from tests.patching.tiny_hf import hf_ids, hf_model, step

__all__ = ["porter_cache"]


class _Doubled(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        found: Tensor = super().forward(hidden_states)
        return found * 2


class _DoubledMlp(LlamaMLP):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = super().forward(x)
        return found * 2


def _subclass_norm(model: Any) -> None:
    model.model.norm.__class__ = _Doubled


def _subclass_mlp(model: Any) -> None:
    model.model.layers[1].mlp.__class__ = _DoubledMlp


def _own_forward(model: Any) -> None:
    model.model.layers[1].mlp.forward = lambda x: x * 3


def _other_activation(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = nn.ReLU()


def _other_eps(model: Any) -> None:
    model.model.norm.variance_epsilon = 1.0


def _hooked_activation(model: Any) -> None:
    model.model.layers[0].mlp.act_fn.register_forward_hook(lambda _module, _args, out: out * 2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_subclass_norm, "_Doubled is no class of HuggingFace's"),
        (_subclass_mlp, "_DoubledMlp is no class of HuggingFace's"),
        (_own_forward, "the forward of LlamaMLP is not HuggingFace's"),
        (_other_activation, "its activation is not the config's silu"),
        (_other_eps, "its eps is 1, the config says 1e-05"),
        (_hooked_activation, "its activation has hooks"),
    ],
)
def test_a_module_that_was_changed_stays(change: Any, reason: str) -> None:
    model, ids_BT = hf_model("llama"), hf_ids("llama")
    plain = step(model, ids_BT)
    change(model)
    changed = step(model, ids_BT)
    assert abs(float(changed.loss - plain.loss)) > 1e-3
    made = porter.patch(model)
    assert made is not None and [each.reason for each in made.left if reason in each.reason]
    with pytest.raises(PatchError, match=rf"verify=True with model\.\S+: {reason}"):
        porter.patch(model, verify=True)
    patched = step(model, ids_BT)
    torch.testing.assert_close(patched.loss, changed.loss)
    torch.testing.assert_close(patched.gradients, changed.gradients)


def test_a_class_that_another_library_patched_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LlamaMLP, "forward", lambda self, x: x * 3)
    made = porter.patch(hf_model("llama"))
    assert made is not None and sum("not HuggingFace's" in each.reason for each in made.left) == 3


@pytest.mark.parametrize("how", ["function", "type"])
def test_a_loss_of_ones_own_is_refused(how: str) -> None:
    model = hf_model("llama")
    if how == "function":
        model.loss_function = lambda logits, labels, **_: logits.mean()
    else:
        model.loss_type = "ForMaskedLM"
    with pytest.raises(PatchError, match=r"linear_cross_entropy: its loss is \S+, not HuggingFace's ForCausalLMLoss"):
        porter.patch(model)
    assert porter.patch(model, linear_cross_entropy=False) is not None


def test_a_hook_on_the_head_after_the_patch_is_called_once_with_logits() -> None:
    model, other, ids_BT = hf_model("llama"), hf_model("llama"), hf_ids("llama")
    porter.patch(model)
    seen: list[Any] = []
    for each in (model, other):
        each.lm_head.register_forward_hook(lambda _module, _args, out: seen.append(out) or out + torch.arange(512) / 10)
    torch.testing.assert_close(step(model, ids_BT).loss, step(other, ids_BT).loss)
    assert len(seen) == 2 and all(isinstance(each, Tensor) for each in seen)


def test_logits_that_are_looked_at_too_late_are_refused() -> None:
    model, ids_BT = hf_model("llama"), hf_ids("llama")
    porter.patch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen, unseen = (model(ids_BT, labels=ids_BT) for _ in range(2))
    logits = seen.logits[...]
    (seen.loss + unseen.loss).backward()
    optimizer.step()
    assert torch.equal(seen.logits[...], logits)
    with pytest.raises(RuntimeError, match="whose weight has changed since the forward pass"):
        unseen.logits.argmax(-1)


def test_logits_can_be_compared_and_outlive_the_patch() -> None:
    model, ids_BT = hf_model("llama"), hf_ids("llama")
    plain = model(ids_BT).logits
    porter.patch(model)
    out = model(ids_BT, labels=ids_BT)
    assert isinstance(out.logits, DeferredLogits) and bool((out.logits == out.logits).all())
    assert bool((out.logits != 1e9).all()) and len({out.logits, out.logits}) == 1
    late = model(ids_BT, labels=ids_BT).logits
    porter.unpatch(model)
    torch.testing.assert_close(late[...], plain)


def test_a_head_that_was_exchanged_is_patched_anew_and_unpatched_at_once() -> None:
    model, ids_BT = hf_model("llama"), hf_ids("llama")
    own = model.loss_function
    porter.patch(model)
    model.resize_token_embeddings(600, mean_resizing=False)
    porter.patch(model)
    assert isinstance(model(ids_BT, labels=ids_BT).logits, DeferredLogits)
    assert (len(model._forward_pre_hooks), len(model._forward_hooks)) == (1, 1)
    porter.unpatch(model)
    assert model.loss_function is own and not isinstance(model.loss_function, FusedLoss)
    assert not model._forward_pre_hooks and not model._forward_hooks


def test_a_wrong_loss_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from porter.patching import head

    right = head.linear_cross_entropy
    monkeypatch.setattr(head, "linear_cross_entropy", lambda *given, **options: right(*given, **options) * 1.5)
    report = verify_patch(tiny("llama"), frozenset({"linear_cross_entropy"}), tokens=64)
    assert report.verdict == "FAIL" and report.sentence.startswith("FAIL at loss (behaviour, float32)")
    assert "look at head and loss in one" in report.sentence
