"""porter build on the command line: what it prints, writes and refuses."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from porter.weights.safetensors_files import INDEX, SINGLE, open_checkpoint, write_checkpoint
from tests.models.checkpoints import change_config, change_tensors, copy_checkpoint, cut
from tests.models.commands import ENVIRONMENT, porter, refused
from tests.models.tiny import porter_cache, save_tiny  # noqa: F401

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"
TINY = ["--size", "tiny"]


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama", tmp_path_factory.mktemp("saved") / "llama")


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return copy_checkpoint(saved, tmp_path / "copy")


def test_a_build_is_recorded_and_named_current() -> None:
    result = porter("build", "gemma3", *TINY, "--tokens", "9", "--set", "block.mlp.act=gelu")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == "gemma3-tiny  gemma3, 6 layers, bfloat16"
    assert "549,600 parameters" in result.stdout and "port only: block.mlp.act=gelu" in result.stdout
    assert "Next: porter diff --reference hf --layers all" in result.stdout
    made = json.loads(Path("builds/gemma3-tiny/build.json").read_text())
    assert Path("builds/current").read_text() == "gemma3-tiny\n"
    assert (made["schema"], made["weights"], made["tokens"]) == ("porter.build/1", "random:stress", 9)
    assert made["overrides"] == ["block.mlp.act=gelu"] and made["config"]["num_hidden_layers"] == 6
    assert [path.name for path in Path("builds/gemma3-tiny").iterdir()] == ["build.json"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_saved_folder_builds_again(dtype: str) -> None:
    assert porter("build", "qwen2", *TINY, "--dtype", dtype, "--save", "out/deep").exit_code == 0
    assert sorted(path.name for path in Path("out/deep").iterdir()) == ["config.json", SINGLE]
    result = porter("build", "out/deep")
    assert result.exit_code == 0 and "qwen2" in result.stdout, result.output
    assert {tensor.dtype for tensor in load_file(f"out/deep/{SINGLE}").values()} == {getattr(torch, dtype)}
    assert porter("build", "qwen2", "--weights", "out/deep").exit_code == 0


def test_a_folder_s_config_with_random_weights(copy: Path) -> None:
    (copy / SINGLE).unlink()
    change_config(copy, num_hidden_layers=3)
    result = porter("build", str(copy), "--weights", "random:stress", "--save", "out/random")
    assert result.exit_code == 0 and "llama, 3 layers" in result.stdout, result.output
    assert "model.layers.2.mlp.up_proj.weight" in open_checkpoint(Path("out/random")).tensors


def test_a_sharded_folder_builds_and_is_saved_whole(saved: Path) -> None:
    whole = open_checkpoint(saved)
    write_checkpoint(Path("shards"), whole.tensors.values(), whole.blocks, shard_bytes=200_000)
    Path("shards/config.json").write_bytes((saved / "config.json").read_bytes())
    assert len(list(Path("shards").glob("*.safetensors"))) > 3 and Path("shards", INDEX).is_file()
    result = porter("build", "./shards", "--save", "again")
    assert result.exit_code == 0, result.output
    tensors, again = load_file(saved / SINGLE), load_file(f"again/{SINGLE}")
    assert tensors.keys() == again.keys() and all(torch.equal(tensors[name], again[name]) for name in tensors)


def test_a_saved_config_is_what_hf_reads() -> None:
    from transformers import AutoConfig

    assert porter("build", "gemma2", *TINY, "--save", "saved").exit_code == 0
    config = AutoConfig.from_pretrained("saved")
    assert (config.model_type, config.num_hidden_layers, config.sliding_window) == ("gemma2", 4, 128)


def test_a_dry_run_prints_and_leaves_nothing_behind() -> None:
    result = porter("build", "gemma-7b", "--dry-run", "--save", "never")
    assert result.exit_code == 0 and "8,537,680,896 parameters" in result.stdout
    assert "Recorded" not in result.stdout and list(Path.cwd().iterdir()) == []


def test_a_dry_run_needs_no_torch() -> None:
    code = (
        "import sys; from porter.cli.main import cli; cli(['build', 'gemma-7b', '--dry-run'], standalone_mode=False);"
        "print('loaded:', *({'torch', 'transformers', 'triton'} & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT)
    assert ran.returncode == 0, ran.stderr
    assert "8,537,680,896" in ran.stdout and ran.stdout.splitlines()[-1].split() == ["loaded:"]


def test_a_spec_file_by_path_has_a_tiny_size() -> None:
    Path("mine.yaml").write_text(
        "extends: gemma3\nmodel_type: gemma3_text\narchitecture: Gemma3ForCausalLM\nsizes:\n  tiny:\n    config:\n"
        "      {vocab_size: 64, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 2,\n"
        "       num_key_value_heads: 1, head_dim: 16, max_position_embeddings: 512, rms_norm_eps: 1.0e-6,\n"
        "       query_pre_attn_scalar: 16, sliding_window: 8, sliding_window_pattern: 2,\n"
        "       rope_theta: 1.0e+6, rope_local_base_freq: 10000.0,\n"
        "       hidden_activation: gelu_pytorch_tanh, bos_token_id: 2, eos_token_id: 1, pad_token_id: 0}\n"
    )
    result = porter("build", "mine.yaml", *TINY)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == "mine-tiny  mine, 2 layers, bfloat16"
    diffed = porter("diff", "--tokens", "20")
    assert diffed.exit_code == 0 and "PASS" in diffed.stdout, diffed.output


USAGE = [
    (["gema3", *TINY], "no family is called 'gema3'", "did you mean gemma3"),
    (["gemma3", "--size", "tinny"], "gemma3 has no size 'tinny'", "tiny"),
    (["gemma3"], "gemma3 has 3 sizes", "Name the size"),
    (["gemma3", *TINY, "--set", "block.mlp.akt=gelu"], "no axis is called 'block.mlp.akt'", "block.mlp.act"),
    (["gemma3", *TINY, "--set", "block.mlp.act=gellu"], "gellu", "gelu"),
    (["gemma3", *TINY, "--set", "block.mlp.act"], "has no =", "axis=value"),
    (["gemma3", *TINY, "--set", "block.mlp.act=gelu_tanh"], "changes nothing", ""),
    (["gemma3", *TINY, "--device", "banana"], "--device 'banana'", "cpu"),
    (["gemma3", *TINY, "--tokens", "0"], "--tokens 0", "1 to 262144"),
    (["gemma3", *TINY, "--weights", "some weights"], "'some weights' is no kind of weights", "a .gguf"),
    (["nowhere/model.yaml"], "nowhere/model.yaml", ""),
]


@pytest.mark.parametrize(("arguments", "wrong", "more"), USAGE, ids=lambda each: " ".join(each) if each else "-")
def test_bad_usage_exits_with_2(arguments: list[str], wrong: str, more: str) -> None:
    refused(porter("build", *arguments), 2, wrong, more)
    assert list(Path.cwd().iterdir()) == []


def test_an_expression_with_a_comma_must_be_quoted() -> None:
    Path("mine.yaml").write_text(
        "extends: llama\nmodel_type: llama\narchitecture: LlamaForCausalLM\n"
        "block:\n  mlp: {act: =first(cfg.hidden_act, 'silu')}\nsizes: {tiny: {config: {hidden_size: 96}}}\n"
    )
    refused(porter("build", "mine.yaml", *TINY), 2, "mine.yaml:5", "uote")


def test_a_config_key_that_nothing_reads_exits_with_5(copy: Path) -> None:
    change_config(copy, attn_temperature_tuning=0.5)
    refused(porter("build", copy), 5, "nothing reads config key attn_temperature_tuning", "ignore_config")


def set_nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors[Q_PROJ][3, 4] = torch.nan


LEDGER = {
    "missing": (lambda tensors: tensors.pop(Q_PROJ), [Q_PROJ]),
    "extra": (lambda tensors: tensors.update({"model.layers.0.extra.weight": torch.ones(2)}), ["layers.0.extra"]),
    "wrong shape": (lambda tensors: tensors.update({Q_PROJ: torch.ones(96, 95)}), [Q_PROJ, "[96, 95]", "[96, 96]"]),
    "NaN": (set_nan, [Q_PROJ, "1 values that are NaN or infinite"]),
}


@pytest.mark.parametrize("case", LEDGER)
def test_tensors_that_do_not_fit_exit_with_5(copy: Path, case: str) -> None:
    change, parts = LEDGER[case]
    change_tensors(copy, change)
    refused(porter("build", copy), 5, *parts)
    assert not Path("builds").exists()
    refused(porter("diff", copy, "--tokens", "4"), 5, *parts)
    assert not Path("diff_reports").exists()


def test_another_family_s_checkpoint_exits_with_5(copy: Path) -> None:
    refused(porter("build", "mistral", "--weights", copy), 5, "has model_type 'llama'", "'mistral'")


def test_a_truncated_checkpoint_exits_with_3(copy: Path) -> None:
    cut(copy / SINGLE)
    refused(porter("build", copy), 3, f"{SINGLE} is truncated", "bytes that its header says")


NO_CHECKPOINT = {
    "empty": b"",
    "LFS pointer": b"version https://git-lfs.github.com/spec/v1\n",
    "junk": b"\x08" + b"\0" * 7,
}


@pytest.mark.parametrize("case", NO_CHECKPOINT)
def test_a_file_that_is_no_checkpoint_exits_with_3(copy: Path, case: str) -> None:
    (copy / SINGLE).write_bytes(NO_CHECKPOINT[case] + b"not json" * (case == "junk"))
    refused(porter("build", copy), 3, SINGLE)


def test_a_missing_shard_exits_with_3(copy: Path) -> None:
    tensors = load_file(copy / SINGLE)
    (copy / SINGLE).unlink()
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    save_file(tensors, copy / first)
    weight_map = dict.fromkeys(tensors, first) | {Q_PROJ: second}
    (copy / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    refused(porter("build", copy), 3, f"lacks {second}", Q_PROJ)


NO_GGUF = {
    "cut": b"GGUF",
    "cut later": b"GGUF\x03\0\0\0" + b"\x05\0\0\0\0\0\0\0" * 2,
    "empty": b"",
    "junk": b"text" * 9,
}


@pytest.mark.parametrize("case", NO_GGUF)
def test_a_truncated_gguf_exits_with_3(case: str) -> None:
    Path("model.gguf").write_bytes(NO_GGUF[case])
    refused(porter("build", "llama", "--weights", "model.gguf"), 3, "model.gguf")


def test_a_missing_gguf_exits_with_3() -> None:
    refused(porter("build", "llama", "--weights", "gone.gguf"), 3, "gone.gguf: No such file")


def test_a_folder_without_a_config_exits_with_3(copy: Path) -> None:
    (copy / "config.json").unlink()
    refused(porter("build", copy), 3, "config.json")
    refused(porter("build", "llama", "--weights", copy), 3, "config.json")


@pytest.mark.parametrize("content", ["{", "[1, 2]", "\x00"], ids=["cut", "list", "zero byte"])
def test_a_corrupt_config_exits_with_3(copy: Path, content: str) -> None:
    (copy / "config.json").write_text(content)
    refused(porter("build", copy), 3, "config.json: not")


@pytest.mark.parametrize("place", ["file/below", "/proc/porter/out"])
def test_a_save_that_cannot_be_written_exits_with_2(place: str) -> None:
    Path("file").write_text("in the way")
    refused(porter("build", "llama", *TINY, "--save", place), 2, "cannot be written", "--save")


def test_a_save_never_overwrites(copy: Path) -> None:
    before = (copy / SINGLE).read_bytes()
    refused(porter("build", "llama", *TINY, "--save", copy), 2, "holds a checkpoint already")
    assert (copy / SINGLE).read_bytes() == before


def test_builds_that_cannot_be_recorded_exit_with_2() -> None:
    Path("builds").write_text("in the way")
    refused(porter("build", "llama", *TINY), 2, "builds/llama-tiny cannot be written")


def test_a_hub_that_cannot_be_reached_exits_with_3_at_once_and_names_the_other_kinds() -> None:
    environment = ENVIRONMENT | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": os.getcwd()}
    start = time.monotonic()
    command = [sys.executable, "-m", "porter", "build", "gemma-7b"]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert time.monotonic() - start < 30 and ran.returncode == 3, ran.stderr
    assert "google/gemma-7b cannot be reached" in ran.stderr and "Traceback" not in ran.stderr
    for kind in ("a folder", "a .gguf file", "demo", "random", "random:stress"):
        assert kind in ran.stderr
