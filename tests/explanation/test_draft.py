"""porter specs draft: a hidden family is found again, what needs code is named, nothing is claimed that was not run."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from porter.cli.main import cli
from porter.explanation.draft.draft import Draft, draft
from porter.explanation.draft.experts import find_experts
from porter.explanation.draft.layout import Layout, find_blockers, take_apart
from porter.explanation.draft.lists import induce, tell_apart
from porter.explanation.draft.per_layer import tell_layers
from porter.explanation.draft.pool import make_pool
from porter.explanation.draft.roles import Roles
from porter.explanation.draft.vectors import add_vectors, bias_beside
from porter.explanation.draft.write import flow
from porter.references.unknown import shrink, write_stress
from porter.specs.alternatives import alternatives
from porter.specs.expressions import Config
from porter.specs.family import find_family, read_family
from porter.specs.located import read_value
from porter.specs.resolve import resolve_size
from porter.weights.headers import read_shapes


def drafted(name: str, folder: Path) -> Draft:
    """The draft of a family's tiny checkpoint, as HF makes it, by what the other families know."""
    family = find_family(name)
    config = {**family.size("tiny").config, "model_type": family.tree["model_type"]}
    write_stress(config, folder, seed=1)
    about = {**config, "architectures": [family.tree["architecture"]]}
    (folder / "config.json").write_text(json.dumps(about), encoding="utf-8")
    return draft(folder, hidden=[name])


@pytest.mark.parametrize(
    ("family", "lines"),
    [
        ("qwen3", []),
        ("glm4", ["post_norm"]),
        ("olmo3", ["patterns:"]),
        ("gpt_bigcode", ["attn.c_attn"]),
        ("apertus", ["mlp.act: mlp.act_fn"]),
        ("exaone", ["/model.layers.{i}.mlp.gate_proj"]),  # HF renames its tensors as it loads them
        ("flex_olmo", ["num_experts"]),  # a mixture of experts like no parent's
        ("youtu", ["extends: deepseek_v3", "moe: null"]),
    ],
)
def test_a_hidden_family_is_found_again(family: str, lines: list[str], tmp_path: Path) -> None:
    found = drafted(family, tmp_path)
    assert (found.exact, found.stuck, found.blockers) == (True, None, {}), found.undecided
    assert "bit-equal with HF, layers and logits, in float32 and bfloat16" in found.text.splitlines()[1]
    assert [line for line in lines if line not in found.text] == []
    path = tmp_path / "found.yaml"
    path.write_text(found.text, encoding="utf-8")
    again, right = (resolve_size(each, "tiny").blueprint for each in (read_family(path), find_family(family)))
    assert again.blocks == right.blocks and (again.norm, again.embed, again.head) == (
        right.norm,
        right.embed,
        right.head,
    )


