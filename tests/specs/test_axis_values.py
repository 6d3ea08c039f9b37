"""Every axis with its value in force and what it may be."""

from porter.specs.axis_values import axis_values
from porter.specs.family import find_family
from porter.specs.overrides import axis_paths, parse_override
from porter.specs.resolve import resolve_size

ACTIVATIONS = "silu | gelu | gelu_tanh | gelu_new | gelu_bloom | quick_gelu | relu | relu2 | xielu"


def values(name: str, *texts: str) -> dict[str, tuple[str, str]]:
    family = find_family(name)
    resolved = resolve_size(family, "tiny", [parse_override(text, family.tree) for text in texts])
    rows = list(axis_values(resolved))
    assert [row.path for row in rows] == axis_paths(family.tree)
    return {row.path: (row.value, row.allowed) for row in rows}


def test_values_in_force_and_allowed() -> None:
    rows = values("gemma3")
    assert rows["dims.heads"] == ("4", "whole number > 0")
    assert rows["norm.offset"] == ("1", "0 | 1")
    assert rows["block.mlp.act"] == ("gelu_tanh", ACTIVATIONS)
    assert rows["block.mlp.pre_norm"] == ("true", "true | false | shared")
    assert rows["block.attn.softcap"] == ("null", "number > 0 or null")
    assert rows["block.rope.partial"] == ("1", "number > 0 ≤ 1")
    assert rows["tokenizer.eos_ids"] == ("[1]", "list of whole numbers or null")
    assert rows["final_norm"] == ("true", "true | false")


def test_what_varies_is_told_with_its_layers() -> None:
    rows = values("gemma3")
    assert rows["block.attn.window"][0] == "128 (5 layers), null (1 layers)"
    assert rows["patterns.window.by"] == (
        "sliding_attention (5 layers), full_attention (1 layers)",
        "text | list of text",
    )
    assert rows["patterns.window.cases.full_attention.rope.theta"][0] == "1e+06"
    none = values("gemma3", "patterns.window.by==const('full_attention', layers)")
    assert none["patterns.window.cases.sliding_attention.attn.window"][0] == "no layer takes this case"


def test_axes_of_a_map_that_is_null() -> None:
    rows = values("gpt2")
    assert (rows["block.rope"][0], rows["block.rope.theta"][0]) == ("null", "-")
    assert rows["block.attn.qk_norm.over"][0] == "-"


def test_an_override_shows() -> None:
    assert values("gemma", "block.mlp.act=gelu")["block.mlp.act"][0] == "gelu"
