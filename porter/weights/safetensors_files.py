"""Reads and writes HuggingFace-layout checkpoints, a block of rows at a time.

The format: eight bytes with the header's length, a JSON header {name: {dtype, shape, data_offsets}}, the bytes
(https://huggingface.co/docs/safetensors). Nothing is mapped: mapped pages count as resident, and reading 5.5 GB
through one open safetensors.safe_open left 5.4 GiB of them, through plain reads 0.5.
"""

import io
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from porter.errors import ArtifactError, WeightError, closest
from porter.weights.cache import temporary_beside

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
Blocks = Callable[[str], Iterator[Tensor]]  # name -> the tensor in blocks of rows, in its dtype
PT: Mapping[str, str] = {"format": "pt"}  # the metadata that transformers wants to see
_MAX_HEADER_BYTES = 100_000_000  # the safetensors library's own limit
_BLOCK_BYTES = 32 * 2**20
_FETCH_AGAIN = "fetch or write the file again; a Git LFS pointer or an unfinished download looks like this"


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to write; dtype is safetensors' name for it, a key of DTYPES."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def size_bytes(self) -> int:
        return self.numel * self.torch_dtype.itemsize


@dataclass(frozen=True)
class TensorInfo(TensorSpec):
    """A tensor in a file, and the byte of the file it starts at."""

    file: Path
    start: int


