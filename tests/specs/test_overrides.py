"""--set: paths, values, patterns, single layers, and changes that change nothing."""

from typing import Any

import pytest

from porter.errors import SpecError
from porter.specs.family import find_model
from porter.specs.overrides import axis_paths, parse_override
from porter.specs.resolve import Resolved, resolve_size


def change(name: str, *texts: str, size: str | None = None) -> Resolved:
    family, found = find_model(name, size)
    return resolve_size(family, found or "tiny", [parse_override(text, family.tree) for text in texts])


def windows(made: Resolved) -> list[int | None]:
    return [block.attn.window for block in made.blueprint.blocks]


@pytest.mark.parametrize("path", ["block.mlp.act", "mlp.act", "act"])
def test_a_path_or_any_end_of_it_that_is_unique(path: str) -> None:
    assert {block.mlp.act for block in change("gemma3", f"{path}=gelu").blueprint.blocks} == {"gelu"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("norm.eps=1e-5", 1e-5),
        ("norm.eps=1e-05", 1e-5),
        ("norm.eps = 0.5", 0.5),
        ("norm.eps==cfg.rms_norm_eps * 2", 2e-6),
        ("norm.eps=1", 1.0),
    ],
)
def test_values(text: str, value: Any) -> None:
    blueprint = change("gemma3", text).blueprint
    assert blueprint.norm.eps == value
    assert blueprint.blocks[0].attn.qk_norm is not None and blueprint.blocks[0].attn.qk_norm.eps == value


def test_whole_maps_and_null() -> None:
    assert change("gemma3", "block.attn.qk_norm=null").blueprint.blocks[0].attn.qk_norm is None
    assert change("llama", "block.attn.qk_norm={over: head}").blueprint.blocks[0].attn.qk_norm is not None
    rope = change("gpt2", "block.rope={theta: 5}").blueprint.blocks[0].rope
    assert rope is not None and rope.theta == 5
    assert change("gemma", "final_norm=false").blueprint.final_norm is False


def test_pattern_cases() -> None:
    case = "patterns.window.cases"
    assert windows(change("gemma3", f"{case}.sliding_attention.attn.window=64")) == [64] * 5 + [None]
    made = change("gemma3", f"{case}.full_attention.attn.softcap=3")
    assert [block.attn.softcap for block in made.blueprint.blocks] == [None] * 5 + [3.0]
    assert windows(change("gemma3", "patterns.window.by==const('full_attention', layers)")) == [None] * 6
    assert windows(change("gemma3", "block.attn.window=5")) == [128] * 5 + [5]


def test_single_layers() -> None:
    made = change("gemma3", "layers[3].attn.softcap=30", "layers[2].attn.scale==1.0 * i", "layers[5].rope=null")
    assert [block.attn.softcap for block in made.blueprint.blocks] == [None, None, None, 30.0, None, None]
    assert made.blueprint.blocks[2].attn.scale == 2.0
    assert [block.rope is None for block in made.blueprint.blocks] == [False] * 5 + [True]


def test_an_override_wins_over_the_tokenizer_of_a_size() -> None:
    assert change("smollm2-135m", "tokenizer.add_bos=true").blueprint.tokenizer.add_bos is True


WITHOUT_EFFECT = [
    (
        "gemma3",
        "block.rope.theta=5",
        r"every layer takes it from patterns\.window\.cases\.sliding_attention\.rope\.theta, "
        r"patterns\.window\.cases\.full_attention\.rope\.theta",
    ),
    ("gemma3", "block.rope=null", r"every layer takes it from patterns\.window\.cases\.sliding_attention\.rope"),
    ("gemma3", "mlp.act=gelu_pytorch_tanh", "the axis has this value already"),
    (
        "qwen2.5-7b",
        "patterns.window.cases.sliding_attention.attn.window=7",
        "no layer takes the case sliding_attention",
    ),
]


@pytest.mark.parametrize(("model", "text", "says"), WITHOUT_EFFECT)
def test_a_change_without_effect_names_what_overrides_it(model: str, text: str, says: str) -> None:
    with pytest.raises(SpecError, match=rf"^--set .* changes nothing: {says}"):
        change(model, text)


def test_only_cases_that_layers_take_are_named() -> None:
    """With every layer local, the global case is no reason."""
    local = "patterns.window.by==const('sliding_attention', layers)"
    with pytest.raises(SpecError, match="every layer takes it from") as caught:
        change("gemma3", local, "block.rope.theta=5")
    assert "sliding_attention.rope.theta" in caught.value.wrong and "full_attention" not in caught.value.wrong


def test_the_second_of_two_equal_changes_is_the_one_without_effect() -> None:
    with pytest.raises(SpecError, match=r"block.mlp.act=gelu changes nothing"):
        change("gemma3", "block.mlp.act=gelu", "block.mlp.act=gelu")


