"""The recorder that people copy: numpy is all it needs, safetensors reads what it writes, bad input is refused."""

import ast
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from porter.references import recorder
from porter.references.dump import open_dump
from porter.references.recorder import Recorder

IDS = [3, 1, 4, 1, 5]
FLOATS = np.random.default_rng(0).standard_normal((1, 5, 8)).astype(np.float32)


def record_one(
    folder: Path, value: np.ndarray, dtype: str = "float32", name: str = "layers.0.attn.ctx"
) -> torch.Tensor:
    with Recorder(folder, ids=IDS, dtype=dtype) as record:
        record(name, value)
    return open_dump(f"dump:{folder}").read(name, torch.device("cpu"))


def test_it_needs_numpy_alone_and_is_short() -> None:
    text = Path(recorder.__file__).read_text(encoding="utf-8")
    imported = {name.partition(".")[0] for node in ast.walk(ast.parse(text)) for name in (
        [alias.name for alias in node.names] if isinstance(node, ast.Import)
        else [str(node.module)] if isinstance(node, ast.ImportFrom) else [])}  # fmt: skip
    assert imported == {"hashlib", "json", "platform", "pathlib", "typing", "numpy"}
    assert len(text.splitlines()) <= 110  # about 60 of them code


@pytest.mark.parametrize("kind", ["float64", "float32", "float16"])
def test_values_come_back_bit_for_bit(tmp_path: Path, kind: str) -> None:
    value = FLOATS.astype(kind)
    assert torch.equal(record_one(tmp_path / "d", value), torch.from_numpy(value))


def test_bfloat16_is_kept_as_such_and_what_is_none_in_float32(tmp_path: Path) -> None:
    rounded = torch.from_numpy(FLOATS).bfloat16()
    kept = record_one(tmp_path / "a", rounded.float().numpy(), "bfloat16")
    assert kept.dtype == torch.bfloat16 and torch.equal(kept, rounded)
    assert record_one(tmp_path / "b", FLOATS, "bfloat16").dtype == torch.float32
    assert record_one(tmp_path / "c", rounded.float().numpy(), "float32").dtype == torch.float32


def test_strided_views_are_written_as_they_look(tmp_path: Path) -> None:
    value = np.ascontiguousarray(FLOATS.transpose(0, 2, 1)).transpose(0, 2, 1)
    assert torch.equal(record_one(tmp_path / "d", value), torch.from_numpy(FLOATS))


def test_files_are_safetensors_a_unit_each(tmp_path: Path) -> None:
    with Recorder(tmp_path, ids=IDS, dtype="float32") as record:
        for name in ("embed.out", "layers.0.attn.ctx", "layers.0.resid_post", "layers.1.resid_post", "logits"):
            record(name, FLOATS)
        record("layers.0.mlp.act", FLOATS)  # a unit may be gone back to
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    files = [file.partition("-")[2].removesuffix(".safetensors") for file in manifest["files"]]
    assert files == ["embed", "layers.0", "layers.1", "logits", "layers.0"]
    assert set(load_file(tmp_path / "0001-layers.0.safetensors")) == {"layers.0.attn.ctx", "layers.0.resid_post"}


def test_of_many_logits_those_that_porter_looks_at_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_LOGITS", 16)
    assert torch.equal(record_one(tmp_path, FLOATS, name="logits"), torch.from_numpy(FLOATS[:, [2, 4]]))
    assert open_dump(f"dump:{tmp_path}").manifest.at == {"logits": [2, 4]}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (FLOATS[:, :3], r"is float32 \[1, 3, 8\], expected \[1, 5, \.\.\.\]"),
        (FLOATS[0], r"is float32 \[5, 8\], expected \[1, 5"),
        (FLOATS.astype(np.int64), r"is int64 \[1, 5, 8\], expected .* of float64, float32, float16, bfloat16"),
    ],
    ids=["short", "no batch", "integers"],
)
def test_a_wrong_value_is_refused(tmp_path: Path, value: np.ndarray, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        record_one(tmp_path, value)
    assert not (tmp_path / "manifest.json").exists()


def test_a_node_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="again"), Recorder(tmp_path, ids=IDS, dtype="float32") as record:
        record("embed.out", FLOATS)
        record("embed.out", FLOATS)


def test_a_dump_is_never_written_over(tmp_path: Path) -> None:
    record_one(tmp_path, FLOATS)
    with pytest.raises(FileExistsError, match="holds a dump already"):
        Recorder(tmp_path, ids=IDS, dtype="float32")
