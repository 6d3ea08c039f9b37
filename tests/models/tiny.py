"""The tiny sizes with stress weights, cached for the test session alone."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from porter.models.build import Build, plan_build
from porter.models.save import save_checkpoint

# One of each convention; tests that cost seconds a family run over these, exactness over every file in model_specs.
FAMILIES = ["gemma", "gemma2", "gemma3", "gpt2", "gpt_neox", "llama", "mistral", "phi3", "qwen2", "qwen3"]


@pytest.fixture(scope="session", autouse=True)
def porter_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Porter's cache for the session; one folder, however many modules import the fixture."""
    home, before = tmp_path_factory.getbasetemp() / "xdg_cache", os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(home)
    yield home / "porter"
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


def tiny(spec: str, *overrides: str, dtype: str = "float32", weights: str = "random:stress", **changes: Any) -> Build:
    """A build of a family's tiny size, neither checked nor recorded."""
    given: dict[str, Any] = {"ops": "reference", "device": "cpu", "prompt": None, "tokens": None, **changes}
    return plan_build(spec, size="tiny", weights=weights, overrides=overrides, dtype=dtype, **given)


def random_ids(build: Build, length: int, batch: int = 1) -> Tensor:
    """[batch, length], seeded."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(build.blueprint.dims.vocab, (batch, length), generator=generator)


def save_tiny(spec: str, folder: Path, dtype: str = "float32") -> Path:
    """The tiny size of a family, written to `folder` as a checkpoint."""
    save_checkpoint(tiny(spec, dtype=dtype), folder)
    return folder
