"""porter.patch and porter.unpatch on one model, on types, on wrapped models, and what they refuse."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers.models.llama import modeling_llama

import porter
from porter.errors import SpecError, UsageError
from porter.patching.patch import PatchError
from porter.patching.swap import fused_modules
from tests.models.tiny import porter_cache, random_ids, save_tiny, tiny
from tests.patching.tiny_hf import hf_ids, hf_model, step

__all__ = ["porter_cache"]


def test_what_was_done_is_told_in_words() -> None:
    made = porter.patch(hf_model("gemma2"))
    assert str(made) == (
        "Gemma2ForCausalLM: 26 modules on porter's kernels\n"
        "  rms_norm: model.layers.*.input_layernorm (4), model.layers.*.post_attention_layernorm (4), "
        "model.layers.*.pre_feedforward_layernorm (4), model.layers.*.post_feedforward_layernorm (4), model.norm\n"
        "  rope: model.layers.*.self_attn (4)\n"
        "  glu: model.layers.*.mlp (4)\n"
        "  linear_cross_entropy: lm_head"
    )


@pytest.mark.parametrize("op", ["rms_norm", "rope", "glu", "linear_cross_entropy"])
def test_each_op_can_be_left_out(op: str) -> None:
    made = porter.patch(hf_model("llama"), **{op: False})
    assert made is not None
    assert {each.op for each in made.replaced} == {"rms_norm", "rope", "glu", "linear_cross_entropy"} - {op}


def test_a_second_patch_finds_nothing_to_do() -> None:
    model, ids_BT = hf_model("llama"), hf_ids("llama")
    porter.patch(model, linear_cross_entropy=False)
    once = step(model, ids_BT)
    again = porter.patch(model, linear_cross_entropy=False)
    assert again is not None and again.replaced == ()
    assert torch.equal(step(model, ids_BT).loss, once.loss)


def test_nothing_outside_the_model_changes() -> None:
    functions = {name: value for name, value in vars(modeling_llama).items() if callable(value)}
    forwards = {
        name: value.forward
        for name, value in functions.items()
        if isinstance(value, type) and issubclass(value, nn.Module)
    }
    others = (nn.functional.cross_entropy, nn.functional.linear, nn.Linear.forward, nn.Module.__call__)
    other, ids_BT = hf_model("llama"), hf_ids("llama")
    before = step(other, ids_BT)
    porter.patch(hf_model("llama"))
    assert {name: value for name, value in vars(modeling_llama).items() if callable(value)} == functions
    assert all(getattr(modeling_llama, name).forward is value for name, value in forwards.items())
    assert others == (nn.functional.cross_entropy, nn.functional.linear, nn.Linear.forward, nn.Module.__call__)
    assert [*fused_modules(other)] == []
    assert torch.equal(step(other, ids_BT).loss, before.loss)


def test_a_patched_model_is_saved_as_what_it_was(tmp_path: Path) -> None:
    model = hf_model("llama")
    names = [*model.state_dict()]
    porter.patch(model)
    assert [*model.state_dict()] == names
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded).__name__ == "LlamaForCausalLM" and [*fused_modules(loaded)] == []
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())


def test_copies_and_pickles_are_patched_and_can_be_unpatched() -> None:
    model, ids_BT = hf_model("llama"), hf_ids("llama")
    plain = step(model, ids_BT)
    porter.patch(model)
    patched, paths = step(model, ids_BT), [path for path, _ in fused_modules(model)]
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert [path for path, _ in fused_modules(other)] == paths
        assert torch.equal(step(other, ids_BT).loss, patched.loss)
        porter.unpatch(other)
        assert torch.equal(step(other, ids_BT).loss, plain.loss)
    assert [path for path, _ in fused_modules(model)] == paths


def test_hidden_states_attentions_and_generated_text_are_those_of_the_model() -> None:
    model, ids_BT = hf_model("gemma3").eval(), hf_ids("gemma3", 8, 1)
    asked: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False}
    before, text = model(ids_BT, output_hidden_states=True, output_attentions=True), model.generate(ids_BT, **asked)
    porter.patch(model)
    after = model(ids_BT, output_hidden_states=True, output_attentions=True)
    assert len(after.hidden_states) == len(before.hidden_states) and len(after.attentions) == len(before.attentions)
    torch.testing.assert_close(after.hidden_states[-1], before.hidden_states[-1])
    torch.testing.assert_close(after.attentions[-1], before.attentions[-1])
    assert torch.equal(model.generate(ids_BT, **asked), text)


def test_gradient_checkpointing_gives_the_same_bits() -> None:
    model, ids_BT = hf_model("qwen3"), hf_ids("qwen3")
    porter.patch(model)
    plain = step(model, ids_BT)
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable()  # its name before transformers 5.20 is the second
    again = step(model, ids_BT)
    assert all(torch.equal(again.gradients[name], value) for name, value in plain.gradients.items())


def test_samples_with_positions_of_their_own_are_rotated_by_them() -> None:
    model, ids_BT = hf_model("llama"), hf_ids("llama")
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[0, :7] = 0
    inputs = {"attention_mask": mask_BT, "position_ids": (mask_BT.cumsum(-1) - 1).clamp(min=0)}
    plain = step(model, ids_BT, **inputs)
    porter.patch(model)
    patched = step(model, ids_BT, **inputs)
    torch.testing.assert_close(patched.loss, plain.loss)
    torch.testing.assert_close(patched.gradients, plain.gradients)


def test_weights_wider_than_activations_are_taken_as_under_autocast() -> None:
    model, ids_BT = hf_model("qwen3"), hf_ids("qwen3")
    with torch.autocast("cpu", torch.float16):
        plain = model(ids_BT, labels=ids_BT).loss
        porter.patch(model)
        patched = step(model, ids_BT)
    assert patched.loss.dtype == torch.float32
    torch.testing.assert_close(patched.loss, plain.detach(), rtol=2**-9, atol=0)  # some roundings to float16
    assert all(value.dtype == torch.float32 for value in patched.gradients.values())


# --- types ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["llama", transformers.LlamaForCausalLM])
def test_a_type_patches_its_models_as_they_are_made(named: Any, tmp_path: Path) -> None:
    folder, kind, init = (
        save_tiny("llama", tmp_path),
        transformers.LlamaForCausalLM,
        transformers.LlamaForCausalLM.__init__,
    )
    made_before = transformers.AutoModelForCausalLM.from_pretrained(folder)
    try:
        assert porter.patch(named) is None
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        assert len([*fused_modules(model)]) == 14
        assert [*fused_modules(made_before)] == []
        porter.patch(named, rope=False)  # replaces the first
        assert len([*fused_modules(transformers.AutoModelForCausalLM.from_pretrained(folder))]) == 11
    finally:
        porter.unpatch(named)
    assert kind.__init__ is init
    assert [*fused_modules(transformers.AutoModelForCausalLM.from_pretrained(folder))] == []
    ids_BT = random_ids(tiny("llama"), 16)
    torch.testing.assert_close(model(ids_BT).logits, made_before(ids_BT).logits)


def test_auto_model_loads_patched(tmp_path: Path) -> None:
    model = porter.AutoModelForCausalLM.from_pretrained(save_tiny("gemma", tmp_path), rope=False)
    assert type(model) is transformers.GemmaForCausalLM
    assert {type(module).__name__ for _, module in fused_modules(model)} == {
        "PorterGemmaRMSNorm", "PorterGemmaMLP", "PorterLinear",
    }  # fmt: skip


# --- wrapped models, and what is refused --------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # Inductor's import
def test_wrapped_models_are_patched_within() -> None:
    model = hf_model("llama")
    porter.patch(torch.compile(model))
    assert len([*fused_modules(model)]) == 14
    porter.unpatch(torch.compile(model))
    assert [*fused_modules(model)] == []


def test_verify_compares_and_leaves_a_model_that_differs_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from porter.patching import norms

    model = hf_model("llama")
    made = porter.patch(model, verify=True)
    assert made is not None and made.report is not None and made.report.verdict == "PASS"
    assert str(made).endswith(f"against the model without them: {made.report.sentence}")
    assert made.report.port.details["patched"] == "glu, linear_cross_entropy, rms_norm, rope"
    porter.unpatch(model)
    right = norms.fuse_norm
    monkeypatch.setattr(
        "porter.patching.plan.fuse_norm", lambda module, spec: right(module, spec.model_copy(update={"eps": 1e-3}))
    )
    with pytest.raises(PatchError, match=r"patched, LlamaForCausalLM is another model: FAIL .*attn\.norm"):
        porter.patch(model, verify=True)
    assert [*fused_modules(model)] == []


def test_verify_refuses_modules_that_are_not_huggingfaces() -> None:
    class Own(type(hf_model("llama").model.layers[1].mlp)):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> Any:
            return 100 * super().forward(x)

    model = hf_model("llama")
    model.model.layers[1].mlp.__class__ = Own
    with pytest.raises(PatchError, match=r"verify=True with model\.layers\.1\.mlp: Own is no class of HuggingFace's"):
        porter.patch(model, verify=True)
    assert [*fused_modules(model)] == []


def test_verify_refuses_a_model_without_numbers() -> None:
    model = hf_model("llama").to("meta")
    with pytest.raises(PatchError, match="LlamaForCausalLM is on the device meta, without numbers"):
        porter.patch(model, verify=True)
    assert [*fused_modules(model)] == []


def test_a_head_that_is_wrapped_is_refused_and_the_model_left_as_it_was() -> None:
    class Wrapped(nn.Module):
        def __init__(self, head: nn.Linear) -> None:
            super().__init__()
            self.head = head

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(x) + 1
            return out

    model = hf_model("llama")
    model.lm_head = Wrapped(model.lm_head)
    with pytest.raises(PatchError, match=r"the output head is a \S+ Wrapped, not a torch Linear"):
        porter.patch(model)
    assert [*fused_modules(model)] == []
    assert porter.patch(model, linear_cross_entropy=False) is not None


def test_a_head_with_hooks_is_refused() -> None:
    model = hf_model("llama")
    model.lm_head.register_forward_hook(lambda _module, _args, out: out)
    with pytest.raises(PatchError, match="the output head has hooks"):
        porter.patch(model)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (nn.Linear(2, 2), "Linear is no model of HuggingFace's"),
        ("not-a-type", "no family has model_type 'not-a-type'"),
        (transformers.LlamaModel, "the class LlamaModel"),
    ],
)
def test_what_is_no_model_is_refused(given: Any, message: str) -> None:
    with pytest.raises((PatchError, SpecError, UsageError), match=message):
        porter.patch(given)


def test_float64_has_no_kernels() -> None:
    with pytest.raises(PatchError, match=r"is torch\.float64\n  expected: float32, bfloat16 or float16"):
        porter.patch(hf_model("llama", torch.float64))


def test_a_type_has_no_weights_to_verify() -> None:
    with pytest.raises(PatchError, match="verify=True with the type llama"):
        porter.patch("llama", verify=True)
