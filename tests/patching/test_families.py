"""HuggingFace's models, patched: the same model by the comparator, and the very same once unpatched."""

from typing import Any

import pytest
import torch

from porter.comparison.verdicts import FLOORS, THRESHOLDS
from porter.patching.patch import patch_model, unpatch
from porter.patching.plan import OPS, Left
from porter.patching.verify import verify_patch
from porter.specs.tree import builtin_spec_names
from tests.models.tiny import FAMILIES, porter_cache, tiny
from tests.patching.tiny_hf import golden_step, hf_ids, hf_model, step

__all__ = ["porter_cache"]
_EVERY = frozenset(OPS)
LEFT = {  # family -> an op that stays HuggingFace's at some place, and a part of the reason
    "apertus": ("glu", "xielu"),
    "codegen": ("rope", "takes tensor, sin, cos"),
    "gptj": ("rope", "takes tensor, sin, cos"),
    "deepseek_v2": ("rope", "takes xq, xk, freqs_cis"),
    "deepseek_v3": ("rope", "an order of its own"),
    "glm4_moe_lite": ("rope", "an order of its own"),
    "youtu": ("rope", "an order of its own"),
    "nanochat": ("rms_norm", "and no other"),  # its first norm is its last, too
    "openai-gpt": ("glu", "one object for several models"),
    "stablelm": ("layer_norm", "each of its heads"),
}

# One of each convention, and whatever stays in part; `make patched` runs the comparator on every family.
SOME = sorted({*FAMILIES, *LEFT, "bloom", "cohere", "falcon", "glm", "granitemoeshared", "mixtral", "mpt", "opt"})


def test_the_table_is_of_families_that_are_there() -> None:
    assert set(SOME) <= {*builtin_spec_names()}


@pytest.mark.parametrize("family", SOME)
def test_patched_is_the_same_model(family: str) -> None:
    report = verify_patch(tiny(family), _EVERY, tokens=96)
    assert report.verdict == "PASS", report.sentence
    assert {stage.name for stage in report.stages} == {"semantics", "gradients", "behaviour"}
    assert "loss: gradient of the head's weight" in {check.name for check in report.behaviour}


@pytest.mark.parametrize("family", SOME)
def test_a_training_step_is_the_same_and_unpatching_gives_the_model_back(family: str) -> None:
    model, ids_BT = hf_model(family), hf_ids(family)
    before, parts = step(model, ids_BT), _parts(model)
    made = patch_model(model, _EVERY)
    assert [each for each in made.left if not _is_known(family, each)] == []
    patched = step(model, ids_BT)
    golden = golden_step(family, ids_BT)
    limit = THRESHOLDS["gradients"]["float32"]["rho_grad"][0]
    for port, reference in zip(patched.error(golden), before.error(golden), strict=True):
        assert port <= limit * max(reference, FLOORS["float32"])
    assert patched.gradients.keys() == before.gradients.keys()
    unpatch(model)
    assert _parts(model) == parts
    after = step(model, ids_BT)
    assert torch.equal(after.loss, before.loss)
    assert all(torch.equal(after.gradients[name], value) for name, value in before.gradients.items())


def _is_known(family: str, left: Left) -> bool:
    """Experts stay in every mixture; else what the table says."""
    op, part = LEFT.get(family, ("", ""))
    return "experts stay" in left.reason or (left.op == op and part in left.reason)


def _parts(model: Any) -> dict[str, Any]:
    """Every object that a model is made of, by identity, but for its tensors; and how many hooks are on it."""
    tensors = {"_parameters", "_buffers", "_modules"}
    return {
        path: (
            type(module),
            {name: id(value) for name, value in vars(module).items() if name not in tensors and "_hooks" not in name},
            {name: len(value) for name, value in vars(module).items() if "_hooks" in name and value is not None},
            type(module).forward,
        )
        for path, module in model.named_modules()
    }
