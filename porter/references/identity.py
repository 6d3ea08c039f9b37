"""What a reference's numbers depend on, besides its input: two runs with the same identity compute the same bits.

The port and its spec are no part of it, so that every port of a checkpoint shares what was computed for one.
"""

import hashlib
import os
import platform
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import torch
import transformers

from porter import __version__
from porter.models import matmul
from porter.references.hooks import taps
from porter.specs.blueprint import Blueprint
from porter.weights.cache import file_beside
from porter.weights.safetensors_files import open_checkpoint

_SETTLED_S = 2.0  # a file that was written to just now may be written to again within one tick of its clock
_STEERING = ("MKL_", "ONEDNN_", "DNNL_", "CUBLAS_", "CUBLASLT_", "NVIDIA_TF32", "ATEN_CPU")  # environment variables


def reference_identity(folder: Path, blueprint: Blueprint, device: torch.device, notes: Path | None) -> dict[str, str]:
    """What tells one reference's numbers from another's, by what it is.

    Args:
        folder: HF-layout.
        blueprint: of the reference, without overrides; of it, only where HF's nodes are found counts.
        notes: a folder where the checksums of large files are kept, to be computed once; None: they are not kept.
    """
    return {
        "checkpoint": hash_checkpoint(folder, notes),
        "config": hashlib.sha256((folder / "config.json").read_bytes()).hexdigest(),
        "nodes": hashlib.sha256(taps(blueprint).encode()).hexdigest(),
        "modeling": _hash_sources(_modeling_files(blueprint.model_type)),
        "porter": f"{__version__} {_hash_sources([*Path(__file__).parent.glob('*.py'), Path(matmul.__file__)])}",
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "device": _device_name(device),
        "arithmetic": _arithmetic(device),
    }


def hash_checkpoint(folder: Path, notes: Path | None) -> str:
    """sha256 over all bytes of a checkpoint's files.

    A file is read once: its sum is kept in `notes` under all that its file system says of it (path, size, times of
    change of content and of inode, inode), which no ordinary write leaves as it was. Raises as open_checkpoint does.
    """
    files = sorted({info.file for info in open_checkpoint(folder).tensors.values()})
    return hashlib.sha256("\n".join(_hash_file(file, notes) for file in files).encode()).hexdigest()


def _hash_file(file: Path, notes: Path | None) -> str:
    stat = file.stat()
    known = (file.resolve(), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_dev, stat.st_ino)
    note = notes and notes / hashlib.sha256(repr(known).encode()).hexdigest()[:32]
    with suppress(OSError):
        if note and re.fullmatch(r"[0-9a-f]{64}", said := note.read_text(encoding="ascii", errors="replace")):
            return said
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if note and abs(time.time() - max(stat.st_mtime, stat.st_ctime)) > _SETTLED_S:
        with suppress(OSError), file_beside(note) as part:
            note.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(found, encoding="ascii")
            part.replace(note)
    return found


def _modeling_files(model_type: str) -> Iterable[Path]:
    """HF's own code of the model, which a development version changes under the same number."""
    found = find_spec(f"transformers.models.{model_type}")
    folders = (found.submodule_search_locations or ()) if found else ()
    return [path for folder in folders for path in Path(folder).glob("model*.py")]


def _hash_sources(files: Iterable[Path]) -> str:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sorted(files))).hexdigest()[:16]


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} {torch.cuda.get_device_capability(device)}"
    flags = hashlib.sha256(" ".join(sorted(matmul.cpu_flags())).encode()).hexdigest()[:16]
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {flags}"


def _arithmetic(device: torch.device) -> str:
    """Switches that change bits: a CPU's threads split sums, and libraries take orders from the environment."""
    switches: Mapping[str, object] = {
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "float32": torch.get_float32_matmul_precision(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        **{name: value for name, value in sorted(os.environ.items()) if name.startswith(_STEERING)},
    }
    return str(switches)
