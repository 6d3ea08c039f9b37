"""porter specs draft: a hidden family is found again, what needs code is named, nothing is claimed that was not run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from porter.cli.main import cli
from porter.explanation.draft.draft import Draft, draft
from porter.explanation.draft.lists import induce, tell_apart
from porter.explanation.draft.write import flow
from porter.references.unknown import shrink, write_stress
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
        ("qwen3", ["qk_norm: {over: head, when: before_rope}"]),
        ("glm4", ["post_norm"]),
        ("olmo3", ["patterns:"]),
        ("gpt_bigcode", ["attn.c_attn"]),
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


def test_lists_of_the_config_become_expressions() -> None:
    config = {"sliding_window_pattern": 3}
    assert induce(["a", "a", "b", "a", "a", "b"], config) == "every(cfg.sliding_window_pattern, layers, 'b', 'a')"
    assert induce(["b", "a", "a", "b", "a"], {}) == "cycle(['b', 'a', 'a'], layers)"
    assert induce(["a", "a", "b", "b", "b"], {}) == "head(2, layers, 'a', 'b')"
    assert induce(["a", "b", "b", "a", "a", "b", "a"], {}) is None
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
