"""The weight ledger: each tensor used once, or the reason why not."""

import pytest

from porter.errors import WeightError
from porter.specs.blueprint import Blueprint
from porter.specs.family import find_family
from porter.specs.ledger import layout, make_ledger, misfits, rule_for, sources
from porter.specs.resolve import resolve_size
from porter.specs.tree import builtin_spec_names


def tiny(name: str) -> Blueprint:
    return resolve_size(find_family(name), "tiny").blueprint


def shapes(blueprint: Blueprint) -> dict[str, tuple[int, ...]]:
    return {source: entry.shape for entry in layout(blueprint).values() for source in entry.sources}


@pytest.mark.parametrize("name", builtin_spec_names())
def test_a_checkpoint_of_porters_layout_is_used_up(name: str) -> None:
    blueprint = tiny(name)
    ledger = make_ledger(blueprint, shapes(blueprint))
    assert set(ledger.entries) == set(blueprint.parameters())
    assert (ledger.ignored, ledger.twins) == ((), ())


def test_where_a_parameter_lies() -> None:
    blueprint = tiny("llama")
    parameters = blueprint.parameters()
    assert sources(blueprint, parameters["layers.1.attn.q.weight"]) == [("model.layers.1.self_attn.q_proj.weight",)]
    assert rule_for(blueprint, "final_norm")[0].src == ("model.norm",)
    gpt2 = layout(tiny("gpt2"))["layers.0.mlp.up.weight"]
    assert (gpt2.parameter.shape, gpt2.shape) == ((384, 96), (96, 384))  # stored [in, out]


def test_a_bias_may_lie_elsewhere_and_a_source_depend_on_the_config() -> None:
    japanese = {
        entry.source for entry in layout(resolve_size(find_family("gpt_neox_japanese"), "tiny").blueprint).values()
    }
    assert {name for name in japanese if "dense_bias" in name} == {"gpt_neox_japanese.layers.2.attention.dense_bias"}
    assert "gpt_neox_japanese.layers.2.attention.dense.bias" not in japanese
    for size, norms in (("falcon-7b", {"input_layernorm"}), ("falcon-40b", {"ln_attn", "ln_mlp"})):
        falcon = layout(resolve_size(find_family("falcon"), size).blueprint).values()
        assert {entry.source.split(".")[3] for entry in falcon if ".h.0." in entry.source} == {
            *norms, "self_attention", "mlp"
        }  # fmt: skip


def test_a_path_from_the_root_leaves_the_layers_prefix() -> None:
    own, llamas = shapes(tiny("exaone")), shapes(tiny("llama"))
    assert "transformer.h.2.attn.attention.out_proj.weight" in own and "transformer.h.2.mlp.c_fc_0.weight" in own
    blueprint = tiny("exaone")  # as HF saves it from memory: under Llama's names
    renamed = {name: shape for name, shape in llamas.items() if "self_attn" not in name}
    for i in range(3):
        q, kv = (96, 96), (48, 96)
        for part, shape in (("q", q), ("k", kv), ("v", kv), ("o", q)):
            renamed[f"model.layers.{i}.self_attn.{part}_proj.weight"] = shape
            renamed[f"model.layers.{i}.self_attn.{part}_proj.bias"] = shape[:1]
    ledger = make_ledger(blueprint, renamed)
    assert ledger.entries["layers.2.attn.o.weight"].source == "model.layers.2.self_attn.o_proj.weight"
    assert ledger.entries["layers.0.mlp.up.bias"].source == "model.layers.0.mlp.up_proj.bias"


def test_experts_are_stacked_from_a_tensor_each_or_lie_stacked() -> None:
    blueprint = tiny("mixtral")
    files, entry = shapes(blueprint), layout(blueprint)["layers.1.moe.gate_up.weight"]
    prefix = "model.layers.1.block_sparse_moe.experts."
    assert entry.sources[:3] == (f"{prefix}0.w1.weight", f"{prefix}0.w3.weight", f"{prefix}1.w1.weight")
    assert (len(entry.sources), entry.shape, entry.stored) == (16, (64, 96), (8, 128, 96))
    in_memory = {name: shape for name, shape in files.items() if ".experts." not in name}
    for i in range(2):
        in_memory[f"model.layers.{i}.mlp.experts.gate_up_proj"] = (8, 128, 96)
        in_memory[f"model.layers.{i}.mlp.experts.down_proj"] = (8, 96, 64)
    ledger = make_ledger(blueprint, in_memory)
    assert ledger.entries["layers.1.moe.down.weight"].sources == ("model.layers.1.mlp.experts.down_proj",)
    del files[f"{prefix}5.w3.weight"]
    with pytest.raises(WeightError, match=r"moe\.gate_up\.weight \(as .*1\.block_sparse_moe\.experts\.5\.w3\.weight\)"):
        make_ledger(blueprint, files)


def test_prefixes_may_lack_and_alternatives_serve() -> None:
    gpt2 = tiny("gpt2")
    bare = {name.removeprefix("transformer."): shape for name, shape in shapes(gpt2).items()}
    assert set(make_ledger(gpt2, bare).entries) == set(gpt2.parameters())
    neox = tiny("gpt_neox")
    renamed = {name.replace("embed_out", "lm_head"): shape for name, shape in shapes(neox).items()}
    assert make_ledger(neox, renamed).entries["head.weight"].source == "lm_head.weight"


def test_a_stored_head_that_is_tied_is_a_twin() -> None:
    blueprint = tiny("gemma")
    stored = {**shapes(blueprint), "lm_head.weight": (512, 96)}
    assert make_ledger(blueprint, stored).twins == (("lm_head.weight", "model.embed_tokens.weight"),)


def test_what_is_wrong_is_named() -> None:
    blueprint = tiny("llama")
    good = shapes(blueprint)
    less = {name: shape for name, shape in good.items() if "layers.1.self_attn.q_proj.weight" not in name}
    with pytest.raises(WeightError, match=r"1 parameter without a tensor: layers\.1\.attn\.q\.weight"):
        make_ledger(blueprint, less)
    with pytest.raises(WeightError, match=r"1 tensor that no parameter takes: model\.extra"):
        make_ledger(blueprint, {**good, "model.extra": (1,)})
    with pytest.raises(WeightError, match=r"model\.norm\.weight has shape \[5\]"):
        make_ledger(blueprint, {**good, "model.norm.weight": (5,)})
    assert make_ledger(blueprint, {**good, "model.rotary_emb.inv_freq": (8,)}).ignored == ("model.rotary_emb.inv_freq",)


def test_misfits_name_what_does_not_fit() -> None:
    right = shapes(tiny("qwen2"))
    assert misfits(tiny("qwen2"), right) == ()
    missing = {name: shape for name, shape in right.items() if name != "model.norm.weight"}
    other = {**missing, "model.norm.scale": (96,), "model.layers.0.mlp.down_proj.weight": (160, 96)}
    assert misfits(tiny("qwen2"), other) == (
        "final_norm.weight (as model.norm.weight)", "model.norm.scale", "model.layers.0.mlp.down_proj.weight",
    )  # fmt: skip