REFUSED = [
    ("block.mlp.act=gelux", "block.mlp.act = 'gelux' is not allowed", "did you mean gelu"),
    ("layers[1].mlp.act=gelux", r"layers\[1\].mlp.act = 'gelux' is not allowed", "did you mean gelu"),
    ("layers[9].mlp.act=gelu", "there is no layer 9", "0 to 5"),
    ("layers[3].attn.scal=1", "no such axis", "did you mean attn.scale"),
    ("layers[-1].mlp.act=gelu", "no axis is called", "did you mean block.mlp.act"),
    ("block.mlp.act", "has no =", "axis=value"),
    ("block.mlp.act=", "has no value", "null is a value"),
    ("block.mlp.act=[a", "expected ',' or ']'", "YAML"),
    ("windw=3", "no axis is called 'windw'", "did you mean block.attn.window"),
    ("foo.bar.baz=3", "no axis", "a path such as"),
    ("block.attn.windw=3", "no axis is called", "did you mean block.attn.window"),
    ("block={}", "no axis is called", "did you mean"),
    ("softcap=3", "2 axes end in softcap", "block.attn.softcap, head.softcap"),
    ("norm.eps==foo", "'foo' is no name", "names"),
    ("norm.eps==first(1", "does not parse", "names"),
    ("head.tied=off", "head.tied = 'off'", "true or false"),
    ("dims.kv_heads=3", "4 heads do not share 3", "values that go together"),
    ("dims.hidden=0", "dims.hidden = 0", "above 0"),
    ("block.attn.scale=true", "block.attn.scale = true", "a number"),
    ("block.mlp.gated=null", "gated = null", "true or false"),
    ("weights.layer=x", "no axis is called", "did you mean"),
    ("block.mlp.act=!!python/object:x 1", "the tag", "a plain value"),
    ("layers[0].attn.qk_norm.math=fused", "kind rms has neither", "values"),
    ("patterns.window.cases.full_attention.attn.windw=3", "no axis is called", "did you mean"),
]


@pytest.mark.parametrize(("text", "wrong", "expected"), REFUSED, ids=[text for text, *_ in REFUSED])
def test_refusals_begin_with_set(text: str, wrong: str, expected: str) -> None:
    with pytest.raises(SpecError, match=rf"^--set .*{wrong}") as caught:
        change("gemma3", text)
    assert caught.match(f"expected: .*{expected}")


def test_a_layers_map_that_is_null_has_no_axes() -> None:
    with pytest.raises(SpecError, match=r"attn\.qk_norm is null in layer 3"):
        change("gemma3", "layers[3].attn.qk_norm=null", "layers[3].attn.qk_norm.eps=1")


def test_every_axis_path_is_one_of_its_own_names() -> None:
    tree = find_model("gemma3", None)[0].tree
    paths = axis_paths(tree)
    assert len(paths) == len(set(paths)) and {
        "block.rope",
        "block.rope.theta",
        "final_norm",
        "patterns.window.by",
    } <= set(paths)
    for path in paths:
        assert parse_override(f"{path}=1", tree).path == path


def test_the_guard_of_a_map_is_no_axis() -> None:
    tree = find_model("exaone4", None)[0].tree
    assert "_if" in tree["patterns"]["window"]["cases"]["full_attention"]["rope"]
    assert [path for path in axis_paths(tree) if path.endswith("_if")] == []


def test_fused_projections_are_taken_apart_otherwise() -> None:
    rules = change("gpt_neox", "weights.block.attn.qkv.groups=1", "order=[v, q, k]").blueprint.weights.block
    assert (rules["attn.qkv"].groups, rules["attn.qkv"].order) == ("1", ("v", "q", "k"))
    assert rules["attn.qkv"].src == ("attention.query_key_value",)  # all else stays
    rules = change("phi3", "weights.block.mlp.gate_up.order=[up, gate]").blueprint.weights.block
    assert rules["mlp.gate_up"].order == ("up", "gate") and rules["attn.qkv"].order == ("q", "k", "v")
    assert find_model("phi3", "tiny")[0].tree["weights"]["block"]["mlp.gate_up"]["order"] == ["gate", "up"]


@pytest.mark.parametrize(
    ("model", "text", "says"),
    [
        ("gpt_neox", "weights.block.attn.qkv.groups=heads", "changes nothing"),
        ("gpt_neox", "weights.block.attn.qkv.groups=2", "one of 1, 4, heads, kv_heads"),
        ("gpt_neox", "weights.block.attn.qkv.order=[q, k]", "needs the order of k, q, v"),
        ("phi3", "weights.block.attn.qkv.groups=heads", "a group for each of 6 heads, but 2 key/value heads"),
        ("phi3", "weights.block.mlp.gate_up.groups=heads", "no axis is called"),  # the code reads none there
        ("llama", "weights.block.attn.q.order=[q]", "no axis is called"),
        ("llama", "weights.block.attn.qkv.src=self_attn.k_proj", "no axis is called"),  # it has no such rule
        ("llama", "weights.block.attn.q.bias=self_attn.k_proj", "no axis is called"),
        ("llama", "weights.block.attn.q.src=self_attn.q_proj", "changes nothing"),
    ],
)
def test_changes_of_fused_projections_that_are_refused(model: str, text: str, says: str) -> None:
    with pytest.raises(SpecError, match="--set weights") as caught:
        change(model, text)
    assert says in str(caught.value)


def test_where_a_rule_finds_its_tensors_can_be_set() -> None:
    changed = change("llama", "weights.block.attn.q.src=self_attn.query")
    assert changed.blueprint.weights.block["attn.q"].src == ("self_attn.query",)
    assert find_model("llama", "tiny")[0].tree["weights"]["block"]["attn.q"] == "self_attn.q_proj"
