"""Reads a GGUF file: its metadata, its tensor table, and its tensors dequantised to float32.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. The parser is our
own because gguf.GGUFReader keeps an array per string: 11 s for Gemma's 262,144 tokens, against 0.2 s here.
"""

import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from porter.errors import ArtifactError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_BLOCK_BYTES = 8 * 2**20  # of float32: dequantising 8 MiB at a time stays in the cache of most CPUs
_FETCH_AGAIN = "fetch the file again; an unfinished download or a Git LFS pointer looks like this"


@dataclass(frozen=True)
class GgufTensor:
    """A tensor in the file: its axes in torch's order, and the bytes that hold it."""

    name: str
    shape: tuple[int, ...]
    quantization: str  # ggml's name: F32, Q4_K, ...
    start: int
    size_bytes: int


@dataclass(frozen=True)
class GgufFile:
    """What a GGUF file holds; tensor values are read when asked for, and not kept."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    def read(self, name: str) -> Tensor:
        """The whole tensor in float32."""
        tensor = self.tensors[name]
        return torch.cat(list(self.blocks(name))).view(tensor.shape)

    def blocks(self, name: str, row_multiple: int = 1) -> Iterator[Tensor]:
        """The tensor in float32, in blocks of rows (of its first axis) of about 8 MiB.

        Args:     row_multiple: every block but the last has a multiple of that many rows.
        """
        gguf = _import_gguf()
        tensor = self.tensors[name]
        kind = gguf.GGMLQuantizationType[tensor.quantization]
        num_rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
        row_shape = tensor.shape[1:] if len(tensor.shape) > 1 else tensor.shape
        row_bytes = tensor.size_bytes // num_rows
        step = max(1, _BLOCK_BYTES // (4 * math.prod(row_shape) * row_multiple)) * row_multiple
        with self.path.open("rb") as file:
            for row in range(0, num_rows, step):
                count = min(step, num_rows - row)
                file.seek(tensor.start + row * row_bytes)
                raw = np.fromfile(file, dtype=np.uint8, count=count * row_bytes)
                if raw.size != count * row_bytes:
                    wrong = f"{self.path}: {name} ends after {row * row_bytes + raw.size:,} bytes"
                    raise ArtifactError(wrong, f"{tensor.size_bytes:,} bytes", "do not change a file porter reads")
                block = torch.from_numpy(gguf.quants.dequantize(raw.reshape(count, row_bytes), kind))
                yield block.view(count, *row_shape) if len(tensor.shape) > 1 else block.view(row_shape)


def read_gguf(path: Path) -> GgufFile:
    """The metadata and the tensor table of a GGUF file, checked against the file's size.

    Raises:   ArtifactError: no such file, not a GGUF, cut short, or quantised in a way gguf-py cannot undo.
    """
    if not path.is_file():
        what = "is a folder" if path.exists() else "does not exist"
        raise ArtifactError(f"{path} {what}", "a .gguf file", "give the path of the .gguf file itself")
    with path.open("rb") as file:
        magic = file.read(4)
        if magic != b"GGUF" or path.stat().st_size < 24:
            raise ArtifactError(f"{path} begins with {magic!r}", "b'GGUF' and a header of 24 bytes", _FETCH_AGAIN)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            try:
                return _Parser(path, mapped).parse()
            except (struct.error, UnicodeDecodeError, OverflowError) as error:
                wrong = f"{path}: the header is cut short or damaged ({error})"
                raise ArtifactError(wrong, f"a whole header in its {len(mapped):,} bytes", _FETCH_AGAIN) from error


class _Parser:
    """A cursor over the mapped header; struct.error when it runs past the end."""

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self.path, self.mapped, self.position = path, mapped, 4

    def parse(self) -> GgufFile:
        version = self.scalar("I")
        if version not in (2, 3):
            wrong = f"{self.path} is GGUF version {version}"
            raise ArtifactError(wrong, "version 2 or 3, little-endian", "convert it again with a current llama.cpp")
        num_tensors, num_keys = self.scalar("Q"), self.scalar("Q")
        metadata = {}
        for _ in range(num_keys):
            key = self.string()
            metadata[key] = self.value(self.scalar("I"))
        if metadata.get("split.count", 0) not in (0, 1):
            wrong = f"{self.path} is one of {metadata['split.count']} parts"
            raise ArtifactError(wrong, "the whole model in one file", "join them: llama-gguf-split --merge")
        entries = [self.entry() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise struct.error(f"general.alignment is {alignment!r}")
        data_start = -(-self.position // alignment) * alignment
        tensors = [_place(self.path, entry, data_start) for entry in entries]
        _check_quantizations(self.path, tensors)
        _check_ends(self.path, tensors, len(self.mapped))
        by_name = {tensor.name: tensor for tensor in tensors}
        return GgufFile(self.path, MappingProxyType(metadata), MappingProxyType(by_name))

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.mapped, self.position)
        self.position += struct.calcsize(f"<{code}")
        return value

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        read_length, mapped, position = struct.Struct("<Q").unpack_from, self.mapped, self.position
        found = []
        for _ in range(count):
            (length,) = read_length(mapped, position)
            end = position + 8 + length
            found.append(mapped[position + 8 : end].decode())
            position = end
        if position > len(mapped):
            raise struct.error(f"a string ends at byte {position:,}")
        self.position = position
        return found

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item_kind, count = self.scalar("I"), self.scalar("Q")
            if item_kind == _STRING:
                return self.strings(count)
            code = self.code(item_kind)
            items = struct.unpack_from(f"<{count}{code}", self.mapped, self.position)
            self.position += struct.calcsize(f"<{count}{code}")
            return list(items)
        return self.scalar(self.code(kind))

    def code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise struct.error(f"a value of type {kind} before byte {self.position:,}")
        return _SCALARS[kind]

    def entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name, num_axes = self.string(), self.scalar("I")
        if not 1 <= num_axes <= 4:  # ggml's own limit
            raise struct.error(f"{name} has {num_axes} axes")
        axes = [self.scalar("Q") for _ in range(num_axes)]  # innermost first
        return name, tuple(reversed(axes)), self.scalar("I"), self.scalar("Q")


def _place(path: Path, entry: tuple[str, tuple[int, ...], int, int], data_start: int) -> GgufTensor:
    gguf = _import_gguf()
    name, shape, kind, offset = entry
    try:
        quantization = gguf.GGMLQuantizationType(kind)
    except ValueError as error:
        wrong = f"{path}: {name} has ggml type {kind}, which gguf-py does not know"
        fix = "pip install -U gguf, or use the model's safetensors"
        raise ArtifactError(wrong, "a type of this version of ggml", fix) from error
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[quantization]
    if 0 in shape or shape[-1] % block_size:
        wrong = f"{path}: {name} has shape {list(shape)} in {quantization.name}"
        raise ArtifactError(wrong, f"no empty axis, and rows of a multiple of {block_size} values", _FETCH_AGAIN)
    size_bytes = math.prod(shape) // block_size * block_bytes
    return GgufTensor(name, shape, quantization.name, data_start + offset, size_bytes)


def _check_ends(path: Path, tensors: list[GgufTensor], file_bytes: int) -> None:
    last = max(tensors, key=lambda tensor: tensor.start + tensor.size_bytes, default=None)
    if last is not None and last.start + last.size_bytes > file_bytes:
        wrong = f"{path} is truncated: {file_bytes:,} bytes"
        expected = f"{last.start + last.size_bytes:,} bytes, where {last.name} ends"
        raise ArtifactError(wrong, expected, _FETCH_AGAIN)


def _check_quantizations(path: Path, tensors: list[GgufTensor]) -> None:
    gguf = _import_gguf()
    for first in {tensor.quantization: tensor for tensor in reversed(tensors)}.values():
        if not _can_undo(gguf, gguf.GGMLQuantizationType[first.quantization]):
            wrong = f"{path}: {first.name} is quantised as {first.quantization}, which gguf-py cannot undo"
            expected = ", ".join(kind.name for kind in gguf.GGML_QUANT_SIZES if _can_undo(gguf, kind))
            raise ArtifactError(wrong, f"one of {expected}", "quantise the model anew, or use its safetensors")


def _can_undo(gguf: Any, kind: Any) -> bool:
    block = np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    try:
        gguf.quants.dequantize(block, kind)
    except NotImplementedError:
        return False
    return True


def _import_gguf() -> Any:
    try:
        return import_module("gguf")
    except ImportError as error:
        wrong = "the package gguf, which undoes GGUF's quantisation, is not installed"
        raise ArtifactError(wrong, "gguf 0.17 or newer", "pip install 'porter-ml[gguf]'") from error
