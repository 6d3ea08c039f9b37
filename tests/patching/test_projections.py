"""Fused projections taken apart: the same model, independent adapters, and the very same weights once fused again."""

from typing import Any

import pytest
import torch
from torch import Tensor

import porter
from porter.comparison.verdicts import FLOORS, THRESHOLDS
from porter.patching.patch import unpatch
from porter.patching.projections import ProjectionError, UnfusedProjection, fuse_back, unfuse
from porter.specs.tree import builtin_spec_names
from tests.models.tiny import porter_cache, tiny
from tests.patching.tiny_hf import Step, golden_step, hf_ids, hf_model, step

__all__ = ["porter_cache"]
_PEFT = "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"


def _is_fused(family: str) -> bool:
    rules = tiny(family).blueprint.weights.block
    return any(name in rules for name in ("attn.qkv", "mlp.gate_up", "moe.shared.gate_up"))


FUSED = [name for name in builtin_spec_names() if _is_fused(name)]


def _together(found: Step, model: Any) -> Step:
    """Gradients of parts as one of the fused weight, under its name."""
    gradients = dict(found.gradients)
    for path, module in model.named_modules():
        if isinstance(module, UnfusedProjection):
            turned = type(module.fused).__name__ == "Conv1D"
            for name in ("weight", "bias"):
                parts: dict[Any, Tensor] = {
                    part: gradients.pop(each)
                    for part in module.layout.order
                    if (each := f"{path}.{part}_proj.{name}") in gradients
                }
                if parts:
                    fused = module.layout.join(parts, dim=0)
                    gradients[f"{path}.{name}"] = fused.T if turned and name == "weight" else fused
    return Step(found.loss, gradients)


def test_every_kind_of_fusion_is_among_the_families() -> None:
    rules = [tiny(family).blueprint.weights.block for family in FUSED]
    assert {"phi3", "glm", "gpt2", "gpt_neox", "falcon", "bloom", "mpt", "granitemoeshared", "dbrx"} <= {*FUSED}
    groups = {block["attn.qkv"].groups for block in rules if "attn.qkv" in block}
    assert groups == {"1", "4", "heads", "kv_heads"}
    assert any(block["attn.qkv"].transpose for block in rules if "attn.qkv" in block)


@pytest.mark.parametrize("family", FUSED)
def test_unfused_is_the_same_model_and_fused_again_it_has_the_same_bits(family: str) -> None:
    model, ids_BT = hf_model(family), hf_ids(family)
    before, state = step(model, ids_BT), {name: value.clone() for name, value in model.state_dict().items()}
    objects = {path: (module, type(module), [*module._parameters.values()]) for path, module in model.named_modules()}
    made = unfuse(model)
    assert made.unfused and not made.left
    unfused = _together(step(model, ids_BT), model)
    golden = golden_step(family, ids_BT)
    limit = THRESHOLDS["gradients"]["float32"]["rho_grad"][0]
    for port, reference in zip(unfused.error(golden), before.error(golden), strict=True):
        assert port <= limit * max(reference, FLOORS["float32"])
    assert unfused.gradients.keys() == before.gradients.keys()
    assert unfuse(model).unfused == ()  # nothing is fused any more
    fuse_back(model)
    assert [*model.state_dict()] == [*state]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(each.stride() == state[name].stride() for name, each in model.state_dict().items())
    now = {path: (module, type(module), [*module._parameters.values()]) for path, module in model.named_modules()}
    assert now.keys() == objects.keys()
    for path, (module, kind, parameters) in objects.items():
        assert now[path][0] is module and now[path][1] is kind
        assert all(one is other for one, other in zip(now[path][2], parameters, strict=True))
    after = step(model, ids_BT)
    assert torch.equal(after.loss, before.loss)
    assert all(torch.equal(after.gradients[name], value) for name, value in before.gradients.items())