def write_names(folder: Path, names: dict[str, tuple[int, ...]], **config: Any) -> Path:
    save_file({name: torch.zeros(shape) for name, shape in names.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


LLAMA = {
    "model.embed_tokens.weight": (64, 32), "model.norm.weight": (32,), "lm_head.weight": (64, 32),
    **{f"model.layers.{i}.{name}.weight": shape for i in range(2) for name, shape in {
        "input_layernorm": (32,), "self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32),
        "self_attn.v_proj": (16, 32), "self_attn.o_proj": (32, 32), "post_attention_layernorm": (32,),
        "mlp.gate_proj": (48, 32), "mlp.up_proj": (48, 32), "mlp.down_proj": (32, 48)}.items()},
}  # fmt: skip
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "hidden_act": "silu",
}  # fmt: skip


def test_what_hf_does_not_know_is_drafted_by_names_and_says_that_nothing_was_run(tmp_path: Path) -> None:
    found = draft(write_names(tmp_path, LLAMA, model_type="nobody", **SIZES))
    assert found.exact is None and found.undecided[0].startswith(
        "transformers has no causal model of model_type 'nobody'"
    )
    path = tmp_path / "found.yaml"
    path.write_text(found.text, encoding="utf-8")
    assert "by names and shapes alone; nothing was run" in found.text
    blueprint = resolve_size(read_family(path), "tiny").blueprint
    assert {name: each.shape for name, each in blueprint.parameters().items()}["layers.1.attn.k.weight"] == (16, 32)
    result = CliRunner().invoke(cli, ["specs", "draft", str(tmp_path)])
    assert result.exit_code == 4 and result.stdout == found.text
    assert result.stderr.splitlines()[-1] == f"nobody, from {found.parent}: nothing was run"


def test_an_architecture_that_needs_code_is_named_with_its_tensor(tmp_path: Path) -> None:
    names = {"backbone.layers.0.mixer.A_log": (64, 16), "backbone.layers.0.mixer.conv1d.weight": (64, 1, 4)}
    result = CliRunner().invoke(cli, ["specs", "draft", str(write_names(tmp_path, names, model_type="mamba"))])
    assert (result.exit_code, result.stdout) == (4, "")
    lines = result.stderr.splitlines()
    assert lines[0].startswith("needs code: a state-space mixer (Mamba), as backbone.layers.0.mixer.A_log shows")
    assert lines[-1] == "no file: mamba needs code"


def test_a_header_or_an_index_will_do(tmp_path: Path) -> None:
    whole = (write_names(tmp_path, LLAMA) / "model.safetensors").read_bytes()
    length = 8 + int.from_bytes(whole[:8], "little")
    (tmp_path / "model.safetensors").write_bytes(whole[:length])
    assert read_shapes(tmp_path) == LLAMA
    (tmp_path / "model.safetensors").unlink()
    index = {"weight_map": dict.fromkeys(LLAMA, "model-00001-of-00002.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert read_shapes(tmp_path) == dict.fromkeys(LLAMA)


def test_a_mixer_that_families_have_needs_no_more_code() -> None:
    tensors = {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight": (8, 8), "model.layers.0.mixer.A_log": (4, 4)}
    assert list(find_blockers(tensors, ())) == ["a state-space mixer (Mamba)", "latent attention (MLA)"]
    assert list(find_blockers(tensors, make_pool().mixers)) == ["a state-space mixer (Mamba)"]
    assert make_pool(["deepseek_v3"]).mixers == frozenset()


def test_what_some_layers_have_becomes_an_expression() -> None:
    names = {
        "cfg": Config({"first_k_dense_replace": 1, "mlp_only_layers": [0, 2], "kinds": ["a", "b", "b"]}),
        "layers": 3,
    }
    assert tell_layers((False, True, True), names, []) == "=i >= cfg.first_k_dense_replace"
    assert tell_layers((False, True, False), names, []) == "=i not in cfg.mlp_only_layers"
    assert tell_layers((True, False, True), names, ["=i in cfg.mlp_only_layers"]) == "=i in cfg.mlp_only_layers"
    names = {"cfg": Config({"kinds": ["a", "b", "b", "a"]}), "layers": 4}
    assert tell_layers((True, False, False, True), names, ["=i > 9", None]) == "=cfg.kinds[i] == 'a'"
    names = {"cfg": Config({}), "layers": 4}
    assert tell_layers((False, False, False, True), names, []) == "=i == layers - 1"
    assert tell_layers((True, False, False, True), names, []) == "=i in [0, 3]"


def layer_of(**names: tuple[int, ...]) -> Layout:
    found = take_apart({f"model.layers.{i}.{name}": shape for i in range(2) for name, shape in names.items()})
    assert found is not None
    return found


def test_experts_are_read_however_they_lie() -> None:
    flat = layer_of(
        **{"ffn.router.layer.weight": (4, 8), **{f"ffn.experts.mlp.{name}": (24, 8) for name in ("w1", "v1", "w2")}}
    )
    found = find_experts(flat, Roles(), 8)
    assert found is not None and (found.count, found.ffn) == (4, 6)
    assert found.rules["moe.down"] == {"src": "ffn.experts.mlp.w2!", "flat": True, "transpose": True}
    square = layer_of(
        **{"mlp.router.weight": (4, 8), "mlp.experts.gate_up_proj": (4, 8, 8), "mlp.experts.down_proj": (4, 4, 8)}
    )
    found = find_experts(square, Roles(), 8)
    assert found is not None and found.rules["moe.gate_up"]["transpose"] is True and found.ffn == 4
    shared = layer_of(**{
        "moe.router.weight": (4, 8), "moe.input_linear.weight": (4, 12, 8), "moe.output_linear.weight": (4, 8, 6),
        "shared_mlp.input_linear.weight": (20, 8), "shared_mlp.output_linear.weight": (8, 10),
    })  # fmt: skip
    found = find_experts(shared, Roles(), 8)
    assert found is not None and (found.shared_ffn, found.layers) == (10, (True, True))
    assert found.rules["moe.shared.gate_up"] == {"src": "shared_mlp.input_linear", "order": ["gate", "up"]}


def test_tensors_beside_the_projections_have_roles() -> None:
    names = {"attn.sinks": (4,), "attn.dense.weight": (8, 8), "attn.dense_bias": (8,)}
    heads = {f"attn.q_layernorm.norms.{i}.weight": (2,) for i in range(4)}
    layout, roles = layer_of(**names, **heads), Roles()
    add_vectors(roles, layout, 4)
    assert roles.slots == {"attn.sinks": "attn.sinks!", "attn.q_norm": "attn.q_layernorm.norms.{h}"}
    assert layout.modules()["attn.q_layernorm.norms.{h}"] == {"weight": (4, 2)}
    assert bias_beside(layout, "attn.dense") == "attn.dense_bias" and bias_beside(layout, "attn.q") is None


def test_the_changes_of_a_router_end() -> None:
    mixtral = resolve_size(find_family("mixtral"), "tiny")
    found = [*islice(alternatives(mixtral, 0, "layer"), 2000)]
    assert len(found) < 2000
    orders = {each.other for each in found if each.path == "block.moe.router.order"}
    assert orders == {"topk_then_score"}


def test_a_draft_that_has_no_file_says_what_to_do(tmp_path: Path) -> None:
    wrong = {**SIZES, "hidden_size": "wide"}
    result = CliRunner().invoke(cli, ["specs", "draft", str(write_names(tmp_path, LLAMA, model_type="llama", **wrong))])
    lines = result.stderr.splitlines()
    assert result.exit_code == 4 and "'hidden_size' expected int, got str" in lines[0]
    assert lines[0].endswith("Correct config.json.")
    found = draft(write_names(tmp_path, LLAMA))
    assert found.undecided[0].startswith("config.json has no model_type: nothing was run")
    assert "extends: <the family" in found.undecided[-1] and not found.text


def test_lists_of_the_config_become_expressions() -> None:
    config = {"sliding_window_pattern": 3}
    assert induce(["a", "a", "b", "a", "a", "b"], config) == "every(cfg.sliding_window_pattern, layers, 'b', 'a')"
    assert induce(["b", "a", "a", "b", "a"], {}) == "cycle(['b', 'a', 'a'], layers)"
    assert induce(["a", "a", "b", "b", "b"], {}) == "head(2, layers, 'a', 'b')"
    assert induce(["a", "b", "b", "a", "a", "b", "a"], {}) is None
    nested = {"attention_types": [[["global", "local"], 2]]}
    assert induce(["global", "local"] * 2, nested) == "cycle(cfg.attention_types[0][0], layers)"
    by, cases = tell_apart("no_rope_layers", [1, 0, 1, 0], {})
    assert by == "=flags(cfg.no_rope_layers, 'on', 'off') if cfg.no_rope_layers else every(2, layers, 'off', 'on')"
    assert cases == ["on", "off", "on", "off"]


@pytest.mark.parametrize(
    "value", [None, True, 3, 1e-5, 1e22, "=first(cfg.a, 1)", "on", "a.b_c", "5.24.0", {"a": [1, "no"]}, "model.{i}"]
)
def test_a_written_value_reads_back(value: Any) -> None:
    assert read_value(flow(value), "--set x") == value


def test_a_large_config_is_made_small(tmp_path: Path) -> None:
    large = {**find_family("llama").size("llama-3-8b").config, "model_type": "llama"}
    small = shrink(large)
    assert (small["num_hidden_layers"], small["num_attention_heads"], small["num_key_value_heads"]) == (4, 4, 1)
    tiny = {**find_family("llama").size("tiny").config, "model_type": "llama"}
    assert shrink(tiny) == tiny
