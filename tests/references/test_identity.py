"""What tells one reference's numbers from another's, and how a checkpoint is known again without reading it."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from porter.models.build import Build
from porter.references import identity
from porter.references.identity import hash_checkpoint, reference_identity
from tests.models.tiny import save_tiny, tiny

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama", tmp_path_factory.mktemp("saved") / "llama")


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy whose files look an hour old, but for the time of their inodes."""
    copy = Path(shutil.copytree(saved, tmp_path / "llama"))
    for path in copy.iterdir():
        os.utime(path, (path.stat().st_mtime - 3600,) * 2)
    return copy


def known(folder: Path, build: Build | None = None) -> dict[str, str]:
    return reference_identity(folder, (build or tiny("llama")).reference_blueprint, CPU, None)


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {key for key in before if before[key] != after[key]}


def test_it_is_the_same_for_a_copy_and_for_another_port(folder: Path, saved: Path) -> None:
    port = tiny("llama", "norm.eps=1e-3", "block.mlp.act=relu")
    assert known(folder) == known(saved) == known(saved, port)


def test_one_bit_of_the_weights_or_one_key_of_the_config_changes_it(folder: Path) -> None:
    before = known(folder)
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert changed(before, known(folder)) == {"checkpoint"}
    before = known(folder)
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"rope_theta": ', '"rope_theta": 1'))
    assert changed(before, known(folder)) == {"config"}


def test_a_spec_that_finds_hf_s_nodes_elsewhere_changes_it(folder: Path) -> None:
    assert changed(known(folder), known(folder, tiny("qwen3"))) == {"nodes", "modeling"}


def test_versions_threads_and_the_device_change_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = known(folder)
    for target, name, value, key in (
        (torch, "get_num_threads", lambda: 77, "arithmetic"), (torch, "__version__", "9.9", "torch"),
        (identity.transformers, "__version__", "9.9", "transformers"), (identity, "__version__", "9.9", "porter"),
        (identity.matmul, "cpu_flags", lambda: frozenset({"sse"}), "device"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(target, name, value)
            assert changed(before, known(folder)) == {key}
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert changed(before, known(folder)) == {"arithmetic"}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The files that are read through; changes of inodes count as settled at once, as if an hour had passed."""
    found: list[object] = []
    real = identity.hashlib.file_digest

    def noting(file, name):
        found.append(file.name)
        return real(file, name)

    monkeypatch.setattr(identity.hashlib, "file_digest", noting)
    monkeypatch.setattr(identity, "_SETTLED_S", -1.0)
    return found


def test_a_checkpoint_is_read_through_once(folder: Path, tmp_path: Path, reads: list[object]) -> None:
    first, second = (hash_checkpoint(folder, tmp_path / "notes") for _ in range(2))
    assert first == second == hash_checkpoint(folder, None) and len(reads) == 2  # the last keeps no notes
    assert [path.suffix for path in (tmp_path / "notes").iterdir()] == [""]


def test_a_change_that_keeps_size_and_time_is_seen(folder: Path, tmp_path: Path, reads: list[object]) -> None:
    first = hash_checkpoint(folder, tmp_path / "notes")
    file = folder / "model.safetensors"
    stat = file.stat()
    with file.open("r+b") as opened:
        opened.seek(-1, os.SEEK_END)
        last = opened.read()[0]
        opened.seek(-1, os.SEEK_END)
        opened.write(bytes([last ^ 1]))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    assert hash_checkpoint(folder, tmp_path / "notes") != first and len(reads) == 2


def test_a_file_that_was_just_written_is_not_noted(folder: Path, tmp_path: Path, monkeypatch, reads) -> None:
    monkeypatch.setattr(identity, "_SETTLED_S", 2.0)
    (folder / "model.safetensors").touch()
    for _ in range(2):
        hash_checkpoint(folder, tmp_path / "notes")
    assert len(reads) == 2 and not (tmp_path / "notes").exists()


@pytest.mark.parametrize("note", ["", "abc", "z" * 64, "é"])
def test_a_note_that_is_none_is_made_again(folder: Path, tmp_path: Path, reads: list[object], note: str) -> None:
    first = hash_checkpoint(folder, tmp_path / "notes")
    (path,) = (tmp_path / "notes").iterdir()
    path.write_text(note, encoding="utf-8")
    assert hash_checkpoint(folder, tmp_path / "notes") == first and len(path.read_text()) == 64


def test_notes_that_cannot_be_kept_are_done_without(folder: Path, tmp_path: Path, reads: list[object]) -> None:
    (tmp_path / "file").write_text("in the way")
    assert hash_checkpoint(folder, tmp_path / "file" / "notes") == hash_checkpoint(folder, None)
