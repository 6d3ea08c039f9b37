"""config.json as older files on the hub have it, with rope_theta, rope_scaling and the like at the top, keys absent or
null: resolved as it stands it is what HF takes it to mean. Each file of old_configs/ is a case."""

import json
from copy import deepcopy
from pathlib import Path

import pytest
from transformers import CONFIG_MAPPING

from porter.specs.family import find_model_type
from porter.specs.resolve import resolve

CASES = sorted((Path(__file__).parent / "old_configs").glob("*.json"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_an_old_config_means_what_hf_takes_it_to_mean(path: Path) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    family = find_model_type(config["model_type"])
    raw = resolve(family, config)
    hydrated = CONFIG_MAPPING[config["model_type"]].from_dict(deepcopy(config)).to_dict()
    assert "rope_parameters" not in config
    of_hub = {"tokenizer"}  # HF's class defaults of special tokens are no model's
    assert raw.blueprint.model_dump(exclude=of_hub) == resolve(family, hydrated).blueprint.model_dump(exclude=of_hub)
    assert raw.unread == ()