@dataclass(frozen=True)
class Checkpoint:
    """What the tensors of a folder are; their values are read when asked for, and not kept."""

    folder: Path
    tensors: Mapping[str, TensorInfo]

    def read(self, name: str) -> Tensor:
        """The whole tensor, freshly read."""
        info = self.info(name)
        with info.file.open("rb") as file:
            return _read_bytes(file, info, 0, info.size_bytes).view(info.shape)

    def prefetch(self, names: Iterable[str]) -> None:
        """Asks the system to read these tensors into its own cache meanwhile, where it can be asked."""
        if not hasattr(os, "posix_fadvise"):
            return
        for info in map(self.info, names):
            with info.file.open("rb") as file:
                os.posix_fadvise(file.fileno(), info.start, info.size_bytes, os.POSIX_FADV_WILLNEED)

    def rows(self, name: str, rows: Sequence[int]) -> Tensor:
        """[len(rows), ...]: some rows of a tensor (of its first axis), the rest unread."""
        info = self.info(name)
        row_bytes = info.size_bytes // info.shape[0]
        with info.file.open("rb") as file:
            parts = [_read_bytes(file, info, row * row_bytes, row_bytes) for row in rows]
        return torch.stack(parts).view(len(parts), *info.shape[1:])

    def blocks(self, name: str, rows: int | None = None) -> Iterator[Tensor]:
        """The tensor in blocks of rows (of its first axis), 32 MiB at a time unless `rows` says."""
        info = self.info(name)
        if not info.size_bytes or not info.shape:
            yield self.read(name)
            return
        row_bytes = info.size_bytes // info.shape[0]
        step = rows or max(1, _BLOCK_BYTES // row_bytes)
        with info.file.open("rb") as file:
            for row in range(0, info.shape[0], step):
                count = min(step, info.shape[0] - row)
                yield _read_bytes(file, info, row * row_bytes, count * row_bytes).view(count, *info.shape[1:])

    def info(self, name: str) -> TensorInfo:
        """What a tensor is. Raises WeightError: there is none of that name."""
        if name not in self.tensors:
            fix = closest(name, self.tensors) if self.tensors else "the checkpoint is empty"
            raise WeightError(f"{self.folder} has no tensor {name}", f"one of its {len(self.tensors)} tensors", fix)
        return self.tensors[name]


def _read_bytes(file: io.BufferedReader, info: TensorInfo, skip: int, size_bytes: int) -> Tensor:
    raw = torch.empty(size_bytes, dtype=torch.uint8)
    file.seek(info.start + skip)
    got = file.readinto(raw.numpy().data)
    if got != size_bytes:
        raise ArtifactError(
            f"{info.file}: {info.name} ends after {got:,} of {size_bytes:,} bytes",
            "the file that was there when the checkpoint was opened",
            "do not change a checkpoint while porter reads it",
        )
    return raw.view(DTYPES[info.dtype])


def open_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint of a HuggingFace-layout folder, every shard's header checked against its size.

    Raises:   ArtifactError: no such folder, no safetensors in it, or files that are not what they say.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ArtifactError(f"{folder} {what}", f"a folder with {SINGLE} or {INDEX}", "name the checkpoint's folder")
    if (folder / SINGLE).is_file():  # transformers, too, prefers it to an index
        return Checkpoint(folder, MappingProxyType(read_header(folder / SINGLE)))
    if (folder / INDEX).is_file():
        return Checkpoint(folder, MappingProxyType(_read_shards(folder)))
    found = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
    raise ArtifactError(
        f"{folder} holds no safetensors checkpoint, but {found}",
        f"{SINGLE}, or {INDEX} with the shards it names",
        "name the folder that holds them; save_pretrained of transformers writes them from other formats",
    )


def _read_shards(folder: Path) -> dict[str, TensorInfo]:
    index = folder / INDEX
    try:
        weight_map: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        files = sorted(set(weight_map.values()))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _unreadable(index, f'JSON with "weight_map": {{tensor: file}} ({type(error).__name__})') from error
    tensors: dict[str, TensorInfo] = {}
    for file in files:
        if not (folder / file).is_file():
            named = next(name for name, shard in weight_map.items() if shard == file)
            wrong = f"{folder} lacks {file}, which {INDEX} names for {named}"
            raise ArtifactError(wrong, f"all {len(files)} shards of the index", f"fetch {file} too")
        shard = read_header(folder / file)
        for name in shard.keys() & tensors.keys():
            wrong = f"{name} is in two shards, {tensors[name].file.name} and {file} of {folder}"
            raise ArtifactError(wrong, "each tensor once", "fetch the folder again; it may mix two checkpoints")
        tensors |= shard
    for name, file in weight_map.items():
        if name not in tensors or tensors[name].file.name != Path(file).name:
            wrong = f"{folder / file} lacks {name}, which {INDEX} says it holds"
            raise ArtifactError(wrong, "the tensors of the index", "fetch the folder again; it may mix two checkpoints")
    return tensors


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of one file.   Raises ArtifactError: it is cut off, or not what it says."""
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if file_bytes < 8 or header_bytes > _MAX_HEADER_BYTES:
            raise _unreadable(path, "a safetensors file: eight bytes with the length of a JSON header, then it")
        if 8 + header_bytes > file_bytes:
            raise _truncated(path, 8 + header_bytes, file_bytes)
        try:
            header: dict[str, Any] = json.loads(file.read(header_bytes))
            entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
            tensors = [_parse_entry(path, 8 + header_bytes, name, entry) for name, entry in entries]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _unreadable(path, f"a safetensors header in JSON ({type(error).__name__}: {error})") from error
    _check_layout(path, sorted(tensors, key=lambda info: (info.start, info.size_bytes)), 8 + header_bytes, file_bytes)
    return {info.name: info for info in tensors}


def _parse_entry(path: Path, data_start: int, name: str, entry: dict[str, Any]) -> TensorInfo:
    if entry["dtype"] not in DTYPES:
        wrong = f"{path}: {name} has dtype {entry['dtype']}"
        raise ArtifactError(wrong, f"one of {', '.join(DTYPES)}", "convert the checkpoint to one of these")
    begin, end = entry["data_offsets"]
    info = TensorInfo(name, tuple(map(int, entry["shape"])), entry["dtype"], path, data_start + begin)
    if info.size_bytes != end - begin:
        wrong = f"{path}: {name} is {info.dtype} {list(info.shape)} in {end - begin:,} bytes"
        raise ArtifactError(wrong, f"{info.size_bytes:,} bytes", _FETCH_AGAIN)
    return info


def _check_layout(path: Path, tensors: list[TensorInfo], data_start: int, file_bytes: int) -> None:
    position = data_start
    for info in tensors:
        if info.start != position:
            wrong = f"{path}: {info.name} starts at byte {info.start:,}"
            raise ArtifactError(wrong, f"byte {position:,}, where the tensor before it ends", _FETCH_AGAIN)
        position += info.size_bytes
    if position != file_bytes:
        raise _truncated(path, position, file_bytes)


def _truncated(path: Path, said: int, found: int) -> ArtifactError:
    wrong = f"{path} is {'truncated' if found < said else 'too long'}: {found:,} bytes"
    return ArtifactError(wrong, f"the {said:,} bytes that its header says", _FETCH_AGAIN)


def _unreadable(path: Path, expected: str) -> ArtifactError:
    return ArtifactError(f"{path} cannot be read", expected, _FETCH_AGAIN)


def write_checkpoint(
    folder: Path,
    tensors: Iterable[TensorSpec],
    blocks: Blocks,
    *,
    shard_bytes: int = 5_000_000_000,
) -> None:
    """Writes a checkpoint as transformers lays it out, holding one block at a time; whole, or not at all.

    Args:     folder: made if it is not there; other files in it stay.
              blocks: the bytes appear in that order.
              shard_bytes: a file takes tensors until it would pass this.
    Raises:   ArtifactError: a checkpoint is there already, or the disk is too full.
    """
    shards = _pack(tensors, shard_bytes)
    total_bytes = sum(spec.size_bytes for shard in shards for spec in shard)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _check_room(folder, total_bytes)
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    files = dict(zip(names, shards, strict=True)) if len(shards) > 1 else {SINGLE: shards[0]}
    with temporary_beside(folder) as part:
        for name, shard in files.items():
            write_file(part / name, shard, blocks)
        if len(shards) > 1:
            weight_map = {spec.name: name for name, shard in files.items() for spec in shard}
            index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
            (part / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        folder.mkdir(exist_ok=True)
        for path in sorted(part.iterdir(), key=lambda path: path.name == INDEX):
            path.rename(folder / path.name)  # the index last: shards without one are no checkpoint


def _pack(tensors: Iterable[TensorSpec], shard_bytes: int) -> list[list[TensorSpec]]:
    shards: list[list[TensorSpec]] = [[]]
    seen: set[str] = set()
    room = shard_bytes
    for spec in tensors:
        if spec.name in seen:
            raise ValueError(f"write_checkpoint: {spec.name} is given twice, expected each name once.")
        if shards[-1] and spec.size_bytes > room:
            shards.append([])
            room = shard_bytes
        seen.add(spec.name)
        shards[-1].append(spec)
        room -= spec.size_bytes
    # Wide dtypes first, as the safetensors library writes them, so that every tensor is aligned.
    return [sorted(shard, key=lambda spec: -DTYPES[spec.dtype].itemsize) for shard in shards]


def _check_room(folder: Path, total_bytes: int) -> None:
    for name in (SINGLE, INDEX):
        if (folder / name).exists():
            wrong = f"{folder} already holds a checkpoint, {name}"
            raise ArtifactError(wrong, "a folder without one; porter overwrites no weights", "name another folder")
    free = shutil.disk_usage(folder.parent).free
    if free < total_bytes:
        wrong = f"{folder.parent} has {free:,} bytes free"
        raise ArtifactError(wrong, f"{total_bytes:,} bytes for the checkpoint", "free some, or name another disk")


def write_file(path: Path, tensors: Sequence[TensorSpec], blocks: Blocks, about: Mapping[str, str] = PT) -> None:
    """Writes one file in place; `about` is its metadata."""
    header: dict[str, Any] = {"__metadata__": dict(about)}
    position = 0
    for spec in tensors:
        span = [position, position := position + spec.size_bytes]
        header[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": span}
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for spec in tensors:
            written = 0
            for block in blocks(spec.name):
                fits = block.shape == spec.shape or (spec.shape and block.shape[1:] == spec.shape[1:])
                if block.dtype != DTYPES[spec.dtype] or not fits:
                    found = f"{str(block.dtype).removeprefix('torch.')} {list(block.shape)}"
                    wanted = f"rows of {spec.dtype} {list(spec.shape)}"
                    raise ValueError(f"write_checkpoint: a block of {spec.name} is {found}, expected {wanted}.")
                written += file.write(block.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
            if written != spec.size_bytes:
                found = f"{written:,} bytes, expected {spec.size_bytes:,}"
                raise ValueError(f"write_checkpoint: the blocks of {spec.name} came to {found}.")
