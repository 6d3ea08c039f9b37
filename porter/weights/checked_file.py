"""One safetensors file with a checksum over its names, shapes and bytes: a file that was cut off or changed is noticed.

The checksum is CRC-32 (2.2 GB/s on one core, sha256 1.2): it is there to find damage, not forgery.
"""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from porter.errors import ArtifactError
from porter.weights.cache import file_beside
from porter.weights.safetensors_files import DTYPES, PT, Checkpoint, TensorSpec, read_header, write_file

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_SUM = "crc32"


def write_checked(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Writes a file, replaced if it exists, whole or not at all; its folder must be there.

    Args:     about: what the file says of itself, given back by read_checked.
    Raises:   OSError: it cannot be written.
    """
    specs = [TensorSpec(name, tuple(value.shape), _NAMES[value.dtype]) for name, value in tensors.items()]
    specs.sort(key=lambda spec: -spec.torch_dtype.itemsize)  # so that every tensor is aligned

    def blocks(name: str) -> Iterator[Tensor]:
        yield tensors[name]

    said = {**PT, **about}
    crc = _start(specs, said)
    for spec in specs:
        crc = zlib.crc32(_bytes(tensors[spec.name]), crc)
    with file_beside(path) as part:
        write_file(part, specs, blocks, {**said, _SUM: f"{crc:08x}"})
        part.replace(path)


def read_checked(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file, freshly read, and what it says of itself.

    Raises:
        ArtifactError: it is cut off, or not as it was written.
        OSError: it is not there, or cannot be read.
    """
    infos = sorted(read_header(path).values(), key=lambda info: info.start)
    about = _read_about(path)
    said = about.pop(_SUM, "none")
    source = Checkpoint(path.parent, MappingProxyType({info.name: info for info in infos}))
    crc, tensors = _start(infos, about), {}
    for info in infos:
        tensors[info.name] = source.read(info.name)
        crc = zlib.crc32(_bytes(tensors[info.name]), crc)
    if said != f"{crc:08x}":
        raise ArtifactError(f"{path} was changed: its checksum is {crc:08x}", said, "delete it; it is made again")
    return tensors, {key: value for key, value in about.items() if key not in PT}


def _start(tensors: Sequence[TensorSpec], about: Mapping[str, str]) -> int:
    """The checksum of what stands before the bytes."""
    layout = [[spec.name, spec.dtype, list(spec.shape)] for spec in tensors]
    return zlib.crc32(json.dumps([layout, dict(about)], sort_keys=True).encode())


def _bytes(value: Tensor) -> memoryview:
    raw: memoryview = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
    return raw


def _read_about(path: Path) -> dict[str, str]:
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    about = header.get("__metadata__", {})
    return {str(key): str(value) for key, value in about.items()} if isinstance(about, dict) else {}
