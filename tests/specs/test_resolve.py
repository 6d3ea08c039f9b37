"""A spec and a config to a blueprint: guards, patterns, weight rules, unread keys, values of every kind."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from porter.errors import PreflightError, SpecError
from porter.specs.blueprint import Blueprint
from porter.specs.family import find_family, find_model, read_family
from porter.specs.overrides import parse_override
from porter.specs.resolve import Resolved, check_config_is_read, resolve, resolve_size

Write = Callable[..., Path]


def resolved(path: Path, **config: Any) -> Resolved:
    family = read_family(path)
    return resolve(family, {**family.size("tiny").config, **config})


def blueprint(path: Path, **config: Any) -> Blueprint:
    return resolved(path, **config).blueprint


def test_a_guard_that_is_false_makes_null(write_family: Write) -> None:
    path = write_family("block: {attn: {qk_norm: {_if: =cfg.x > 2, over: head}}}")
    assert blueprint(path, x=3).blocks[0].attn.qk_norm is not None
    assert blueprint(path, x=1).blocks[0].attn.qk_norm is None
    assert "x" not in resolved(path).unread


def test_a_child_may_take_a_guard_back(write_family: Write) -> None:
    write_family("block: {attn: {qk_norm: {_if: =cfg.x > 2, over: head}}}", name="parent")
    path = write_family("block: {attn: {qk_norm: {_if: true}}}", parent="parent")
    assert blueprint(path, x=1).blocks[0].attn.qk_norm is not None


def test_qk_norm_takes_what_it_lacks_from_norm(write_family: Write) -> None:
    norm = blueprint(write_family("block: {attn: {qk_norm: {over: full, offset: 0}}}")).blocks[0].attn.qk_norm
    assert norm is not None
    assert (norm.over, norm.offset, norm.eps, norm.math) == ("full", 0, 1e-6, "scale_then_cast")


def test_an_explicit_null_is_not_a_default(write_family: Write) -> None:
    path = write_family("config_defaults: {sliding_window: 64}")
    assert blueprint(path).blocks[0].attn.window == 64
    assert blueprint(path, sliding_window=None).blocks[0].attn.window is None


def test_null_deletes_a_pattern_and_a_weight_rule(write_family: Write) -> None:
    assert {block.attn.window for block in blueprint(write_family("patterns: {window: null}")).blocks} == {None}
    assert "attn.q" not in blueprint(write_family("weights: {block: {attn.q: null}}")).weights.block


def test_null_takes_back_what_the_parent_ignores(write_family: Write) -> None:
    assert resolved(write_family(""), hidden_act="gelu").unread == ("x",)
    assert resolved(write_family("ignore_config: {hidden_act: null}"), hidden_act="gelu").unread == ("hidden_act", "x")


def test_replacing_a_map_drops_the_parents_rules(write_family: Write) -> None:
    path = write_family("weights: {block: {_replace: true, attn.norm: a}}")
    assert list(blueprint(path).weights.block) == ["attn.norm"]


@pytest.mark.parametrize("text", ["=1.0*i+1", "= 1.0 + i", "=1.0+(i if i%2 else i)"])
def test_an_expression_may_mention_the_layer(write_family: Write, text: str) -> None:
    blocks = blueprint(write_family(f"block: {{attn: {{scale: '{text}'}}}}")).blocks
    assert [block.attn.scale for block in blocks] == [1, 2, 3, 4]


def test_two_patterns_at_once(write_family: Write) -> None:
    path = write_family("patterns: {ffn: {by: \"=every(2, layers, 'b', 'a')\", cases: {a: {}, b: {mlp: {act: relu}}}}}")
    blocks = blueprint(path, sliding_window=8).blocks
    assert [(block.attn.window, block.mlp.act) for block in blocks] == [(8, "gelu_tanh"), (None, "relu")] * 2


def test_a_case_may_take_rope_away(write_family: Write) -> None:
    path = write_family("patterns: {window: {cases: {full_attention: {rope: null}}}}")
    assert [block.rope is None for block in blueprint(path).blocks] == [False, True, False, True]


def test_expressions_in_lists(write_family: Write) -> None:
    assert blueprint(write_family("tokenizer: {eos_ids: [1, =cfg.x]}")).tokenizer.eos_ids == (1, 3)
    path = write_family("patterns: {window: {by: [full_attention, full_attention, full_attention, sliding_attention]}}")
    assert [block.attn.window is None for block in blueprint(path, sliding_window=8).blocks] == [
        True,
        True,
        True,
        False,
    ]


REFUSED = [
    ("block:\n  mlp: {act: gelux}", 5, "block.mlp.act = 'gelux' is not allowed", "did you mean gelu"),
    ("norm: {eps: '1e-6'}", 4, "norm.eps = '1e-6'", "a number"),
    ("norm: {eps: =cfg.nope}", 4, r"norm.eps = null, from =cfg.nope,", "a number"),
    ("norm: {eps: -1}", 4, "norm.eps = -1", "a number at least 0"),
    ("norm: {eps: .nan}", 4, "norm.eps = nan", "a finite number"),
    ("block: {attn: {scale: true}}", 4, "block.attn.scale = true", "a number"),
    ("block: {rope: {partial: 1.5}}", 4, "block.rope.partial = 1.5", "a number at most 1"),
    ("block: {rope: {theta: 0}}", 4, "block.rope.theta = 0", "a number above 0"),
    ("dims: {ffn: =cfg.nope}", 4, "dims.ffn = '=cfg.nope' is null for this config", "a whole number"),
    ("dims: {hidden: 96.5}", 4, "dims.hidden = 96.5", "a whole number"),
    ("dims: {hidden: =cfg.hidden_size / 2}", 4, "dims.hidden = 48.0, from", "a whole number"),
    (f"dims: {{hidden: 1{'0' * 400}}}", 4, "dims.hidden = 1000", "a number below 2147483648"),
    ("dims: {layers: 1000000}", 4, "dims.layers = 1000000", "a number at most 10000"),
    ("dims: {kv_heads: 3}", 4, "4 heads do not share 3 key/value heads evenly", "values that go together"),
    ("block: {mlp: {pre_norm: shared}}", 4, "mlp.pre_norm shared needs topology: parallel", "values"),
    ("norm: {math: fused}", 4, "kind rms has neither math fused nor a bias", "values"),
    ("block: {attn: {qk_norm: {weight_per_head: true}}}", 4, "weight_per_head needs over: head, kind: layernorm", "go"),
    ("block: {attn: {qk_norm: {over: heads}}}", 4, "qk_norm.over = 'heads'", "one of head, full; did you mean head"),
    ("block: {rope: {scaling: {rope_type: llama4}}}", 4, "rope_type = 'llama4'", "did you mean llama3"),
    ("block: {rope: {scaling: {rope_type: linear, factr: 2}}}", 4, "unknown key 'block.rope.scaling.factr'", "factor"),
    ("block: {rope: {_replace: true, style: half}}", 4, "block.rope.theta has no value", "a value"),
    (
        "patterns:\n  window:\n    by: \"=const('ful_attention', layers)\"",
        6,
        "names the case 'ful_attention'",
        "full_att",
    ),
    ("patterns: {window: {by: \"=const('full_attention', 3)\"}}", 4, "gives 3 cases", "one for each of the 4 layers"),
    ("patterns: {window: {by: full_attention}}", 4, "gives 'full_attention' cases", "one for each"),
    ("patterns: {window: {by: '=const(3, layers)'}}", 4, "names the case 3", "one of full_attention"),
    ("patterns: {x: {cases: {a: {}}}}", 4, "patterns.x lacks by or cases", "both"),
    (
        "patterns: {window: {cases: {sliding_attention:\n  {attn: {window: -3}}}}}",
        5,
        "block.attn.window = -3",
        "above 0",
    ),
    ("requires: ['hidden > 1000']", 4, "does not meet the requirement 'hidden > 1000'", "a config for which it holds"),
    ("requires: ['cfg.nope > 1']", 4, "null and 1 cannot be compared", "names"),
    ("final_norm: =cfg.x", 4, "final_norm = 3", "true or false"),
    ("weights: {layer: model.layers}", 4, r"has no \{i\}", "values"),
    ("weights: {block: {attn.q: {src: a, order: [q]}}}", 4, "the rule of attn.q needs no order", "values"),
    (
        "weights: {block: {attn.qkv: {src: a, order: [q, k]}}}",
        4,
        "the rule of attn.qkv needs the order of k, q, v",
        "values",
    ),
    ("weights: {block: {attn.q: {src: a, groups: 3}}}", 4, "groups = '3'", "one of 1, 4, heads, kv_heads"),
    ("tokenizer: {eos_ids: [a]}", 4, "eos_ids = 'a'", "a whole number"),
]


@pytest.mark.parametrize(("text", "line", "wrong", "expected"), REFUSED, ids=[f"{text[:40]!r}" for text, *_ in REFUSED])
def test_refusals(write_family: Write, text: str, line: int, wrong: str, expected: str) -> None:
    with pytest.raises(SpecError, match=rf"mine\.yaml:{line}: .*{wrong}") as caught:
        resolved(write_family(text), sliding_window=8)
    assert caught.match(rf"expected: .*{expected}")
    assert "Input should" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "96"),
        ("rms_norm_eps", "1e-6"),
        ("tie_word_embeddings", 1),
        ("rope_theta", True),
        ("head_dim", 32.0),
    ],
)
def test_values_of_a_config_are_taken_as_they_are(write_family: Write, key: str, value: Any) -> None:
    with pytest.raises(SpecError, match=r"is not allowed|arithmetic needs numbers|sqrt does not take"):
        resolved(write_family(""), **{key: value})


def test_unread_keys_are_named_and_refused(write_family: Write) -> None:
    made = resolved(write_family(""), foo=1, rope_parameters={"rope_theta": 5.0, "rope_type": "default"})
    assert made.unread == ("foo", "x")
    with pytest.raises(PreflightError, match="nothing reads config keys foo, x") as caught:
        check_config_is_read(made)
    assert caught.value.exit_code == 5


def test_an_unknown_key_of_a_rope_map_is_refused(write_family: Write) -> None:
    with pytest.raises(SpecError, match=r"unknown key 'block\.rope\.scaling\.factr'"):
        resolved(write_family(""), rope_scaling={"type": "linear", "factr": 2.0})
    nested = {"full_attention": {"rope_theta": 5.0, "rope_type": "default"}, "other": {"rope_theta": 1.0}}
    family, size = find_model("gemma-3-270m")
    made = resolve(family, {**family.size(str(size)).config, "rope_parameters": nested})
    assert "rope_parameters.other" in made.unread


def test_bidirectional_and_interleaved_variants_are_refused() -> None:
    for name, key in (
        ("gemma", "use_bidirectional_attention"),
        ("gemma3", "use_bidirectional_attention"),
        ("llama", "rope_interleaved"),
    ):
        family = find_family(name)
        config = family.size("tiny").config
        assert resolve(family, {**config, key: False}).unread == ()
        with pytest.raises(SpecError, match=f"does not meet the requirement 'not first.cfg.{key}"):
            resolve(family, {**config, key: True})


def test_resolving_leaves_the_family_and_the_config_as_they_are() -> None:
    family = find_family("gemma3")
    before, config = repr(family.tree), dict(family.size("tiny").config)
    resolve(family, config, (), {"add_bos": False})
    assert repr(family.tree) == before and config == family.size("tiny").config


def test_a_sizes_tokenizer_wins_over_the_familys() -> None:
    family, size = find_model("smollm2-135m")
    assert resolve_size(family, str(size)).blueprint.tokenizer.add_bos is False
    assert resolve_size(family, "llama-3-8b").blueprint.tokenizer.add_bos is True


def test_equal_specs_have_equal_hashes_and_others_not() -> None:
    family = find_family("gemma")
    config = family.size("tiny").config
    one = resolve(family, config).blueprint.hash
    assert one == resolve(family, dict(config)).blueprint.hash
    assert one != resolve(family, {**config, "rope_theta": 5.0}).blueprint.hash


def test_resolving_gemma_2_9b_takes_less_than_50_ms() -> None:
    family, size = find_model("gemma-2-9b")
    times = []
    for _ in range(5):
        start = time.perf_counter()
        resolve_size(family, str(size))
        times.append(time.perf_counter() - start)
    assert min(times) < 0.05


def test_prefixes_that_are_held_give_what_is_resolved_anew_and_refuse_the_same() -> None:
    family = find_family("llama")
    config = family.size("tiny").config
    texts = ["block.mlp.act=gelu", "norm.eps=1e-3", "block.attn.window=7"]
    overrides = [parse_override(each, family.tree) for each in texts]
    held: dict[tuple[str, ...], Resolved] = {}
    for _ in range(2):
        assert resolve(family, config, overrides, held=held).blueprint == resolve(family, config, overrides).blueprint
    assert set(held) == {(), tuple(texts[:1]), tuple(texts[:2])}
    again = [overrides[0], parse_override("norm.eps=1e-5", family.tree), overrides[2]]
    for _ in range(2):
        with pytest.raises(SpecError, match=r"norm\.eps=1e-5 changes nothing"):
            resolve(family, config, again, held=held)
