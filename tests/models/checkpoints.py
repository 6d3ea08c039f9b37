"""Small checkpoints on disk, and the ways to damage them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor

SINGLE = "model.safetensors"
SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>")  # 0 to 3, as Gemma has them


def copy_checkpoint(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Rewrites the tensors after `change` did its work on them."""
    tensors = load_file(folder / SINGLE)
    change(tensors)
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def cut(path: Path, keep: float = 0.6) -> None:
    """Keeps the first part of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


def add_tokenizer(folder: Path, *, bos: str | None = "<bos>", kind: str = "PreTrainedTokenizerFast") -> None:
    """A tokenizer of bytes: tokenizer.json, and a tokenizer_config.json that names HF's class."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*SPECIAL, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    if bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, vocab[bos])])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": kind, "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
