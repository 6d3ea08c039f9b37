"""The peak of a real training step, beside what the footprint says it is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from porter.bench.clock import summarize
from porter.bench.footprint.plan import Plan
from porter.bench.footprint.step import WORKSPACE, footprint
from porter.bench.training.clock import find_step_clock
from porter.bench.training.models import draw_batch, make_model
from porter.bench.training.tracker import AllocationTracker, optimizer_tensors
from porter.patching.offload import OffloadedCheckpointing
from porter.specs.shapes import Shape, find_shape

WARM_STEPS, TIMED_STEPS = 2, 8


@dataclass(frozen=True)
class Setting:
    """A model and how it is trained.

    Attributes:
        model: a size, or a family with `size`.
        layers: in place of the size's own; None: all.
    """

    model: str
    layers: int | None
    plan: Plan
    size: str | None = None

    @property
    def name(self) -> str:
        """llama-3-8b/8 2x4096 sdpa fused-kernels naive none."""
        plan = self.plan
        layers = "" if self.layers is None else f"/{self.layers}"
        code = "porter" if plan.fused else "hf"
        return (
            f"{self.model}{layers} {plan.batch}x{plan.tokens} {plan.attention} {code} {plan.loss} {plan.checkpointing}"
        )

    @property
    def shape(self) -> Shape:
        return find_shape(self.model, self.size, self.layers)

    @property
    def tiny(self) -> "Setting":
        """The same of the family's tiny size, for a run without a GPU: two samples of 32 tokens, two layers."""
        plan = replace(self.plan, batch=2, tokens=32, dtype="float32")
        return Setting(self.shape.family.name, 2, plan, "tiny")


@dataclass(frozen=True)
class Peak:
    """What a setting measured, and what was predicted, in bytes.

    Attributes:
        at: the moment that is predicted to be the worst.
        step_ms: median of whole steps; of a CPU it says nothing.
    """

    setting: str
    predicted: int
    at: str
    measured: int
    step_ms: float

    @property
    def error(self) -> float:
        """Relative, positive where too much was predicted."""
        return self.predicted / self.measured - 1


def predict_peak(setting: Setting, device: torch.device) -> tuple[int, str]:
    """The footprint's peak and its moment; a CPU has no workspace of cuBLAS."""
    peak = footprint(setting.shape.blueprint, setting.plan).peak
    return peak.bytes - (WORKSPACE if device.type == "cpu" else 0), peak.name


def measure_peak(setting: Setting, device: torch.device) -> Peak:
    """Trains a model with random weights for a few steps: the peak of one that has the optimizer's states.

    Raises: SpecError, UsageError: there is no such model, or its operations are on no tape.
    """
    predicted, at = predict_peak(setting, device)
    dtype: torch.dtype = getattr(torch, setting.plan.dtype)
    model = make_model(setting.shape, dtype=dtype, device=device, attention=setting.plan.attention)
    patch_as_planned(model, setting.plan)
    optimizer = make_optimizer(model, setting.plan)
    ids_BT = draw_batch(setting.shape, setting.plan.batch, setting.plan.tokens, device)

    lean = {"accumulate": "weight"} if setting.plan.loss == "fused-lean" else {}

    def step() -> None:
        model(input_ids=ids_BT, labels=ids_BT, use_cache=False, **lean).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    with checkpointed_as_planned(model, setting.plan):
        for _ in range(WARM_STEPS):
            step()
        clock = find_step_clock()
        measured = clock.peak_bytes(step)
        if measured is None:
            measured = _tracked_peak(model, optimizer, ids_BT, step)
        times = clock.time_ms([step] * (TIMED_STEPS if device.type == "cuda" else 1))
    return Peak(setting.name, predicted, at, measured, summarize(times).median)


def _tracked_peak(model: Any, optimizer: torch.optim.Optimizer, ids_BT: torch.Tensor, step: Callable[[], None]) -> int:
    there = (*model.parameters(), *model.buffers(), *optimizer_tensors(optimizer), ids_BT)
    tracker = AllocationTracker(*there)
    with tracker:
        step()
    return tracker.peak


def patch_as_planned(model: Any, plan: Plan) -> None:
    """porter's kernels, its loss, or both, into HF's model."""
    if not plan.fused and plan.loss == "naive":
        return
    from porter.patching.patch import patch  # whose kernels import triton: a CPU must choose the interpreter before

    patch(
        model, rms_norm=plan.fused, layer_norm=plan.fused, rope=plan.fused, glu=plan.fused,
        linear_cross_entropy=plan.loss != "naive",
    )  # fmt: skip


def make_optimizer(model: Any, plan: Plan) -> torch.optim.Optimizer:
    """AdamW, as planned."""
    return torch.optim.AdamW(model.parameters(), lr=1e-5, fused=plan.optimizer == "adamw")


@contextmanager
def checkpointed_as_planned(model: Any, plan: Plan) -> Iterator[OffloadedCheckpointing | None]:
    """Within, layers are checkpointed as the plan says."""
    if plan.checkpointing == "offloaded":
        with OffloadedCheckpointing().applied_to(model) as offloaded:
            yield offloaded
        return
    if plan.checkpointing == "plain":
        model._set_gradient_checkpointing(gradient_checkpointing_func=partial(checkpoint, use_reentrant=False))
    yield None