def test_what_changed_is_told_in_words() -> None:
    made = unfuse(hf_model("phi3"))
    layers, dims = tiny("phi3").blueprint.dims.layers, tiny("phi3").blueprint.dims
    q, kv, ffn, width = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim, dims.ffn, dims.hidden
    before = layers * 8 * (width + q + 2 * kv + width + 2 * ffn)
    after = before + layers * 8 * 3 * width  # two more A of qkv, one of gate_up
    assert str(made) == (
        f"Phi3ForCausalLM: {2 * layers} fused projections taken apart\n"
        f"  model.layers.*.self_attn.qkv_proj ({layers}): q_proj ({q}), k_proj ({kv}), v_proj ({kv}), "
        f"each reading {width} features\n"
        f"  model.layers.*.mlp.gate_up_proj ({layers}): gate_proj ({ffn}), up_proj ({ffn}), "
        f"each reading {width} features\n"
        f"  LoRA of rank 8 on them: {before} parameters before, {after} after\n"
        "  state dict: <path>.weight is now <path>.<part>.weight until fuse_back\n"
        "  forward: the same products, summed in blocks of other shapes: last bits may differ"
    )


@pytest.mark.filterwarnings(_PEFT)
def test_adapters_on_parts_are_independent_and_merged_into_the_fused_weight() -> None:
    from peft import LoraConfig, get_peft_model

    model, ids_BT = hf_model("phi3"), hf_ids("phi3")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    made = unfuse(model)
    targets = ["q_proj", "v_proj", "up_proj"]
    torch.manual_seed(0)
    adapted: Any = get_peft_model(model, LoraConfig(r=8, target_modules=targets, init_lora_weights=False))
    own = sum(each.numel() for name, each in adapted.named_parameters() if "lora_" in name)
    wanted = [
        (rows, each.width)
        for each in made.unfused
        for path, rows in each.parts.items()
        if path.rpartition(".")[2] in targets
    ]
    assert own == sum(8 * (rows + width) for rows, width in wanted)
    with pytest.raises(ProjectionError, match=r"qkv_proj\.q_proj is a peft Linear\n  expected: the torch Linear"):
        fuse_back(adapted)
    apart = step(adapted, ids_BT).loss
    merged = adapted.merge_and_unload()
    fuse_back(merged)
    assert [*merged.state_dict()] == [*state]
    torch.testing.assert_close(step(merged, ids_BT).loss, apart)
    name = "model.layers.0.self_attn.qkv_proj.weight"
    changed = (merged.state_dict()[name] != state[name]).any(dim=1)
    dims = tiny("phi3").blueprint.dims
    q, kv = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
    assert changed[:q].all() and not changed[q : q + kv].any() and changed[q + kv :].all()  # k had no adapter


@pytest.mark.parametrize("family", ["phi3", "gpt2", "gpt_neox", "glm"])
def test_patched_and_unfused_in_either_order(family: str) -> None:
    plain, ids_BT = hf_model(family), hf_ids(family)
    wanted = step(plain, ids_BT)
    for first, second in ((porter.patch, unfuse), (unfuse, porter.patch)):
        model = hf_model(family)
        first(model)
        second(model)
        found = _together(step(model, ids_BT), model)
        torch.testing.assert_close(found.loss, wanted.loss)
        torch.testing.assert_close(found.gradients, wanted.gradients, rtol=1e-4, atol=1e-5)
        fuse_back(model)
        unpatch(model)
        assert torch.equal(step(model, ids_BT).loss, wanted.loss)


def test_what_is_no_plain_linear_stays() -> None:
    class Linear4bit(torch.nn.Linear):
        """As quantisation libraries make them."""

    model = hf_model("phi3")
    model.model.layers[0].self_attn.qkv_proj.__class__ = Linear4bit
    model.model.layers[0].mlp.gate_up_proj.register_forward_hook(lambda _module, _args, out: out)
    made = unfuse(model)
    assert "not a plain Linear" in made.left["model.layers.0.self_attn.qkv_proj"]
    assert "hooks" in made.left["model.layers.0.mlp.gate_up_proj"]
    assert "model.layers.0.self_attn.qkv_proj left: a" in str(made)
