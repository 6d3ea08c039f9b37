"""What layers keep with porter's kernels in them, against what autograd keeps of patched models."""

import pytest
import torch

from porter.bench.footprint.plan import Plan
from porter.bench.footprint.step import footprint
from porter.bench.training.models import counting_saved, draw_batch, make_model
from porter.patching.patch import patch
from porter.specs.shapes import find_shape

CPU = torch.device("cpu")
# gemma3 norms queries that lie head by head, and stablelm rotates a part that it cuts out itself: both copy a context.
CLOSE = {"gemma3": 0.08, "stablelm": 0.07}  # of what a step keeps, less by the product of gate and up


@pytest.mark.parametrize(
    "family",
    (
        "cohere",
        "gemma",
        "gemma2",
        "gemma3",
        "gpt_neox",
        "llama",
        "mistral",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen3",
        "stablelm",
        "starcoder2",
    ),
)
def test_patched_models_keep_what_is_predicted(family: str) -> None:
    shape = find_shape(family, "tiny")
    plan = Plan(2, 24, dtype="float32", attention="eager" if family == "gemma2" else "sdpa", fused=True)
    model = make_model(shape, dtype=torch.float32, device=CPU, attention=plan.attention)
    patch(model, linear_cross_entropy=False)
    ids_BT = draw_batch(shape, plan.batch, plan.tokens, CPU)
    with counting_saved(model) as found:
        loss = model(input_ids=ids_BT, labels=ids_BT, use_cache=False).loss
        found.pop(ids_BT.untyped_storage().data_ptr(), None)
        assert loss.requires_grad
    assert footprint(shape.blueprint, plan).kept == pytest.approx(sum(found.values()), rel=CLOSE.get(family, 0), abs=0)
