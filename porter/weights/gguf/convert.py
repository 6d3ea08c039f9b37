"""Converts a GGUF file to a HuggingFace-layout folder in float32."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import Tensor

from porter.errors import ArtifactError
from porter.weights.cache import temporary_beside
from porter.weights.gguf.architectures import ARCHITECTURES, Architecture
from porter.weights.gguf.reader import GgufFile, read_gguf
from porter.weights.gguf.tokenizer import write_tokenizer
from porter.weights.gguf.values import Values
from porter.weights.safetensors_files import TensorSpec, write_checkpoint

CONVERTER_VERSION = 1  # part of cache keys: raise it when the same GGUF would become another folder
_TOKEN_IDS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}


def convert_gguf(path: Path, folder: Path) -> None:
    """Writes config.json, tokenizer.json, tokenizer_config.json and float32 safetensors; whole, or not at all.

    Args:     folder: made; if it is there, it must be empty.
    Raises:   ArtifactError: a GGUF that is damaged, or of a family, quantisation or tokenizer porter does not know.
    """
    file = read_gguf(path)
    name = str(file.metadata.get("general.architecture"))
    if name not in ARCHITECTURES:
        wrong = f"{path}: the architecture is {name}"
        raise ArtifactError(wrong, f"one of {', '.join(ARCHITECTURES)}", "use the model's safetensors")
    if folder.exists() and any(folder.iterdir()):
        raise ArtifactError(f"{folder} is not empty", "a new folder for the converted model", "name another folder")
    architecture = ARCHITECTURES[name]
    values = Values(file, name)
    config = _config(file, architecture, values)
    names = _names(file, architecture, values.taken)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The tokenizer, seconds of Python and Rust for 262,144 tokens, is built while the disk takes the weights.
    with temporary_beside(folder) as part, ThreadPoolExecutor(1) as pool:
        tokenizer = pool.submit(write_tokenizer, file, name, part)
        (part / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        _write_weights(file, architecture, values, names, part)
        tokenizer.result()
        part.rename(folder)


def _config(file: GgufFile, architecture: Architecture, values: Values) -> dict[str, Any]:
    ids = {key: file.metadata.get(f"tokenizer.ggml.{role}_token_id") for key, role in _TOKEN_IDS.items()}
    if "token_embd.weight" not in file.tensors:
        raise ArtifactError(f"{file.path} has no token_embd.weight", "a language model", "convert the model again")
    config = {
        "architectures": [architecture.hf_class],
        "model_type": architecture.model_type,
        "dtype": "float32",
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    sizes = {key: values.first(sources) for key, sources in architecture.rename.items()}
    config = config | sizes | dict(architecture.fixed) | architecture.derive(values) | ids
    values.refuse_unread()
    return config


def _names(file: GgufFile, architecture: Architecture, taken: set[str]) -> dict[str, str]:
    """The tensor in the file of each of transformers' names; every tensor is used, and every layer is whole."""
    num_layers = file.metadata[f"{file.metadata['general.architecture']}.block_count"]
    known = {
        source.format(i=layer): target.format(i=layer)
        for source, target in architecture.tensors.items()
        for layer in (range(num_layers) if "{i}" in source else range(1))
    }
    names = {}
    for tensor in file.tensors.keys() - taken:
        stem, _, kind = tensor.rpartition(".")
        if stem not in known:
            wrong = f"{file.path}: {tensor} is no tensor of {architecture.model_type} with {num_layers} layers"
            raise ArtifactError(wrong, "only tensors that transformers' model has", "use the model's safetensors")
        names[f"{known[stem]}.{kind}"] = tensor
    optional = {"output"}
    if missing := [stem for stem in known if f"{stem}.weight" not in file.tensors and stem not in optional]:
        wrong = f"{file.path} lacks {missing[0]}.weight" + (f" and {len(missing) - 1} more" if missing[1:] else "")
        raise ArtifactError(wrong, f"all tensors of {num_layers} layers", "fetch or convert the file again")
    return {target: names[target] for target in sorted(names)}


def _write_weights(
    file: GgufFile, architecture: Architecture, values: Values, names: dict[str, str], folder: Path
) -> None:
    heads = {"attn_q": values["attention.head_count"]}
    heads["attn_k"] = values.get("attention.head_count_kv", heads["attn_q"])

    def blocks(name: str) -> Iterator[Tensor]:
        source = names[name]
        match architecture.change_of(source):
            case "keep":
                yield from file.blocks(source)
            case "minus_one":
                yield from (block - 1 for block in file.blocks(source))
            case "transpose":
                yield file.read(source).T
            case "unpermute":
                num_heads = heads[source.split(".")[-2]]
                width = file.tensors[source].shape[0] // num_heads
                if len(file.tensors[source].shape) == 1:
                    yield uninterleave(file.read(source), width)
                else:
                    yield from (uninterleave(block, width) for block in file.blocks(source, row_multiple=width))

    def shape(name: str) -> tuple[int, ...]:
        stored = file.tensors[names[name]].shape
        return stored[::-1] if architecture.change_of(names[name]) == "transpose" else stored

    write_checkpoint(folder, [TensorSpec(name, shape(name), "F32") for name in names], blocks)


def uninterleave(w: Tensor, head_dim: int) -> Tensor:
    """Rows of whole heads, from llama.cpp's order (x0 y0 x1 y1 ...) to transformers' (x0 x1 ... y0 y1 ...)."""
    pairs = w.view(-1, head_dim // 2, 2, *w.shape[1:])
    return pairs.transpose(1, 2).reshape(w.shape)
