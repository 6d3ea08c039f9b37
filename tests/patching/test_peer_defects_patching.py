"""Defects of other libraries' patches, each as a test that porter's passes. Numbers are issues of Liger-Kernel."""

import copy
import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import porter
from porter.patching.head import FusedLoss
from porter.patching.patch import PatchError
from porter.patching.swap import fused_modules
from tests.models.tiny import porter_cache
from tests.patching.tiny_hf import hf_ids, hf_model, step

__all__ = ["porter_cache"]
_PEFT = "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"  # PEFT 0.21 under transformers 5.24


def test_bias_of_the_head_is_kept() -> None:
    """4.69 for 6.83: the head's bias was dropped."""
    model, ids_BT = hf_model("phi"), hf_ids("phi")
    nn.init.normal_(model.lm_head.bias)
    plain = step(model, ids_BT)
    without = F.cross_entropy(
        (model(ids_BT).logits - model.lm_head.bias)[:, :-1].flatten(0, 1), ids_BT[:, 1:].flatten()
    )
    assert abs(without.item() - plain.loss.item()) > 0.1  # it would be seen
    porter.patch(model)
    patched = step(model, ids_BT)
    torch.testing.assert_close(patched.loss, plain.loss)
    torch.testing.assert_close(patched.gradients["lm_head.bias"], plain.gradients["lm_head.bias"])


def _with_adapter(model: Any, *, seed: int = 0) -> Any:
    """LoRA on the head and on projections, not zero."""
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(model, LoraConfig(target_modules=["lm_head", "q_proj", "gate_proj", "down_proj"]))
    generator = torch.Generator().manual_seed(seed)
    for name, each in adapted.named_parameters():
        if "lora_" in name:
            each.data.normal_(generator=generator).mul_(0.1)
    return adapted


@pytest.mark.filterwarnings(_PEFT)
def test_an_adapter_on_the_head_is_refused_or_applied() -> None:
    """trl 4612, 5977: the fused loss read the base weight, and the adapter had no gradient."""
    adapted = _with_adapter(hf_model("llama"))
    with pytest.raises(PatchError, match=r"the output head is a peft Linear, .*an adapter"):
        porter.patch(adapted)
    porter.patch(adapted, linear_cross_entropy=False)
    model, ids_BT = hf_model("llama"), hf_ids("llama")
    porter.patch(model)
    late = _with_adapter(model)  # after the patch
    plain = step(_with_adapter(hf_model("llama")), ids_BT)
    for found in (step(adapted, ids_BT), step(late, ids_BT)):
        torch.testing.assert_close(found.loss, plain.loss)
        torch.testing.assert_close(found.gradients, plain.gradients)
    assert any("lm_head.lora_B" in name and value.abs().max() > 0 for name, value in plain.gradients.items())


@pytest.mark.filterwarnings(_PEFT)
def test_adapters_on_projections_are_applied() -> None:
    """A fused branch calls its projections as the modules that they are."""
    from peft import LoraConfig, get_peft_model

    ids_BT = hf_ids("llama")
    config: Any = LoraConfig(target_modules="all-linear", init_lora_weights=False)
    torch.manual_seed(0)
    adapted = get_peft_model(hf_model("llama"), config)
    plain = step(adapted, ids_BT)
    porter.patch(adapted)
    patched = step(adapted, ids_BT)
    torch.testing.assert_close(patched.loss, plain.loss)
    torch.testing.assert_close(patched.gradients, plain.gradients)
    assert sum("lora" in name for name in patched.gradients) == 2 * 7 * 3


def test_a_global_cross_entropy_stays_torchs() -> None:
    """542: after a patch was reverted, F.cross_entropy was still the library's."""
    own, module = F.cross_entropy, importlib.import_module("torch.nn.functional")
    model = hf_model("llama")
    porter.patch(model)
    assert module.cross_entropy is own
    porter.patch("llama")
    porter.unpatch("llama")
    porter.unpatch(model)
    assert module.cross_entropy is own
    assert "_loss_function" not in vars(model) and not isinstance(model.loss_function, FusedLoss)


