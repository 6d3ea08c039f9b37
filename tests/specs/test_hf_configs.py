"""The frozen sizes and HF's own saved configs: the same parameters, the same blueprints, no unread keys."""

import json
import re
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassClassValidationError
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from porter.errors import SpecError
from porter.specs.family import find_family, find_model
from porter.specs.resolve import resolve, resolve_size
from porter.specs.tree import builtin_spec_names

SIZES = [(name, size) for name in builtin_spec_names() for size in find_family(name).tree["sizes"]]
PUBLISHED = {  # elements of the safetensors on the hub, a tied head counted once
    "gemma-2b": 2_506_172_416, "gemma-7b": 8_537_680_896, "gemma-2-2b": 2_614_341_888, "gemma-2-9b": 9_241_705_984,
    "gemma-3-270m": 268_098_176, "gemma-3-1b": 999_885_952, "gpt2": 124_439_808, "gpt2-xl": 1_557_611_200,
    "pythia-70m": 70_426_624, "pythia-1b": 1_011_781_632, "llama-2-7b": 6_738_415_616, "llama-3-8b": 8_030_261_248,
    "llama-3.1-8b": 8_030_261_248, "llama-3.2-1b": 1_235_814_400, "llama-3.2-3b": 3_212_749_824,
    "smollm2-135m": 134_515_008, "mistral-7b-v0.1": 7_241_732_096, "mistral-7b-v0.3": 7_248_023_552,
    "phi-3-mini-4k": 3_821_079_552, "phi-4": 14_659_507_200, "qwen2-0.5b": 494_032_768, "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920, "qwen3-8b": 8_190_735_360,
    "phi-1.5": 1_418_270_720, "phi-2": 2_779_683_840, "starcoder2-3b": 3_030_371_328, "gpt-j-6b": 6_050_882_784,
    "starcoderbase-1b": 1_137_207_296, "starcoder": 15_517_456_384, "gpt-neo-125m": 125_198_592,
    "mixtral-8x7b": 46_702_792_704, "qwen1.5-moe-a2.7b": 14_315_784_192, "qwen3-30b-a3b": 30_532_122_624,
    "olmoe-1b-7b": 6_919_161_856, "gpt-oss-20b": 20_914_757_184, "dbrx-base": 131_596_523_520,
    "gpt-neo-1.3b": 1_315_575_808, "opt-125m": 125_239_296,
    "opt-350m": 331_196_416, "biogpt": 346_763_264, "bloom-560m": 559_214_592, "bloom-7b1": 7_069_016_064,
    "mpt-7b": 6_649_286_656, "falcon-7b": 6_921_720_704, "falcon-40b": 41_303_293_952, "xglm-564m": 564_463_616,
    "stablelm-2-12b": 12_143_185_920,
    "stablelm-3b-4e1t": 2_795_443_200, "stablelm-2-1.6b": 1_644_515_328,
}  # fmt: skip
CORRECTION = "e_score_correction_bias"  # of routers: HF keeps it in a buffer
LAYOUTS = [
    *((name, size, "to_dict") for name, size in SIZES),
    *((name, size, "saved") for name, size in SIZES if size == "tiny"),
]
TEST_IDS = [f"{name}-{size}" for name, size in SIZES]


@cache
def hf_model(name: str, size: str) -> Any:
    """HF's model of a size, on the meta device: shapes without memory."""
    family = find_family(name)
    config = CONFIG_MAPPING[family.tree["model_type"]](**deepcopy(family.size(size).config))
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def hydrated(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """A config as HF fills it in; HF writes into nested maps that it is given, hence the copy."""
    values: dict[str, Any] = CONFIG_MAPPING[find_family(name).tree["model_type"]](**deepcopy(config)).to_dict()
    return values


@pytest.mark.parametrize(("name", "size"), SIZES, ids=TEST_IDS)
def test_parameters_are_as_many_as_hf_has(name: str, size: str) -> None:
    model = hf_model(name, size)
    blueprint = resolve_size(find_family(name), size).blueprint
    assert type(model).__name__ == blueprint.architecture
    corrections = [buffer for buffer_name, buffer in model.named_buffers() if buffer_name.endswith(CORRECTION)]
    assert blueprint.num_parameters == sum(each.numel() for each in (*model.parameters(), *corrections))


@pytest.mark.parametrize(("size", "count"), PUBLISHED.items())
def test_parameters_as_published(size: str, count: int) -> None:
    family, name = find_model(size, size if size == "gpt2" else None)
    assert resolve_size(family, name or size).blueprint.num_parameters == count


def test_published_counts_are_of_sizes_that_exist() -> None:
    assert set(PUBLISHED) <= {size for _, size in SIZES} - {"tiny"}


@pytest.mark.parametrize(("name", "size", "layout"), LAYOUTS, ids=["-".join(each) for each in LAYOUTS])
def test_hfs_saved_config_gives_the_same_blueprint(name: str, size: str, layout: str, tmp_path: Path) -> None:
    family, config = find_family(name), hf_model(name, size).config
    if layout == "saved":
        config.save_pretrained(tmp_path)
        values = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    else:
        values = config.to_dict()
    frozen = family.size(size)
    assert "rope_parameters" in values or not {"rope_theta", "rotary_emb_base"} & frozen.config.keys()  # the new layout
    made = resolve(family, values, (), frozen.tokenizer)
    assert made.blueprint == resolve_size(family, size).blueprint
    assert made.unread == ()


@pytest.mark.parametrize("name", builtin_spec_names())
def test_an_unknown_key_of_a_saved_config_stays_unread(name: str) -> None:
    values = hf_model(name, "tiny").config.to_dict()
    assert resolve(find_family(name), {**values, "attention_sinks": True}).unread == ("attention_sinks",)


@pytest.mark.parametrize("name", builtin_spec_names())
def test_a_key_left_out_means_what_hf_takes_it_to_mean(name: str) -> None:
    """Without any one key, porter computes what HF's default for it gives, or refuses the config."""
    family = find_family(name)
    config = family.size("tiny").config
    for key in config:
        less = {k: v for k, v in config.items() if k != key}
        try:
            bare = resolve(family, less).blueprint
            values = hydrated(name, less)
        except (SpecError, StrictDataclassClassValidationError) as error:
            refused = (
                r"null for this config|= null, from|do not share|validate_|features of a head|cannot be chosen of|"
                r"does not meet the requirement|do not stand in|out of range"
            )
            assert re.search(refused, str(error)), key
            continue
        full = resolve(family, values).blueprint
        of_hub = {"tokenizer"}  # HF's class defaults of special tokens are no model's
        assert bare.model_dump(exclude=of_hub) == full.model_dump(exclude=of_hub), key
