"""What layers and loss keep, against what autograd really keeps of HuggingFace's models of every family."""

from dataclasses import replace

import pytest
import torch

from porter.bench.footprint.layer import table_bytes
from porter.bench.footprint.plan import Plan
from porter.bench.footprint.step import footprint
from porter.bench.training.models import counting_saved, draw_batch, make_model
from porter.errors import UsageError
from porter.specs import builtin_spec_names
from porter.specs.shapes import Shape, find_shape

CPU = torch.device("cpu")
PLAN = Plan(2, 24, dtype="float32")
# What the spec has no axis for: a head of this width is made by hand, softmax in another dtype, an activation in parts.
CLOSE = {
    "cohere_compass_text": 0.01, "ernie4_5": 0.02, "glm": 0.01, "glm4": 0.01, "gpt2": 0.001, "gpt_bigcode": 0.001,
    "helium": 0.01, "ministral3": 0.001, "nanochat": 0.03, "openai-gpt": 0.04, "opt": 0.001, "xglm": 0.07,
    "biogpt": 0.001,
}  # fmt: skip
UNCOUNTED = (
    "moe in layer", "mixer in layer", "alibi in layer", "attn.sinks in layer", "mlp.act xielu in layer",
    "attn.scores_dtype fp32 in layer", "linear_bias separate in layer",
)  # fmt: skip


def kept(shape: Shape, plan: Plan) -> int:
    """With the tables that all layers share, which are no layer's."""
    blueprint = shape.blueprint
    ropes = dict.fromkeys(block.rope for block in blueprint.blocks if block.rope is not None)
    return footprint(blueprint, plan).kept + sum(table_bytes(rope, blueprint.dims, plan) for rope in ropes)


def measured(shape: Shape, plan: Plan) -> int:
    dtype: torch.dtype = getattr(torch, plan.dtype)
    model = make_model(shape, dtype=dtype, device=CPU, attention=plan.attention)
    ids_BT = draw_batch(shape, plan.batch, plan.tokens, CPU)
    with counting_saved(model) as found:
        loss = model(input_ids=ids_BT, labels=ids_BT, use_cache=False).loss
        found.pop(ids_BT.untyped_storage().data_ptr(), None)
        assert loss.requires_grad
        return sum(found.values())


def plan_of(shape: Shape, plan: Plan) -> Plan:
    """With eager attention where HF has no other."""
    try:
        make_model(shape, dtype=torch.float32, device=torch.device("meta"), attention=plan.attention)
    except ValueError:
        return replace(plan, attention="eager")
    return plan


@pytest.mark.parametrize("family", builtin_spec_names())
def test_every_family_keeps_what_is_predicted_or_is_refused(family: str) -> None:
    shape = find_shape(family, "tiny")
    try:
        footprint(shape.blueprint, PLAN)
    except UsageError as error:
        assert any(each in error.wrong for each in UNCOUNTED), error.wrong
        return
    plan = plan_of(shape, PLAN)
    assert kept(shape, plan) == pytest.approx(measured(shape, plan), rel=CLOSE.get(family, 0), abs=0)


@pytest.mark.parametrize("attention", ("sdpa", "eager"))
@pytest.mark.parametrize("family", ("gemma", "gemma3", "llama", "olmo2", "phi3", "qwen2", "qwen3"))
def test_in_bfloat16_to_the_byte(family: str, attention: str) -> None:
    shape, plan = find_shape(family, "tiny"), replace(PLAN, dtype="bfloat16", attention=attention)  # type: ignore[arg-type]
    assert kept(shape, plan) == measured(shape, plan)


def test_one_sample_and_windows_that_hide_nothing() -> None:
    shape, plan = find_shape("mistral", "tiny"), Plan(1, 256, dtype="bfloat16")  # its window is shorter
    for tokens in (256, 128, 127, 16):
        each = replace(plan, tokens=tokens)
        assert kept(shape, each) == pytest.approx(measured(shape, each), rel=0, abs=16)  # a count or two of masks
