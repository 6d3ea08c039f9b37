"""A dump: what a model computed for one prompt, as a Recorder wrote it, read a unit at a time.

A folder with manifest.json (schema porter.dump/1) and safetensors files. What the manifest says is held against the
files when the dump is opened: token ids against their own hash, each file against its checksum, each node's dtype and
shape against the file's header.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from porter.errors import ArtifactError
from porter.weights.safetensors_files import Checkpoint, TensorInfo, read_header

SCHEMA = "porter.dump/1"
PREFIX = "dump:"  # of --port and --reference
MANIFEST = "manifest.json"
_AGAIN = "Record the dump again, or copy it again; nothing of it is used."


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", strict=True)


class NodeEntry(_Strict):
    """A node: which file holds it, in which dtype (safetensors' name) and shape."""

    file: str
    dtype: str
    shape: list[int]


class Manifest(_Strict):
    """What a dump says of itself; see Recorder."""

    model: str = ""
    framework: str = ""
    dtype: Literal["float32", "bfloat16", "float16"]
    ids: list[int]
    ids_sha256: str
    spec: str | None = None
    weights: str | None = None
    versions: dict[str, str] = {}
    at: dict[str, list[int]] = {}
    files: dict[str, str]
    nodes: dict[str, NodeEntry]


@dataclass(frozen=True)
class Dump:
    """An opened dump; values are read when asked for, and not kept."""

    folder: Path
    manifest: Manifest
    tensors: Checkpoint

    @property
    def dtype(self) -> torch.dtype:
        kind: torch.dtype = getattr(torch, self.manifest.dtype)
        return kind

    def holds(self, name: str) -> bool:
        return name in self.manifest.nodes

    def read(self, name: str, device: torch.device) -> Tensor:
        """A node, [1, T, ...], or [1, t, ...] where the dump holds some tokens of it."""
        return self.tensors.read(name).to(device)

    def unit(self, name: str, device: torch.device) -> dict[str, Tensor]:
        """The nodes of a unit, without layers.{i}: of embed, a layer, or head (final.norm and logits)."""
        nodes = self.manifest.nodes
        if name.startswith("layers."):
            return {n.removeprefix(f"{name}."): self.read(n, device) for n in nodes if n.startswith(f"{name}.")}
        wanted = ("embed.out",) if name == "embed" else ("final.norm", "logits")
        return {n: self.read(n, device) for n in wanted if n in nodes}

    def entry(self, layer: int, num_layers: int) -> str | None:
        """The node that is a layer's input, or the head's for layer = num_layers; None: the dump has none."""
        before = "embed.out" if layer == 0 else f"layers.{layer - 1}.resid_post"
        names = (f"layers.{layer}.resid_pre", before) if layer < num_layers else (before,)
        return next((name for name in names if self.holds(name)), None)

    def describe(self) -> str:
        said = ", ".join(each for each in (self.manifest.framework, self.manifest.model) if each)
        return f"dump {self.folder.name}{f' of {said}' if said else ''}"


def is_dump(side: str) -> bool:
    return side.startswith(PREFIX)


def open_dump(side: str) -> Dump:
    """The dump that `dump:DIR` names.

    Raises:
        ArtifactError: it is not there, unfinished, cut off, or not what its manifest says.
    """
    folder = Path(side.removeprefix(PREFIX)).expanduser()
    manifest = _read_manifest(folder)
    found = hashlib.sha256(json.dumps(manifest.ids).encode()).hexdigest()
    if found != manifest.ids_sha256:
        wrong = f"{folder / MANIFEST}: its {len(manifest.ids)} token ids have the hash {found[:12]}…"
        raise ArtifactError(wrong, f"ids_sha256, {manifest.ids_sha256[:12]}…: the ids were changed", _AGAIN)
    headers: dict[str, TensorInfo] = {}
    for file, said in manifest.files.items():
        headers |= _read_file(folder, file, said)
    _check_nodes(folder, manifest, headers)
    return Dump(folder, manifest, Checkpoint(folder, MappingProxyType(headers)))


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    if not path.is_file():
        missing = f"{folder} does not exist" if not folder.exists() else f"{folder} has no {MANIFEST}"
        fix = "A run that broke off leaves none: record it again." if folder.is_dir() else "Name the dump's folder."
        raise ArtifactError(missing, f"a dump, as porter capture or its Recorder writes it ({MANIFEST})", fix)
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        schema = document.get("schema") if isinstance(document, Mapping) else None
        if schema != SCHEMA:
            raise ArtifactError(f"{path}: its schema is {schema!r}", repr(SCHEMA), "Record the dump with this porter.")
        return Manifest.model_validate({key: value for key, value in document.items() if key != "schema"})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ArtifactError(f"{path}: {where}: {first['msg']}", f"a manifest of {SCHEMA}", _AGAIN) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}", f"a manifest of {SCHEMA} in JSON", _AGAIN) from error


