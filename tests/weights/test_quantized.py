"""A quantised checkpoint is converted once, in HF's layout, and refused where it cannot be."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from porter.errors import ArtifactError
from porter.weights.quantized import dequantized_folder
from porter.weights.sources import find_weights, read_config
from porter.weights.transforms import dequantize_fp8, dequantize_mxfp4
from tests.models.tiny import porter_cache

__all__ = ["porter_cache"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tensors = {
        "experts.down_proj_blocks": torch.randint(256, (2, 6, 3, 16), dtype=torch.uint8),
        "experts.down_proj_scales": torch.randint(120, 130, (2, 6, 3), dtype=torch.uint8),
        "q.weight": torch.randn(130, 64).to(torch.float8_e4m3fn),
        "q.weight_scale_inv": torch.rand(2, 1) + 0.1,
        "norm.weight": torch.randn(8).bfloat16(),
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path


def test_the_conversion_is_what_the_transforms_give(folder: Path) -> None:
    source = find_weights(str(folder), size="")
    assert source.folder is not None and source.folder != folder and source.config == {"model_type": "gpt_oss"}
    packed, plain = load_file(folder / "model.safetensors"), load_file(source.folder / "model.safetensors")
    experts = dequantize_mxfp4(packed["experts.down_proj_blocks"], packed["experts.down_proj_scales"])
    assert torch.equal(plain["experts.down_proj"], experts.transpose(1, 2)) and experts.shape == (2, 6, 96)
    assert torch.equal(plain["q.weight"], dequantize_fp8(packed["q.weight"], packed["q.weight_scale_inv"]))
    assert torch.equal(plain["norm.weight"], packed["norm.weight"])
    assert plain.keys() == {"experts.down_proj", "q.weight", "norm.weight"}
    assert "quantization_config" not in read_config(source.folder)
    assert find_weights(str(folder), size="").folder == source.folder  # made once


def test_what_cannot_be_converted_is_refused(folder: Path) -> None:
    with pytest.raises(ArtifactError, match=r"is quantised by 'gptq'"):
        dequantized_folder(folder, {"quantization_config": {"quant_method": "gptq"}})
    tensors = load_file(folder / "model.safetensors")
    del tensors["q.weight_scale_inv"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match=r"has q\.weight, but no q\.weight_scale_inv"):
        find_weights(str(folder), size="")


@pytest.mark.parametrize("name", ["steps", "other.weight_scale_inv"])
def test_no_tensor_is_left_out_without_a_word(folder: Path, name: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = torch.ones(4, dtype=torch.int32) if name == "steps" else torch.ones(2, 1)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match=rf"{name} \([IF]32\) cannot be dequantised"):
        find_weights(str(folder), size="")
