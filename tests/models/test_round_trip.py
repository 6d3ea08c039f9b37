"""Every family: a port's parameters, changed in memory and written in HuggingFace's layout, give it the same bits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from porter.comparison.exactness import check_exactness
from porter.errors import ArtifactError, PreflightError, SpecError
from porter.models.build import Build, plan_build
from porter.models.save import save_model
from porter.references.unknown import hydrate
from porter.specs.axes import first_of_each_kind
from porter.specs.tree import builtin_spec_names
from tests.models.tiny import tiny

TOKENS = 24


def shortened(build: Build) -> Build:
    """The build with two layers, where two show every kind of layer that it has."""
    key, count = str(build.family.tree["dims"]["layers"]).removeprefix("=cfg."), build.blueprint.dims.layers
    config: dict[str, Any] = {
        k: v[:2] if isinstance(v, list) and len(v) == count else v for k, v in build.config.items()
    }
    less = replace(build, config={**config, key: 2})
    try:
        kinds = len(first_of_each_kind(less.blueprint))
        hydrate({**less.config, "model_type": less.blueprint.model_type})
    except (SpecError, PreflightError):  # a list of the config counts the layers another way
        return build
    return less if key in config and kinds == len(first_of_each_kind(build.blueprint)) else build


@torch.no_grad()
@pytest.mark.parametrize("family", builtin_spec_names())
def test_what_is_written_is_what_hf_computes_with(family: str, tmp_path: Path) -> None:
    build = shortened(tiny(family))
    model = build.model()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():  # no tensor stays what it was, so that none can come from the first checkpoint
        parameter.mul_(1 + 0.01 * torch.rand(parameter.shape, generator=generator))
    save_model(model, build.config, tmp_path / "out")
    again = plan_build(
        str(build.family.path), size=None, weights=str(tmp_path / "out"), overrides=(), dtype="float32",
        ops="reference", device="cpu", prompt=None, tokens=None,
    )  # fmt: skip
    reread = again.model()
    pairs = zip(model.named_parameters(), reread.named_parameters(), strict=True)
    assert [name for (name, one), (_, other) in pairs if not torch.equal(one, other)] == []
    (row,) = check_exactness(again, ["float32"], tokens=TOKENS)
    assert (row.first, row.difference) == (None, 0.0)


def test_a_model_is_not_written_over_another(tmp_path: Path) -> None:
    build = tiny("gemma")
    save_model(build.model(), build.config, tmp_path / "out")
    with pytest.raises(ArtifactError, match="already holds a checkpoint"):
        save_model(build.model(), build.config, tmp_path / "out")
