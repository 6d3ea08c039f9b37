"""porter specs diff: what differs between two models, in the schema's words."""

import json
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner

from porter.cli.main import cli
from porter.specs.difference import AxisDifference, differences
from porter.specs.family import find_family, find_model, read_family
from porter.specs.resolve import resolve_size
from porter.specs.tree import builtin_spec_names


def between(one: str, other: str) -> dict[str, AxisDifference]:
    models = [find_model(name) for name in (one, other)]
    resolved = [resolve_size(family, size or "tiny") for family, size in models]
    found = list(differences(*resolved, of_families=not any(size for _, size in models)))
    assert len({row.path for row in found}) == len(found)
    return {row.path: row for row in found}


def values(found: dict[str, AxisDifference]) -> dict[str, tuple[str, str]]:
    return {path: (row.one, row.other) for path, row in found.items()}


def test_two_sizes_differ_in_what_their_configs_say() -> None:
    assert values(between("gemma-2b", "gemma-7b")) == {
        "dims.hidden": ("2048", "3072"),
        "dims.layers": ("18", "28"),
        "dims.heads": ("8", "16"),
        "dims.kv_heads": ("1", "16"),
        "dims.ffn": ("16384", "24576"),
        "embed.scale": ("45.2548", "55.4256"),
    }
    scaling = between("llama-3-8b", "llama-3.2-1b")["block.rope.scaling"]
    assert scaling.one == "null" and scaling.other.startswith(
        "llama3, factor 32, original_max_position_embeddings 8192"
    )


def test_two_families_differ_in_conventions_not_in_the_configs_of_their_tiny_sizes() -> None:
    found = between("mistral", "phi3")
    assert {"dims.hidden", "norm.eps", "block.attn.scale", "dims.vocab", "tokenizer.bos_id"}.isdisjoint(found)
    assert values(found)["weights.block.mlp.gate_up"] == ("none", "mlp.gate_up_proj, order [gate, up]")
    row = between("gemma2", "gemma3")["block.attn.qk_norm"]
    assert (row.group, row.meaning) == ("Self-attention and the norms around it", "A norm on q and k; null: none.")


def test_layers_are_counted_and_rules_are_lines() -> None:
    found = between("gemma2", "gemma3")
    assert found["block.attn.window"].other == "128 (5 layers), null (1 layer)"
    assert values(found)["weights.block.attn.q_norm"] == ("none", "self_attn.q_norm")
    gpt2 = values(between("llama", "gpt2"))
    assert gpt2["block.rope"] == ("present", "null") and "block.rope.theta" not in gpt2
    assert gpt2["weights.block.attn.qkv"] == ("none", "attn.c_attn, transpose true, order [q, k, v]")
    assert gpt2["dims.hidden"] == ("=cfg.hidden_size", "=cfg.n_embd")
    assert gpt2["block.mlp.act"][1] == "gelu_new, from =cfg.activation_function"


def test_nothing_differs_from_itself() -> None:
    for name in builtin_spec_names():
        resolved = resolve_size(find_family(name), "tiny")
        assert list(differences(resolved, resolved, of_families=True)) == []


def test_an_axis_that_a_file_sets_is_found(write_family: Callable[..., Path]) -> None:
    one, other = (resolve_size(read_family(write_family(text, name=name)), "tiny")
                  for name, text in (("one", ""), ("other", "norm: {offset: 0}")))  # fmt: skip
    assert [(row.path, row.one, row.other) for row in differences(one, other, of_families=True)] == [
        ("norm.offset", "1", "0")
    ]


def test_the_command_prints_groups_and_json() -> None:
    text = CliRunner().invoke(cli, ["specs", "diff", "gemma-2b", "gemma-7b"]).stdout
    assert text.startswith("Sizes of a model, in elements\n  dims.hidden\n    gemma-2b: 2048\n    gemma-7b: 3072\n")
    assert text.endswith("\n6 differ\n")
    document = json.loads(CliRunner().invoke(cli, ["specs", "diff", "gemma-2b", "gemma-7b", "--json"]).stdout)
    assert (document["schema"], document["one"], len(document["axes"])) == ("porter.specs.diff/1", "gemma-2b", 6)
    assert document["axes"][0]["one"] == "2048"
    assert CliRunner().invoke(cli, ["specs", "diff", "gema", "gemma"]).exit_code == 2
