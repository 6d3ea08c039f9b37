"""Records what a model computes, for porter diff --port dump:DIR. Copy this file anywhere: numpy is all it needs.

    with Recorder("my_dump", ids=ids, dtype="bfloat16", weights="checkpoint/", framework="mlx 0.32") as record:
        record("embed.out", x)            # [1, T, D], what the first layer is given
        record("layers.0.attn.ctx", ctx)  # [1, T, H * K], what the output projection is given
        record("layers.0.resid_post", x)  # [1, T, D], what the layer gives the next: the whole residual stream
        record("logits", logits)          # [1, T, V]

Names are in the README (Your port in another framework); resid_post of every layer is what others are judged on.
Values are numpy arrays: np.asarray(x) in JAX, np.array(x.astype(mx.float32)) in MLX, x.float().numpy() in torch.
"""

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np

_CODES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_LOGITS = 2**24  # of more, those at evenly spaced tokens are kept: the tokens that porter looks at


class Recorder:
    """A dump being written; its manifest comes last, so that a run which broke off leaves none."""

    def __init__(
        self, folder: str | Path, *, ids: Any, dtype: str, weights: str | Path | None = None, model: str = "",
        framework: str = "", spec: str | None = None, versions: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Starts a dump of one prompt.

        Args:
            ids: the token ids, T integers.
            dtype: what the model ran in: float32, bfloat16 or float16.
            weights: the folder with model*.safetensors that the weights came from; None: not said.
            model, framework, versions: what it is called, and what ran it, for the report.
            spec: the hash of a porter spec, where one was run.
        """
        self.folder, self.dtype, self.ids = Path(folder), dtype, [int(i) for i in np.asarray(ids).reshape(-1)]
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / "manifest.json").exists():
            raise FileExistsError(f"{folder} holds a dump already; name another folder")
        sums = [_sum_file(path) for path in sorted(Path(weights).glob("model*.safetensors"))] if weights else []
        self.manifest: dict[str, Any] = {
            "schema": "porter.dump/1", "model": model, "framework": framework, "dtype": dtype, "ids": self.ids,
            "ids_sha256": hashlib.sha256(json.dumps(self.ids).encode()).hexdigest(), "spec": spec,
            "weights": hashlib.sha256("\n".join(sums).encode()).hexdigest() if sums else None,
            "versions": {"python": platform.python_version(), "numpy": np.__version__, **(versions or {})},
            "at": {}, "files": {}, "nodes": {},
        }  # fmt: skip
        self._unit, self._held = "", {}  # type: str, dict[str, tuple[str, list[int], bytes]]

    def __call__(self, name: str, value: Any) -> None:
        """Records a node, [1, T, ...]; those of a layer one after another go into one file."""
        value, length = np.ascontiguousarray(value), len(self.ids)
        if value.dtype.name not in _CODES or value.shape[:2] != (1, length) or name in self.manifest["nodes"]:
            found = f"{value.dtype} {list(value.shape)}{', again' if name in self.manifest['nodes'] else ''}"
            raise ValueError(f"{name} is {found}, expected [1, {length}, ...] of {', '.join(_CODES)}, once")
        if name == "logits" and value.size > _LOGITS:
            count = max(1, _LOGITS // value.shape[2])
            at = (length - 1 - (np.arange(count) * length) // count)[::-1]
            value, self.manifest["at"]["logits"] = np.ascontiguousarray(value[:, at]), at.tolist()
        code, unit = _CODES[value.dtype.name], ".".join(name.split(".")[: 2 if name.startswith("layers.") else 1])
        if self.dtype == "bfloat16" and code == "F32" and not (value.view(np.uint32) & 0xFFFF).any():
            code, value = "BF16", (value.view(np.uint32) >> 16).astype(np.uint16)
        if unit != self._unit:
            self._write()
        self._unit, self._held[name] = unit, (code, list(value.shape), value.tobytes())
        self.manifest["nodes"][name] = {"dtype": code, "shape": list(value.shape)}

    def _write(self) -> None:
        """Writes what is held as one safetensors file."""
        if not self._held:
            return
        header, at, file = {}, 0, f"{len(self.manifest['files']):04}-{self._unit}.safetensors"
        for name, (code, shape, raw) in self._held.items():
            header[name] = {"dtype": code, "shape": shape, "data_offsets": [at, at := at + len(raw)]}
            self.manifest["nodes"][name]["file"] = file
        head = json.dumps(header).encode()
        raws = [raw for _, _, raw in self._held.values()]
        (self.folder / file).write_bytes(b"".join([len(head).to_bytes(8, "little"), head, *raws]))
        self.manifest["files"][file], self._held = _sum_file(self.folder / file), {}

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self._write()
            part = self.folder / ".manifest.part"
            part.write_text(json.dumps(self.manifest, indent=1), encoding="utf-8")
            part.replace(self.folder / "manifest.json")


def _sum_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
