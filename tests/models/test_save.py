"""Checkpoints written by porter: whole, HF's own layout, and never over another."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from porter.errors import UsageError
from porter.models.build import plan_build
from porter.models.save import save_checkpoint
from tests.full_disk import largest_file
from tests.models.checkpoints import add_tokenizer
from tests.models.tiny import FAMILIES, save_tiny, tiny
from tests.read_only import read_only


@pytest.mark.parametrize("family", FAMILIES)
def test_hf_loads_every_tensor_of_a_saved_checkpoint(family: str, tmp_path: Path) -> None:
    folder = save_tiny(family, tmp_path / "model")
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert sum(each.numel() for each in model.parameters()) == tiny(family).blueprint.num_parameters


def test_a_checkpoint_is_copied_as_it_is_stored_with_its_tokenizer(tmp_path: Path) -> None:
    first = save_tiny("gemma", tmp_path / "first", dtype="bfloat16")
    add_tokenizer(first)
    (first / "notes.txt").write_text("mine")
    made = plan_build(str(first), size=None, weights=None, overrides=(), dtype="float32", ops="auto", device="cpu",
                      prompt=None, tokens=None)  # fmt: skip
    save_checkpoint(made, tmp_path / "second")
    assert sorted(path.name for path in (tmp_path / "second").iterdir()) == [
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert (first / "tokenizer.json").read_bytes() == (tmp_path / "second/tokenizer.json").read_bytes()
    left, right = (load_file(folder / "model.safetensors") for folder in (first, tmp_path / "second"))
    assert left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)
    assert {tensor.dtype for tensor in right.values()} == {torch.bfloat16}  # as stored, not the port's dtype
    assert json.loads((tmp_path / "second/config.json").read_text())["architectures"] == ["GemmaForCausalLM"]


def test_overrides_stay_out_of_a_saved_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tiny("gemma", "norm.offset=0"), tmp_path / "model")
    assert torch.equal(
        load_file(tmp_path / "model/model.safetensors")["model.norm.weight"],
        load_file(tiny("gemma").checkpoint() / "model.safetensors")["model.norm.weight"],
    )


def test_nothing_is_overwritten_and_nothing_is_left_where_writing_failed(tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path / "model")
    with pytest.raises(UsageError, match="holds a checkpoint already"):
        save_tiny("llama", folder)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match=r"cannot be written \(.+\)\n.*a folder porter may write to"):
        save_tiny("llama", tmp_path / "file" / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "model"]


@pytest.mark.parametrize("stops_at", ["tokenizer.json", "config.json"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_save_that_stops_after_the_weights_leaves_nothing_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops_at: str, error: type | OSError
) -> None:
    first = save_tiny("gemma", tmp_path / "first")
    add_tokenizer(first)
    made = plan_build(str(first), size=None, weights=None, overrides=(), dtype="float32", ops="auto", device="cpu",
                      prompt=None, tokens=None)  # fmt: skip
    with monkeypatch.context() as patch:
        copy, write = shutil.copyfile, Path.write_text

        def stop(path: Path) -> None:
            if path.name == stops_at:
                raise error

        patch.setattr(shutil, "copyfile", lambda source, target: (stop(target), copy(source, target)))
        patch.setattr(Path, "write_text", lambda path, *given, **named: (stop(path), write(path, *given, **named)))
        with pytest.raises(UsageError if isinstance(error, OSError) else error):
            save_checkpoint(made, tmp_path / "second")
    assert [path.name for path in tmp_path.iterdir()] == ["first"]
    save_checkpoint(made, tmp_path / "second")
    assert (tmp_path / "second/config.json").is_file()


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path) -> None:
    with largest_file(50_000), pytest.raises(UsageError, match=r"cannot be written \(File too large\)\n.*with room"):
        save_checkpoint(tiny("llama"), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_other_files_of_the_folder_stay_but_no_weights_are_written_over(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/notes.txt").write_text("mine")
    save_tiny("llama", tmp_path / "model")
    assert (tmp_path / "model/notes.txt").read_text() == "mine"
    (tmp_path / "model/config.json").unlink()
    with pytest.raises(UsageError, match="holds a checkpoint already"):
        save_tiny("llama", tmp_path / "model")


def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    with read_only(tmp_path / "place"), pytest.raises(UsageError, match=r"cannot be written \(Permission denied\)"):
        save_tiny("llama", tmp_path / "place/model")