def _read_file(folder: Path, file: str, said: str) -> dict[str, TensorInfo]:
    path = folder / file
    if Path(file).name != file or not path.is_file():
        raise ArtifactError(f"{folder} lacks {file}", "every file that its manifest names", _AGAIN)
    headers = read_header(path)
    with path.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != said:
        raise ArtifactError(f"{path} has the checksum {found[:12]}…", f"{said[:12]}…, as its manifest says", _AGAIN)
    return headers


def _check_nodes(folder: Path, manifest: Manifest, headers: Mapping[str, TensorInfo]) -> None:
    for name in sorted({*headers, *manifest.nodes}):
        said, found = manifest.nodes.get(name), headers.get(name)
        if said is None or found is None:
            wrong = f"{folder}: {name} is {'in a file' if found else 'in the manifest'} alone"
            raise ArtifactError(wrong, "the nodes of the manifest in the files, and no others", _AGAIN)
        if (said.file, said.dtype, tuple(said.shape)) != (found.file.name, found.dtype, found.shape):
            wrong = f"{folder}: {name} is {found.dtype} {list(found.shape)} in {found.file.name}"
            raise ArtifactError(wrong, f"{said.dtype} {said.shape} in {said.file}, as its manifest says", _AGAIN)
        length = len(manifest.at.get(name, manifest.ids))
        if len(found.shape) < 2 or found.shape[:2] != (1, length):
            wrong = f"{folder}: {name} is {list(found.shape)}"
            raise ArtifactError(wrong, f"[1, {length}, ...], a row a token", "Record [batch, token, ...].")
    for name, at in manifest.at.items():
        if at != sorted(set(at)) or (at and not 0 <= at[0] <= at[-1] < len(manifest.ids)):
            raise ArtifactError(f"{folder}: at.{name} is no list of tokens", "rising token indices", _AGAIN)


def check_values(dump: Dump, names: Iterable[str]) -> None:
    """Holds a dump's dtype against its values.

    Args:
        names: nodes of the residual stream; a stream that is rounded more coarsely than it says was run otherwise.

    Raises:
        ArtifactError: they are of another dtype than the manifest says.
    """
    said, held = dump.manifest.dtype, [name for name in names if dump.holds(name)]
    if not held:
        return
    values = [dump.read(name, torch.device("cpu")) for name in held]
    fit = {kind: [_fits(value, kind) for value in values] for kind in (torch.bfloat16, torch.float16)}
    unfit = next((name for name, ok in zip(held, fit.get(dump.dtype, ()), strict=False) if not ok), None)
    if unfit is not None:
        wrong = f"{dump.folder}: {unfit} holds values that no {said} has, and the manifest says {said}"
        raise ArtifactError(wrong, "a residual stream in the dtype of the manifest", "Say the dtype that was run.")
    coarse = next((kind for kind, ok in fit.items() if dump.dtype == torch.float32 and all(ok)), None)
    if coarse is not None:
        name = str(coarse).removeprefix("torch.")
        wrong = f"{dump.folder}: every value of {', '.join(held)} is a {name}, and the manifest says {said}"
        raise ArtifactError(wrong, "a residual stream in the dtype of the manifest", "Say the dtype that was run.")


def _fits(value: Tensor, kind: torch.dtype) -> bool:
    return bool(torch.equal(value.to(kind).to(value.dtype).nan_to_num(), value.nan_to_num()))
