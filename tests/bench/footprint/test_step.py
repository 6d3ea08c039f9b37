"""The peak of a step, against what a real one allocates on the CPU."""

from dataclasses import replace

import pytest
import torch

from porter.bench.footprint.head import loss_sizes
from porter.bench.footprint.plan import Plan
from porter.bench.footprint.step import WORKSPACE, footprint
from porter.bench.training.models import draw_batch, make_model
from porter.bench.training.tracker import AllocationTracker, optimizer_tensors
from porter.errors import UsageError
from porter.specs.shapes import Shape, find_shape

CPU = torch.device("cpu")


def allocated(shape: Shape, plan: Plan) -> int:
    """The peak of a second step, in bytes."""
    dtype: torch.dtype = getattr(torch, plan.dtype)
    model = make_model(shape, dtype=dtype, device=CPU, attention=plan.attention)
    if plan.checkpointing == "plain":
        function = torch.utils.checkpoint.checkpoint
        model._set_gradient_checkpointing(
            gradient_checkpointing_func=lambda *args: function(*args, use_reentrant=False)
        )
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids_BT = draw_batch(shape, plan.batch, plan.tokens, CPU)

    def step() -> None:
        model(input_ids=ids_BT, labels=ids_BT, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with AllocationTracker(*model.parameters(), *model.buffers(), *optimizer_tensors(optimizer), ids_BT) as tracker:
        step()
    return tracker.peak


CASES = {  # family, vocabulary, plan, how far off: a CPU's softmax and its matrix products hold more within
    "loss": ("llama", 4096, Plan(2, 64), 0.002),
    "loss, Gemma": ("gemma", 4096, Plan(4, 64), 0.002),
    "loss, float32": ("qwen3", 4096, Plan(2, 128, dtype="float32"), 0.002),
    "loss, checkpoints": ("llama", 4096, Plan(2, 64, checkpointing="plain"), 0.005),
    "layers": ("llama", 64, Plan(2, 64), 0.02),
    "layers, checkpoints": ("llama", 64, Plan(2, 64, checkpointing="plain"), 0.02),
    "layers, eager": ("llama", 64, Plan(2, 128, attention="eager"), 0.04),
    "layers, eager, checkpoints": ("llama", 64, Plan(2, 128, attention="eager", checkpointing="plain"), 0.09),
    "embedding": ("llama", 8192, Plan(1, 4), 0.02),
}


@pytest.mark.parametrize("name", CASES)
def test_the_peak_is_that_of_a_real_step(name: str) -> None:
    family, vocab, plan, off = CASES[name]
    tiny = find_shape(family, "tiny")
    shape = replace(tiny, config={**tiny.config, "vocab_size": vocab})
    peak = footprint(shape.blueprint, plan).peak
    assert peak.bytes - WORKSPACE == pytest.approx(allocated(shape, plan), rel=off)
    assert name.startswith("layers") or peak.name.startswith(name.split(",")[0])


def test_what_a_step_holds_at_rest() -> None:
    blueprint = find_shape("llama-3-8b", layers=8).blueprint
    count = blueprint.num_parameters
    held = footprint(blueprint, Plan(2, 4096))
    assert (held.weights, held.gradients, held.optimizer) == (2 * count, 2 * count, 4 * count)
    assert footprint(blueprint, Plan(2, 4096, optimizer="adamw-float32")).optimizer == 12 * count
    assert footprint(blueprint, Plan(2, 4096, optimizer="sgd")).optimizer == 0
    assert footprint(blueprint, Plan(2, 4096, dtype="float32", optimizer="adamw-float32")).optimizer == 8 * count


def test_the_peak_that_was_measured_on_an_h200() -> None:
    """kernels.md: HF eager, 8 layers of Llama 3 8B's shapes, bf16, sdpa, fused AdamW, 8192 tokens: 43.1 GB."""
    blueprint = find_shape("llama-3-8b", layers=8).blueprint
    for batch, tokens in ((2, 4096), (16, 512)):
        assert footprint(blueprint, Plan(batch, tokens)).peak.bytes / 1e9 == pytest.approx(43.1, rel=0.01)


def test_offloading_keeps_two_inputs_on_the_device() -> None:
    blueprint = find_shape("llama-3-8b", layers=8).blueprint
    plain, offloaded = (
        footprint(blueprint, Plan(4, 4096, fused=True, loss="fused", checkpointing=way))  # type: ignore[arg-type]
        for way in ("plain", "offloaded")
    )
    assert plain.kept - offloaded.kept == 6 * 4 * 4096 * 4096 * 2


def test_layers_that_keep_the_same_are_one_kind() -> None:
    held = footprint(find_shape("gemma3", "tiny").blueprint, Plan(1, 600))
    assert sorted(layer for kind in held.kinds for layer in kind.layers) == list(
        range(len(held.kinds[0].layers) + len(held.kinds[1].layers))
    )
    assert len(held.kinds) == 2  # those with a window keep a mask


@pytest.mark.parametrize(
    ("name", "axis"), (("mixtral", "moe"), ("deepseek_v3", "mixer"), ("bloom", "alibi"), ("falcon", "linear_bias"))
)
def test_what_is_not_known_is_refused(name: str, axis: str) -> None:
    with pytest.raises(UsageError, match=f"{name} has {axis}.* in layer 0, and what its backward keeps is not known"):
        footprint(find_shape(name, "tiny").blueprint, Plan(1, 8))


@pytest.mark.parametrize(
    ("changes", "wrong"),
    (({"batch": 0}, "--batch 0"), ({"tokens": -1}, "--seq -1"), ({"loss": "cce"}, "--loss 'cce'")),
)
def test_plans_that_no_step_has(changes: dict[str, object], wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        Plan(**{"batch": 1, "tokens": 8, **changes})  # type: ignore[arg-type]


def test_the_fused_loss_holds_what_its_chunks_do_and_the_rows_it_copies() -> None:
    """kernels: 1.64 GB measured at 8192 x 4096 x 128256, where every row counts; here some do not, and are left out."""
    blueprint = find_shape("llama-3-8b", layers=8).blueprint
    most, d_hidden, d_weight = loss_sizes(blueprint, Plan(2, 4096, loss="fused"))
    assert (d_hidden, d_weight) == (2 * 8192 * 4096, 2 * 4096 * 128256)
    assert most == pytest.approx(1.64e9 + 2 * 2 * 2048 * 4096, rel=0.01)
    wide, *_ = loss_sizes(blueprint, Plan(8, 4096, loss="fused"))  # summed in float32
    assert wide > most + 2 * 4096 * 128256
    tiny = find_shape("llama", "tiny").blueprint
    assert loss_sizes(tiny, Plan(2, 64, loss="fused"))[0] == 2 * (128 * 96 + 512 * 96 + 128 * 512)
