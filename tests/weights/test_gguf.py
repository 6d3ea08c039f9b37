"""Tiny random models are written as GGUF the way llama.cpp does, by gguf-py's own name map, and converted back.

The reference is transformers' own GGUF loader, bit for bit; gemma, which it lacks, is held to the model written.
"""

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from porter.errors import ArtifactError
from porter.weights.gguf import GgufFile, convert_gguf, read_gguf
from porter.weights.gguf.architectures import ARCHITECTURES
from porter.weights.gguf.convert import uninterleave
from porter.weights.safetensors_files import open_checkpoint

QUANTIZATIONS = {kind.name: kind for kind in gguf.GGMLQuantizationType}
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "num_attention_heads": 4, "vocab_size": 320,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
WIDE = {"head_dim": 32, "rms_norm_eps": 1e-6, "tie_word_embeddings": True}
ROPE = {"rope_type": "default", "rope_theta": 500000.0}
WINDOW = {"sliding_window": 8}
ZEROS = np.zeros((2, 2), np.float32)
TINY: dict[str, dict[str, Any]] = {
    "llama": SIZES | {"rope_parameters": ROPE, "rms_norm_eps": 1e-5, "tie_word_embeddings": False},
    "qwen2": SIZES | {"rope_parameters": ROPE, "tie_word_embeddings": True},
    # transformers' loader reads neither Qwen3's head_dim nor GPT-2's sizes: they keep those it falls back to
    "qwen3": SIZES | WIDE | {"rope_parameters": ROPE, "head_dim": 128},
    "gemma": SIZES | WIDE | {"rope_parameters": ROPE},
    "gemma2": SIZES | WIDE | WINDOW | {"rope_parameters": ROPE, "query_pre_attn_scalar": 32},
    "gemma3": SIZES | WIDE | WINDOW | {
        "query_pre_attn_scalar": 32,
        "rope_parameters": {
            "full_attention": ROPE,
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "phi3": SIZES | {"rope_parameters": ROPE | {"partial_rotary_factor": 0.5}, "tie_word_embeddings": False},
    "gpt2": {
        "n_embd": 64, "n_inner": 256, "n_layer": 3, "n_head": 4, "n_positions": 1024, "vocab_size": 320,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": True,
    },
}  # fmt: skip


def tiny_model(architecture: str, **changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(ARCHITECTURES[architecture].model_type, **TINY[architecture] | changes)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # biases start at 0 and norms at a constant, which would hide what is done to them
        for parameter in model.parameters():
            parameter.normal_()
    return model.eval()


# --- as llama.cpp writes


def interleave(w: np.ndarray, num_heads: int) -> np.ndarray:
    return w.reshape(num_heads, 2, -1, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def llama_values(name: str, w: np.ndarray, config: Any) -> np.ndarray:
    heads = {".q_proj.": config.num_attention_heads, ".k_proj.": config.num_key_value_heads}
    return next((interleave(w, heads[part]) for part in heads if part in name), w)


def gemma_values(name: str, w: np.ndarray, config: Any) -> np.ndarray:
    return w + 1 if name.endswith("norm.weight") else w


def gpt2_values(name: str, w: np.ndarray, config: Any) -> np.ndarray:
    return w.T.copy() if ".c_" in name and w.ndim == 2 else w


VALUES: dict[str, Callable[[str, np.ndarray, Any], np.ndarray]] = {
    "llama": llama_values, "gemma": gemma_values, "gemma2": gemma_values, "gemma3": gemma_values, "gpt2": gpt2_values,
}  # fmt: skip


def write_sizes(writer: gguf.GGUFWriter, architecture: str, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    if architecture == "gpt2":
        writer.add_feed_forward_length(config.n_inner)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    if "gemma" in architecture and architecture != "gemma":
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def sentencepiece(writer: gguf.GGUFWriter, spaces: str) -> None:
    pieces = ["▁", *"abcdehlnorst0123,.", "▁t", "he", "▁the", "▁a", "an", "▁an", spaces, "ll", "llo", "hello", "▁hello"]
    tokens = ["<pad>", "<s>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "<tool>"]
    tokens += [f"<unused{i}>" for i in range(320 - len(tokens))]
    kinds = [3, 3, 3, 2, *[6] * 256, *(4 if piece == "  " else 1 for piece in pieces), 4] + [3] * 320
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([float(-index) for index in range(320)])
    writer.add_token_types(kinds[:320])
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(True)


def byte_level(writer: gguf.GGUFWriter, pre: str) -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    merges = ["Ġ t", "h e", "Ġt he", "l l", "ll o", "he llo", "1 2", "12 3"]
    tokens = [
        "<pad>",
        "<s>",
        "</s>",
        "<|im start|>",
        *alphabet,
        *(merge.replace(" ", "") for merge in merges),
        "<tool>",
    ]
    kinds = [3, 3, 3, 3, *[1] * (len(alphabet) + len(merges)), 4] + [5] * 320
    tokens += [f"[PAD{i}]" for i in range(len(tokens), 320)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds[:320])
    writer.add_token_merges(merges)


def write_vocabulary(writer: gguf.GGUFWriter, architecture: str, pre: str | None) -> None:
    if pre is None:
        sentencepiece(writer, spaces="  " if "gemma" in architecture else "▁▁")  # Gemma's runs are spelled so
    else:
        byte_level(writer, pre)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)


PRE = {"qwen2": "qwen2", "qwen3": "qwen2", "gpt2": "gpt-2"}  # the others have sentencepiece vocabularies


def write_gguf(path: Path, architecture: str, model: PreTrainedModel, quantization: str = "F32", **extra: Any) -> None:
    """`extra`: metadata of the architecture, `pre`, or float32 tensors."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    write_sizes(writer, architecture, config)
    write_vocabulary(writer, architecture, extra.pop("pre", PRE.get(architecture)))
    for key, value in extra.items():
        if isinstance(value, np.ndarray):
            writer.add_tensor(key.replace("__", "."), value)
        else:
            add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
            add[type(value)](f"{architecture}.{key.replace('__', '.')}", value)
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[architecture], config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = VALUES.get(architecture, lambda name, w, config: w)(name, tensor.numpy(), config)
        kind = QUANTIZATIONS[quantization if values.ndim == 2 else "F32"]
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(stored, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def refusal(path: Path, folder: Path) -> ArtifactError:
    with pytest.raises(ArtifactError) as caught:
        convert_gguf(path, folder)
    assert caught.value.exit_code == 3
    assert not folder.exists()
    return caught.value


# --- weights and config


LOADABLE = sorted(ARCHITECTURES.keys() - {"gemma"})  # by transformers' own loader


@pytest.mark.parametrize(
    "architecture, quantization",
    [*((name, "Q8_0") for name in LOADABLE), *(("llama", kind) for kind in ("F32", "F16", "BF16", "Q4_0", "Q5_1"))],
)
def test_tensors_are_those_transformers_reads(tmp_path: Path, architecture: str, quantization: str) -> None:
    write_gguf(tmp_path / "tiny.gguf", architecture, tiny_model(architecture), quantization)
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf")
    checkpoint = open_checkpoint(tmp_path / "hf")
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32).state_dict()
    tied = AutoConfig.from_pretrained(tmp_path / "hf").tie_word_embeddings
    assert reference.keys() - checkpoint.tensors.keys() == ({"lm_head.weight"} if tied else set())
    for name, info in checkpoint.tensors.items():
        assert info.dtype == "F32"
        assert torch.equal(checkpoint.read(name), reference[name]), name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_model_written_comes_back(tmp_path: Path, architecture: str) -> None:
    model = tiny_model(architecture)
    write_gguf(tmp_path / "tiny.gguf", architecture, model)
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf")
    port = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert type(port) is type(model) and port.dtype == torch.float32
    for name, tensor in model.state_dict().items():
        # (w + 1) - 1 in float32 is w up to half a step of w + 1
        exact = not (architecture.startswith("gemma") and name.endswith("norm.weight"))
        torch.testing.assert_close(port.state_dict()[name], tensor, rtol=0, atol=0 if exact else 2.0**-21)
    ids = torch.arange(40)[None]
    with torch.no_grad():
        torch.testing.assert_close(port(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_config_written_comes_back(tmp_path: Path, architecture: str) -> None:
    config = tiny_model(architecture).config
    write_gguf(tmp_path / "tiny.gguf", architecture, tiny_model(architecture))
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf")
    converted = AutoConfig.from_pretrained(tmp_path / "hf").to_dict()
    assert converted.pop("architectures") == [ARCHITECTURES[architecture].hf_class]
    told_otherwise = {"architectures", "dtype", "_name_or_path", "transformers_version", "attention_bias", "head_dim"}
    for key, value in config.to_dict().items():
        if key not in told_otherwise:
            assert converted[key] == value, key
    assert getattr(config, "head_dim", None) in (converted.get("head_dim"), None)


def test_biases_of_q_and_k_are_reordered_too(tmp_path: Path) -> None:
    model = tiny_model("llama", attention_bias=True, mlp_bias=True)
    write_gguf(tmp_path / "tiny.gguf", "llama", model)
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf")
    port = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").state_dict()
    assert all(torch.equal(port[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("architecture, num_layers", [("gemma2", 46), ("gemma3", 62)])
def test_the_27b_models_scale_their_scores_by_another_width(tmp_path: Path, architecture: str, num_layers: int) -> None:
    write_gguf(tmp_path / "tiny.gguf", architecture, tiny_model(architecture, num_hidden_layers=num_layers))
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf")
    assert AutoConfig.from_pretrained(tmp_path / "hf").query_pre_attn_scalar == 64 // 4


def test_eps_is_the_decimal_that_was_meant(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "gemma3", tiny_model("gemma3"))
    assert read_gguf(tmp_path / "tiny.gguf").metadata["gemma3.attention.layer_norm_rms_epsilon"] != 1e-6
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["rms_norm_eps"] == 1e-6


def test_uninterleave_undoes_llama_cpp() -> None:
    w = torch.arange(24).view(12, 2)
    assert torch.equal(uninterleave(torch.from_numpy(interleave(w.numpy(), 2)), head_dim=6), w)
    assert uninterleave(torch.tensor([0, 3, 1, 4, 2, 5]), head_dim=6).tolist() == list(range(6))


def test_blocks_keep_whole_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "tiny.gguf", "llama", tiny_model("llama"), "Q8_0")
    file = read_gguf(tmp_path / "tiny.gguf")
    whole = file.read("blk.0.attn_q.weight")
    monkeypatch.setattr("porter.weights.gguf.reader._BLOCK_BYTES", 20 * 4 * 64)  # 20 rows
    blocks = list(file.blocks("blk.0.attn_q.weight", row_multiple=16))
    assert [len(block) for block in blocks] == [16, 16, 16, 16]
    assert torch.equal(torch.cat(blocks), whole)
    assert [len(block) for block in file.blocks("blk.0.attn_q.weight")] == [20, 20, 20, 4]


# --- RoPE scaling, which a loader may drop without a sound


def converted_rope(tmp_path: Path, architecture: str, model: PreTrainedModel, **extra: Any) -> Any:
    write_gguf(tmp_path / "tiny.gguf", architecture, model, **extra)
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf")
    return AutoConfig.from_pretrained(tmp_path / "hf").rope_parameters


@pytest.mark.parametrize("factor", [8.0, 32.0], ids=["llama31", "llama32"])
def test_llama3_scaling_is_found_again_in_the_factors(tmp_path: Path, factor: float) -> None:
    rope = ROPE | {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    model = tiny_model("llama", rope_parameters=rope, max_position_embeddings=131072, head_dim=64)
    plain = 1 / 500000.0 ** (torch.arange(0, 64, 2) / 64)
    factors = (plain / model.model.rotary_emb.inv_freq).numpy()
    assert factors.min() == 1 and factors.max() == pytest.approx(factor)
    assert converted_rope(tmp_path, "llama", model, rope_freqs__weight=factors) == rope


def test_factors_of_an_unknown_scaling_are_refused(tmp_path: Path) -> None:
    factors = np.linspace(1, 5, 8, dtype=np.float32)
    write_gguf(tmp_path / "tiny.gguf", "llama", tiny_model("llama"), rope_freqs__weight=factors)
    assert "rope_freqs.weight does not follow" in refusal(tmp_path / "tiny.gguf", tmp_path / "hf").wrong


def test_linear_and_yarn_scaling_are_kept(tmp_path: Path) -> None:
    linear = {"rope__scaling__type": "linear", "rope__scaling__factor": 8.0}
    rope = converted_rope(tmp_path, "gemma3", tiny_model("gemma3"), **linear)
    assert rope["full_attention"] == {"rope_type": "linear", "factor": 8.0, "rope_theta": 500000.0}
    assert rope["sliding_attention"] == {"rope_type": "default", "rope_theta": 10000.0}
    (tmp_path / "second").mkdir()
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 32}
    rope = converted_rope(tmp_path / "second", "qwen2", tiny_model("qwen2"), **yarn)
    assert (rope["rope_type"], rope["factor"], rope["original_max_position_embeddings"]) == ("yarn", 4.0, 32)


def test_longrope_is_kept(tmp_path: Path) -> None:
    long, short = (np.linspace(1, top, 4, dtype=np.float32) for top in (9, 2))
    extra = {"rope_factors_long__weight": long, "rope_factors_short__weight": short}
    extra |= {"rope__scaling__original_context_length": 32, "rope__scaling__attn_factor": 1.1832159757614136}
    rope = converted_rope(
        tmp_path, "phi3", tiny_model("phi3", rope_parameters=ROPE | {"partial_rotary_factor": 0.5}), **extra
    )
    assert rope["rope_type"] == "longrope" and rope["original_max_position_embeddings"] == 32
    assert rope["long_factor"] == pytest.approx(long.tolist()) and rope["short_factor"] == pytest.approx(short.tolist())
    assert "attention_factor" not in rope  # sqrt(1 + ln 4 / ln 32), which transformers derives


# --- tokenizers

TEXTS = [
    "hello the hello", "  the   hello", "\n\nthe\n\thello\r\n", "tool <tool> x</s>y", "123 1234 hello12",
    "héllo 🎉 漢字", "", " ", "the ", "it's THE'LL", "ans.\n\n  def f(x):\n\n    return 1",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS, ids=repr)
@pytest.mark.parametrize("architecture", ["gemma3", "gpt2", "llama", "phi3", "qwen2"])
def test_tokenizers_agree_with_transformers(tokenizers: dict[str, Path], architecture: str, text: str) -> None:
    folder = tokenizers[architecture]
    reference = cached_tokenizer(folder, gguf_file="tiny.gguf")(text)["input_ids"]
    assert cached_tokenizer(folder / "hf")(text)["input_ids"] == reference
    assert Tokenizer.from_file(str(folder / "hf" / "tokenizer.json")).encode(text).ids == reference


_TOKENIZERS: dict[tuple[str, ...], Any] = {}


def cached_tokenizer(folder: Path, **kwargs: str) -> Any:
    key = (str(folder), *kwargs.values())
    if key not in _TOKENIZERS:
        _TOKENIZERS[key] = AutoTokenizer.from_pretrained(folder, **kwargs)
    return _TOKENIZERS[key]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for architecture in ("gemma3", "gpt2", "llama", "phi3", "qwen2"):
        folder = folders[architecture] = tmp_path_factory.mktemp(architecture)
        write_gguf(folder / "tiny.gguf", architecture, tiny_model(architecture))
        convert_gguf(folder / "tiny.gguf", folder / "hf")
    return folders


def test_bos_is_added_where_the_file_says_so(tokenizers: dict[str, Path]) -> None:
    for architecture, ids in {"llama": [1], "gemma3": [1], "qwen2": []}.items():
        folder = tokenizers[architecture] / "hf"
        assert AutoTokenizer.from_pretrained(folder)("")["input_ids"] == ids
        assert Tokenizer.from_file(str(folder / "tokenizer.json")).encode("").ids == ids
        pair = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("the", "the").ids
        assert pair.count(1) == 2 * len(ids)


@pytest.mark.parametrize(
    "pre, text, pieces",
    [
        ("smollm", "x12 ①3", ["x", "1", "2", "Ġ", "â", "ĳ", "ł", "3"]),  # each digit is a word, also ①
        ("gpt-2", "x12", ["x", "12"]),
        ("qwen2", "e\u0301", ["Ã", "©"]),  # composed: é
        ("llama-bpe", "<s>12345", ["<s>", "<s>", "123", "4", "5"]),  # BOS though the file does not say; digits by three
    ],
)  # fmt: skip
def test_splittings_of_the_models_own_tokenizers(tmp_path: Path, pre: str, text: str, pieces: list[str]) -> None:
    write_gguf(tmp_path / "tiny.gguf", "llama", tiny_model("llama"), pre=pre)
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf")
    assert Tokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json")).encode(text).tokens == pieces


# --- refusals


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    write_gguf(path, "llama", tiny_model("llama"), "Q8_0")
    return path


def header_bytes(path: Path) -> int:
    return min(tensor.start for tensor in read_gguf(path).tensors.values())


def test_every_truncation_is_refused(tmp_path: Path, small: Path) -> None:
    whole, path = small.read_bytes(), tmp_path / "cut.gguf"
    cuts = [*range(0, header_bytes(small), 61), header_bytes(small), len(whole) // 2, len(whole) - 33]
    for cut in cuts:
        path.write_bytes(whole[:cut])
        with pytest.raises(ArtifactError, match=r"cut\.gguf") as caught:
            read_gguf(path)
        assert caught.value.exit_code == 3, cut
    assert "cut.gguf is truncated" in caught.value.wrong and "where output" in caught.value.expected


def test_damage_anywhere_in_the_header_is_an_error_of_ours_or_none(tmp_path: Path, small: Path) -> None:
    whole, end, path = small.read_bytes(), header_bytes(small), tmp_path / "damaged.gguf"
    generator = random.Random(0)
    refused = 0
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(generator.choice([1, 1, 8])):
            damaged[generator.randrange(end)] = generator.randrange(256)
        path.write_bytes(damaged)
        try:
            read_gguf(path)
        except ArtifactError:
            refused += 1
    assert refused > 50  # the rest hit token spellings and scores


def rewritten(small: Path, target: Path, old: bytes, new: bytes) -> Path:
    whole = small.read_bytes()
    assert old in whole and len(old) == len(new)
    target.write_bytes(whole.replace(old, new, 1))
    return target


def test_what_is_no_gguf_is_said(tmp_path: Path, small: Path) -> None:
    folder = tmp_path / "hf"
    assert "does not exist" in refusal(tmp_path / "none.gguf", folder).wrong
    assert "is a folder" in refusal(tmp_path, folder).wrong
    assert "begins with b'PK" in refusal(rewritten(small, tmp_path / "a", b"GGUF", b"PK\3\4"), folder).wrong
    assert "version 1" in refusal(rewritten(small, tmp_path / "b", b"GGUF\3", b"GGUF\1"), folder).wrong
    assert (
        "version 50331648" in refusal(rewritten(small, tmp_path / "c", b"GGUF\3\0\0\0", b"GGUF\0\0\0\3"), folder).wrong
    )


def test_an_unknown_architecture_names_those_that_are_known(tmp_path: Path, small: Path) -> None:
    path = rewritten(small, tmp_path / "mamba.gguf", b"\5\0\0\0\0\0\0\0llama", b"\5\0\0\0\0\0\0\0mamba")
    error = refusal(path, tmp_path / "hf")
    assert "the architecture is mamba" in error.wrong
    assert all(name in error.expected for name in ARCHITECTURES)


@pytest.mark.parametrize("kind, match", [(15, "quantised as Q8_K"), (99, "has ggml type 99"), (26, "quantised as I32")])
def test_an_unknown_quantisation_is_refused(tmp_path: Path, small: Path, kind: int, match: str) -> None:
    whole = bytearray(small.read_bytes())
    position = whole.index(b"token_embd.weight") + len("token_embd.weight") + 4 + 2 * 8
    assert whole[position] == QUANTIZATIONS["Q8_0"]
    whole[position] = kind
    whole[position - 16] = 0  # 256 wide, so that K-quants' blocks fit
    whole[position - 15] = 1
    (tmp_path / "odd.gguf").write_bytes(whole)
    assert match in refusal(tmp_path / "odd.gguf", tmp_path / "hf").wrong


@pytest.mark.parametrize(
    "architecture, extra, match",
    [
        ("llama", {"attention__scale": 0.5}, r"does not know what llama\.attention\.scale would be"),
        ("llama", {"expert_count": 8, "expert_used_count": 2}, r"what llama\.expert_count would be"),
        ("llama", {"blk__0__ffn_gate_exps__weight": ZEROS}, r"blk\.0\.ffn_gate_exps\.weight is no"),
        ("llama", {"blk__9__attn_q__weight": ZEROS}, r"attn_q\.weight is no .* with 7 layers"),
        ("qwen2", {"rope__scaling__type": "su"}, r"rope\.scaling\.type is su"),
        ("gpt2", {"pre": "chameleon"}, r"tokenizer\.ggml\.pre is chameleon"),
    ],
    ids=["scale", "experts", "expert-tensor", "layer-9", "rope", "pre"],
)  # fmt: skip
def test_what_config_json_could_not_say_is_refused(
    tmp_path: Path, architecture: str, extra: dict[str, Any], match: str
) -> None:
    write_gguf(tmp_path / "tiny.gguf", architecture, tiny_model(architecture), **extra)
    with pytest.raises(ArtifactError, match=match):
        convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


def test_a_layer_that_lacks_a_tensor_is_refused(tmp_path: Path, small: Path) -> None:
    path = rewritten(small, tmp_path / "less.gguf", b"blk.6.ffn_up.weight", b"blk.6.ffn_up.weigh7")
    assert (
        "blk.6.ffn_up.weigh7" in refusal(path, tmp_path / "hf").wrong or "lacks" in refusal(path, tmp_path / "hf").wrong
    )


def test_a_folder_in_use_is_left_alone(tmp_path: Path, small: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="is not empty"):
        convert_gguf(small, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(file: GgufFile, name: str, row_multiple: int = 1) -> Iterator[torch.Tensor]:
        yield torch.zeros(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(GgufFile, "blocks", interrupted)
    with pytest.raises((KeyboardInterrupt, ValueError)):
        convert_gguf(small, tmp_path / "hf")
    assert list(tmp_path.iterdir()) == []


def test_without_gguf_py_the_fix_is_the_extra(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ArtifactError, match=r"pip install 'porter-ml\[gguf\]'"):
        read_gguf(small)