def test_reloading_a_modeling_file_leaves_no_patch_behind() -> None:
    """A patch of a module's names was lost, or doubled, when the file was imported anew."""
    from transformers.models.gemma import modeling_gemma

    model, ids_BT = hf_model("gemma"), hf_ids("gemma")
    plain = step(model, ids_BT)
    porter.patch(model)
    patched = step(model, ids_BT)
    before = dict(vars(modeling_gemma))
    try:
        importlib.reload(modeling_gemma)
        again = step(model, ids_BT)  # made of the file's earlier classes
        assert torch.equal(again.loss, patched.loss)
        fresh = modeling_gemma.GemmaForCausalLM(model.config)
        assert [*fused_modules(fresh)] == []
        porter.unpatch(model)
        assert torch.equal(step(model, ids_BT).loss, plain.loss)
    finally:
        vars(modeling_gemma).update(before)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_accumulated_batches_are_one_batch(family: str) -> None:
    """802, 322: num_items_in_batch was ignored, so the loss grew with accumulation."""
    model, ids_BT = hf_model(family), hf_ids(family, batch=4)
    labels_BT = ids_BT.clone()
    labels_BT[0, 3:20] = -100  # so that the batches have different counts
    items = int((labels_BT[:, 1:] != -100).sum())
    porter.patch(model)

    def gradients(parts: int) -> tuple[float, dict[str, Tensor]]:
        model.zero_grad()
        total = 0.0
        for ids, labels in zip(ids_BT.chunk(parts), labels_BT.chunk(parts), strict=True):
            loss = model(ids, labels=labels, num_items_in_batch=torch.tensor(items)).loss
            loss.backward()
            total += loss.item()
        return total, {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}

    (whole, once), (summed, accumulated) = gradients(1), gradients(4)
    assert summed == pytest.approx(whole, rel=1e-6)
    torch.testing.assert_close(accumulated, once)


@pytest.mark.parametrize("training", [True, False])
def test_shifted_labels_alone_give_the_loss(training: bool) -> None:
    """888, 1181, 1242: with shift_labels alone the loss was None, overwritten labels, or of T - 1 outputs."""
    model, ids_BT = hf_model("llama"), hf_ids("llama")
    shifted_BT = F.pad(ids_BT, (0, 1), value=-100)[:, 1:].contiguous()
    kept = shifted_BT.clone()
    porter.patch(model)
    model.train(training)
    usual = model(ids_BT, labels=ids_BT).loss
    found = model(ids_BT, labels=shifted_BT, shift_labels=shifted_BT)
    torch.testing.assert_close(found.loss, usual)
    assert torch.equal(shifted_BT, kept) and found.logits.shape == (*ids_BT.shape, 512)


def test_a_replica_on_another_device_gathers_tensors() -> None:
    """DataParallel gathers what a forward gives from each device: a promise cannot be gathered."""
    model, ids_BT = hf_model("llama"), hf_ids("llama")
    porter.patch(model)
    replica = copy.copy(model)  # as torch.nn.parallel.replicate makes it
    replica._is_replica = True
    out = replica(ids_BT, labels=ids_BT)
    assert isinstance(out.logits, Tensor)
    torch.testing.assert_close(out.loss, model(ids_BT, labels=ids_BT).loss)


@pytest.mark.parametrize("family", ["qwen2_moe", "granitemoe"])
def test_losses_of_routers_are_added(family: str) -> None:
    """The loss that balances a mixture's experts is part of a model's loss."""
    model, ids_BT = hf_model(family), hf_ids(family)
    model.config.output_router_logits = True
    plain = model(ids_BT, labels=ids_BT, output_router_logits=True)
    assert plain.aux_loss is not None and plain.aux_loss.item() > 0
    porter.patch(model)
    patched = model(ids_BT, labels=ids_BT, output_router_logits=True)
    torch.testing.assert_close(patched.loss, plain.loss)
    torch.testing.assert_close(patched.aux_loss, plain.aux_loss)


def test_an_embedding_that_was_resized_after_the_patch_has_its_own_loss() -> None:
    """A new head is not the one that was fused."""
    model, ids_BT = hf_model("llama"), hf_ids("llama")
    porter.patch(model)
    model.resize_token_embeddings(600, mean_resizing=False)
    out = model(ids_BT, labels=ids_BT)
    assert out.logits.shape[-1] == 600
    wanted = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids_BT[:, 1:].flatten())
    torch.testing.assert_close(out.loss, wanted)
    porter.unpatch(model)


def test_a_quantised_or_foreign_head_is_refused() -> None:
    class Int8Linear(nn.Linear):
        """As quantisation libraries make them: a Linear by inheritance alone."""

    model = hf_model("llama")
    model.lm_head.__class__ = Int8Linear
    with pytest.raises(
        PatchError, match="not a torch Linear: what it adds to its weight, an adapter or a quantisation"
    ):
        porter.patch(model)
