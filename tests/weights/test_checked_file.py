"""Files with a checksum: exact, and no flip of a bit and no cut goes unnoticed."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from porter.errors import ArtifactError
from porter.weights.checked_file import read_checked, write_checked

ABOUT = {"unit": "layers.3", "input": "abc"}


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(2, 3, 5, dtype=torch.float64, generator=generator)
    odd = torch.tensor([float("nan"), -0.0, float("inf"), 2**-149])
    return {"b.narrow": wide.to(torch.bfloat16), "wide": wide.transpose(1, 2), "odd": odd, "none": torch.empty(1, 0, 4)}


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    raw = [each.contiguous().view(-1).view(torch.uint8) for each in (one, other)]
    return (one.dtype, one.shape) == (other.dtype, other.shape) and torch.equal(*raw)


def test_what_was_written_is_read_bit_for_bit_by_porter_and_by_the_safetensors_library(tmp_path: Path) -> None:
    path = tmp_path / "unit.safetensors"
    write_checked(path, tensors(), ABOUT)
    found, about = read_checked(path)
    assert about == ABOUT and found.keys() == tensors().keys()
    assert all(same_bits(found[name], value) and found[name].is_contiguous() for name, value in tensors().items())
    assert all(same_bits(value, tensors()[name]) for name, value in load_file(path).items())
    with safe_open(path, "pt") as opened:
        assert opened.metadata()["unit"] == "layers.3"
    assert [each.name for each in tmp_path.iterdir()] == ["unit.safetensors"]


def test_another_file_in_the_place_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "unit"
    path.write_text("something else")
    write_checked(path, {"x": torch.ones(2)}, {})
    assert read_checked(path)[0]["x"].tolist() == [1.0, 1.0]


def test_no_flipped_bit_goes_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "unit"
    write_checked(path, {"attn.q": torch.tensor([[1.5, -2.0]]), "attn.k": torch.tensor([3], dtype=torch.int8)}, ABOUT)
    good = path.read_bytes()
    for bit in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(ArtifactError):
            read_checked(path)


def test_no_cut_goes_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "unit"
    write_checked(path, tensors(), ABOUT)
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(ArtifactError):
            read_checked(path)


def test_a_checkpoint_of_another_writer_is_no_such_file(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ArtifactError, match="was changed: its checksum"):
        read_checked(tmp_path / "model.safetensors")


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_write_that_was_interrupted_leaves_what_was_there(tmp_path: Path, monkeypatch, error) -> None:
    path = tmp_path / "unit"
    write_checked(path, {"x": torch.ones(1)}, {})
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(error))
    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        write_checked(path, {"x": torch.zeros(1)}, {})
    assert read_checked(path)[0]["x"].item() == 1.0 and [each.name for each in tmp_path.iterdir()] == ["unit"]
