"""Blueprints: parameters by name and shape, and the hash."""

import pytest

from porter.errors import SpecError
from porter.specs.blueprint import Blueprint
from porter.specs.family import find_family
from porter.specs.overrides import parse_override
from porter.specs.resolve import resolve_size


def tiny(name: str) -> Blueprint:
    return resolve_size(find_family(name), "tiny").blueprint


def shapes(name: str) -> dict[str, tuple[int, ...]]:
    return {parameter.name: parameter.shape for parameter in tiny(name).parameters().values()}


def test_parameters_in_the_order_of_the_forward_pass() -> None:
    assert list(shapes("gemma2"))[:12] == [
        "embed.weight", "layers.0.attn.norm.weight", "layers.0.attn.post_norm.weight", "layers.0.mlp.norm.weight",
        "layers.0.mlp.post_norm.weight", "layers.0.attn.q.weight", "layers.0.attn.k.weight", "layers.0.attn.v.weight",
        "layers.0.attn.o.weight", "layers.0.mlp.gate.weight", "layers.0.mlp.up.weight", "layers.0.mlp.down.weight",
    ]  # fmt: skip
    assert list(shapes("gemma2"))[-1] == "final_norm.weight"


def test_shapes() -> None:
    qwen3 = shapes("qwen3")
    assert (qwen3["layers.0.attn.q_norm.weight"], qwen3["layers.0.attn.k.weight"]) == ((24,), (48, 96))
    cohere = shapes("cohere")  # a weight for each head
    assert (cohere["layers.0.attn.q_norm.weight"], cohere["layers.0.attn.k_norm.weight"]) == ((4, 24), (2, 24))
    assert shapes("phi3")["layers.0.attn.qkv.weight"] == ((6 + 2 * 2) * 16, 96)
    assert shapes("phi3")["layers.0.mlp.gate_up.weight"] == (320, 96)
    gpt2 = shapes("gpt2")
    assert (gpt2["pos.weight"], gpt2["layers.0.mlp.up.bias"]) == ((1024, 96), (384,))
    assert "layers.0.mlp.gate.weight" not in gpt2 and "head.weight" not in gpt2
    assert shapes("llama")["head.weight"] == (512, 96)


def test_norms_over_all_heads_and_biases() -> None:
    blueprint = tiny("qwen3")
    attn = blueprint.blocks[0].attn
    assert attn.qk_norm is not None
    full = attn.model_copy(update={"qk_norm": attn.qk_norm.model_copy(update={"over": "full"})})
    changed = blueprint.model_copy(update={"blocks": (blueprint.blocks[0].model_copy(update={"attn": full}),)})
    named = changed.parameters()
    assert (named["layers.0.attn.q_norm.weight"].shape, named["layers.0.attn.k_norm.weight"].shape) == ((144,), (48,))
    assert named["layers.0.attn.q_norm.weight"].module == "layers.0.attn.q_norm"


def test_the_hash_is_of_the_values_and_stays_from_run_to_run() -> None:
    blueprint = tiny("gemma3")
    assert blueprint.hash == Blueprint.model_validate(blueprint.model_dump()).hash
    assert blueprint.hash == Blueprint.model_validate_json(blueprint.model_dump_json()).hash
    assert blueprint.hash != blueprint.model_copy(update={"final_norm": False}).hash


def test_skipped_rows_of_the_position_table_are_parameters() -> None:
    assert resolve_size(find_family("opt"), "tiny").blueprint.parameters()["pos.weight"].shape == (1026, 96)


@pytest.mark.parametrize(("partial", "width"), [(0.3, 7), (1e-9, 0)])
def test_a_rotation_is_of_pairs_of_features(partial: float, width: int) -> None:
    family = find_family("gpt_neox")
    override = parse_override(f"block.rope.partial={partial}", family.tree)
    with pytest.raises(SpecError, match=rf"block.rope rotates {width} of the 24 features of a head"):
        resolve_size(family, "tiny", [override])


def test_longrope_has_a_factor_for_each_pair() -> None:
    family = find_family("phi3")
    given = "{rope_type: longrope, short_factor: [1.0], long_factor: [1.0]}"
    with pytest.raises(SpecError, match=r"short_factor has 1 numbers\n  expected: 6, one for each pair of the 12"):
        resolve_size(family, "tiny", [parse_override(f"block.rope.scaling={given}", family.tree)])


@pytest.mark.parametrize(("family", "change"), [
    ("phi3", "weights.block.attn.qkv.groups=rows"), ("phi3", "weights.block.mlp.gate_up.groups=heads"),
])  # fmt: skip
def test_a_fused_projection_repeats_as_its_parts_can(family: str, change: str) -> None:
    found = find_family(family)
    path, _, value = change.partition("=")
    rule = found.tree["weights"]["block"][path.split(".", 2)[2].rpartition(".")[0]]
    rule.put("groups", value, None)
    with pytest.raises(SpecError, match=r"the rule of \w+\.\w+ repeats by (row|head) or once"):
        resolve_size(found, "tiny")
