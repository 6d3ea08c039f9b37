"""Checkpoints in MXFP4 (gpt-oss) and in float8 by blocks (DeepSeek V3), converted once to bfloat16 in HF's layout.

transformers' own dequantisation gives the same bits; tests compare. Both sides of a diff then read the same weights.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from porter.errors import ArtifactError
from porter.specs.plugins import plugin_of
from porter.weights.cache import cached
from porter.weights.safetensors_files import Checkpoint, TensorSpec, open_checkpoint, write_checkpoint

VERSION = 1  # of the conversion: a change makes other folders
_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class _Made:
    """One tensor of the converted checkpoint, and what it is made of."""

    spec: TensorSpec
    method: str  # keep, mxfp4, fp8
    sources: tuple[str, ...]


def dequantized_folder(folder: Path, config: Mapping[str, Any]) -> Path:
    """The cached bfloat16 checkpoint of a quantised one; the folder itself where it is none.

    Raises:
        ArtifactError: it is quantised in another way, a packed tensor lacks its scales, or a tensor would be left out.
    """
    method = (config.get("quantization_config") or {}).get("quant_method")
    if not method:
        return folder
    if method not in ("mxfp4", "fp8"):
        raise ArtifactError(
            f"{folder} is quantised by {method!r}", "mxfp4, fp8, or weights as they are", "Use the original weights."
        )
    checkpoint = open_checkpoint(folder)
    about = [[name, info.dtype, info.shape, info.start, info.file.stat().st_mtime_ns]
             for name, info in sorted(checkpoint.tensors.items())]  # fmt: skip
    digest = hashlib.sha256(json.dumps([str(folder.resolve()), about, config], sort_keys=True).encode()).hexdigest()
    return cached(f"dequantized-{method}-{digest[:16]}-v{VERSION}", lambda target: _write(checkpoint, config, target))


def _write(checkpoint: Checkpoint, config: Mapping[str, Any], target: Path) -> None:
    made = {each.spec.name: each for each in _plan(checkpoint)}
    _check_all_are_used(checkpoint, {source for each in made.values() for source in each.sources})

    def blocks(name: str) -> Iterator[Tensor]:
        each = made[name]
        if each.method == "keep":
            yield from checkpoint.blocks(each.sources[0])
            return
        packed, scales = (checkpoint.read(source) for source in each.sources)
        plugin = plugin_of("weight", each.method)
        assert plugin is not None
        whole: Tensor = plugin.load()(packed, scales)
        # Of experts in MXFP4 [experts, out, in] is stored, and transformers keeps them turned round.
        yield whole.transpose(-2, -1).contiguous() if each.method == "mxfp4" else whole

    write_checkpoint(target, [each.spec for each in made.values()], blocks)
    for path in checkpoint.folder.glob("*.json"):
        if not path.name.endswith(".index.json") and path.name != "config.json":
            shutil.copyfile(path, target / path.name)
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    (target / "config.json").write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")


def _plan(checkpoint: Checkpoint) -> Iterator[_Made]:
    tensors = checkpoint.tensors
    for name, info in tensors.items():
        if name.endswith("_blocks"):
            base = name.removesuffix("_blocks")
            scales = _beside(checkpoint, name, f"{base}_scales")
            *experts, out, count, size = info.shape
            yield _Made(TensorSpec(base, (*experts, 2 * count * size, out), "BF16"), "mxfp4", (name, scales))
        elif info.dtype.startswith("F8"):
            scales = _beside(checkpoint, name, f"{name}_scale_inv")
            yield _Made(TensorSpec(name, info.shape, "BF16"), "fp8", (name, scales))
        elif info.dtype in _FLOATS and not name.endswith("_scale_inv"):
            yield _Made(TensorSpec(name, info.shape, info.dtype), "keep", (name,))


def _check_all_are_used(checkpoint: Checkpoint, used: Set[str]) -> None:
    """Refuses tensors that are neither floats, nor packed, nor the scales of packed ones."""
    left = [name for name in checkpoint.tensors if name not in used]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise ArtifactError(
            f"{checkpoint.folder}: {left[0]} ({checkpoint.tensors[left[0]].dtype}){more} cannot be dequantised",
            "weights in MXFP4 or float8 with their scales, and others in floats",
            "Use the original weights.",
        )


def _beside(checkpoint: Checkpoint, name: str, scales: str) -> str:
    if scales in checkpoint.tensors:
        return scales
    raise ArtifactError(
        f"{checkpoint.folder} has {name}, but no {scales}",
        "the scales of every packed tensor",
        "Fetch it again, whole.",
    )
