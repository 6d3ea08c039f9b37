"""The shape of a family file: what is refused before any config is seen, with its line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from porter.errors import SpecError
from porter.specs.family import read_family

REFUSED = [
    ("blocks: {}", 4, "unknown key 'blocks'", "did you mean block"),
    ("block:\n  mlp: {acts: gelu}", 5, "unknown key 'block.mlp.acts'", "did you mean act"),
    ("norm:\n  kind: rms\n  ofset: 1", 6, "unknown key 'norm.ofset'", "did you mean offset"),
    ("dims: {heds: 3}", 4, "unknown key 'dims.heds'", "did you mean heads"),
    ("tokenizer: {bos: 1}", 4, "unknown key 'tokenizer.bos'", "did you mean bos_id"),
    ("norm: {<<: {eps: 1}}", 4, "unknown key 'norm.<<'", "one of affine"),
    ("_if: =cfg.x", 4, "unknown key '_if'", "one of"),
    (
        "patterns: {window: {cases: {sliding_attention:\n  {attn: {windw: 3}}}}}",
        5,
        "unknown key 'patterns.window.cases.sliding_attention.attn.windw'",
        "did you mean window",
    ),
    ("weights: {block: {attn.qnorm: a}}", 4, "unknown key 'weights.block.attn.qnorm'", r"did you mean attn\.q_norm"),
    ("weights: {globals: {embd: a}}", 4, "unknown key 'weights.globals.embd'", "did you mean embed"),
    ("weights: {block: {attn.q: {source: a}}}", 4, "unknown key 'weights.block.attn.q.source'", "did you mean src"),
    ("norm: null", 4, "norm = null", "a map"),
    ("norm: [1]", 4, r"norm = \[1\]", "a map"),
    ("block: abc", 4, "block = 'abc'", "a map"),
    ("block: {attn: null}", 4, r"block\.attn = null", "a map"),
    ("dims: {hidden: {a: 1}}", 4, r"dims\.hidden = a map", "a whole number"),
    ("block: {attn: =cfg.x}", 4, r"block\.attn = '=cfg\.x'", "a map; no expression is read here"),
    ("weights: {layer: =cfg.x}", 4, r"weights\.layer", "text; no expression is read here"),
    ("block: {mlp: {_if: =cfg.x}}", 4, r"block\.mlp = '_if'", "rope, qk_norm, scaling"),
    ("norm: {_if: true}", 4, "norm = '_if'", "_if only in a map that may be null"),
    ("weights: {block: null}", 4, r"weights\.block = null", "a map"),
    ("weights: {strip: model.}", 4, r"weights\.strip", "a list"),
    ("weights: {block: {attn.q: 3}}", 4, r"weights\.block\.attn\.q = 3", "a path, or a map with src"),
    ("weights: {block: {attn.q: {src: 3}}}", 4, r"attn\.q\.src = 3", "text or a list of text"),
    ("weights: {block: {attn.q: {src: a, transpose: 1}}}", 4, "transpose = 1", "true or false"),
    ("requires: cfg.x", 4, "requires = 'cfg.x'", "a list of text"),
    ("requires: [3]", 4, r"requires = \[3\]", "a list of text"),
    ("requires: ['cfg.x = 1']", 4, "does not parse at column 8", "names of config keys"),
    ("requires: ['hiden > 1']", 4, "'hiden' is no name here; did you mean hidden", "names of config keys"),
    ("ignore_config: [a]", 4, "ignore_config", "a map"),
    ("ignore_config: {a: 3}", 4, r"ignore_config\.a = 3", "text or null"),
    ("config_defaults: 3", 4, "config_defaults = 3", "a map"),
    ("final_norm: maybe", 4, "final_norm = 'maybe'", "true or false"),
    ("final_norm: null", 4, "final_norm = null", "true or false"),
    ("block: {mlp: {gated: 'yes'}}", 4, "gated = 'yes'", "true or false"),
    ("head: {tied: off}", 4, "tied = 'off'", "true or false"),
    ("block: {mlp: {gated: 1}}", 4, "gated = 1", "true or false"),
    ("block: {attn: {qk_norm: true}}", 4, "qk_norm = true", "a map or null"),
    ("patterns: {window: {cases: 3}}", 4, r"patterns\.window\.cases = 3", "a map"),
    ("patterns: {window: {by: 3}}", 4, r"patterns\.window\.by = 3", "text or a list of text"),
    ("patterns: {window: {by: [a, 3]}}", 4, r"patterns\.window\.by", "text or a list of text"),
    ("norm: {eps: '=1 if True else foo'}", 4, "'foo' is no name here", "names of config keys"),
    ("norm: {eps: =i}", 4, "'i' is no name here", "names of config keys"),
    ("dims: {vocab: =ffn}", 4, "'ffn' is no name here", "names"),
    ("patterns: {window: {cases: {full_attention: {attn: {scale: =foo}}}}}", 4, "'foo' is no name", "names"),
    ("tokenizer: {eos_ids: [=foo]}", 4, "'foo' is no name", "names"),
]


@pytest.mark.parametrize(("text", "line", "wrong", "expected"), REFUSED, ids=[f"{text[:40]!r}" for text, *_ in REFUSED])
def test_refusals(write_family: Callable[..., Path], text: str, line: int, wrong: str, expected: str) -> None:
    path = write_family(text)
    with pytest.raises(SpecError, match=rf"mine\.yaml:{line}: .*{wrong}") as caught:
        read_family(path)
    assert caught.match(rf"expected: .*{expected}")
    assert "Input should" not in str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "wrong"),
    [
        ("\nsizes: {tiny: null}", r"mine\.yaml:5: sizes\.tiny = null"),
        ("\nsizes: {tiny: {confg: {}}}", r"mine\.yaml:5: unknown key 'sizes\.tiny\.confg'"),
        ("\nsizes: {tiny: {config: [1]}}", r"mine\.yaml:5: sizes\.tiny\.config"),
        ("\nsizes: {tiny: {hf: 3, config: {}}}", r"mine\.yaml:5: sizes\.tiny\.hf = 3"),
        ("\nsizes: []", r"mine\.yaml:5: no 'sizes'"),
        ("", r"mine\.yaml: no 'sizes'"),
    ],
)
def test_sizes(write_family: Callable[..., Path], sizes: str, wrong: str) -> None:
    with pytest.raises(SpecError, match=wrong):
        read_family(write_family("", sizes=sizes))


@pytest.mark.parametrize(
    "text",
    [
        "block: {attn: {qk_norm: {_if: =cfg.x, over: head}}}",
        "block: {rope: =cfg.x}",
        "block: {rope: null}",
        "patterns: {window: null}",
        "patterns: {window: {cases: {full_attention: null}}}",
        "weights: {block: {attn.q: null}}",
        "weights: {block: {attn.q: [a, b]}}",
        "ignore_config: {hidden_act: null}",
        "config_defaults: {a: null, b: {c: 1}}",
        "final_norm: =cfg.x",
        "tokenizer: {eos_ids: [1, =cfg.x]}",
        "tokenizer: {eos_ids: 1}",
        "block: {attn: {scale: =1.0*i}}",
        "block: {rope: {scaling: {type: linear, factor: 2, rope_theta: 3}}}",
        "embed: {scale: null}",
        "requires: ['=cfg.x > 1']",
    ],
)
def test_what_is_allowed(write_family: Callable[..., Path], text: str) -> None:
    path = write_family(text)
    assert read_family(path).path == path
