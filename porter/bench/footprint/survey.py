"""Everything that porter memory says about a model: the step as HF runs it and as porter patches it, side by side."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

from porter.bench.footprint.cards import largest_batch, largest_context
from porter.bench.footprint.plan import Checkpointing, Loss, Plan
from porter.bench.footprint.step import Footprint, footprint
from porter.bench.footprint.worth import Worth, judge_fused_loss
from porter.specs.blueprint import Blueprint

SCHEMA = "porter.memory/1"
CODES: Mapping[str, Mapping[str, Any]] = {  # of whom: what a plan says of it
    "huggingface": {"fused": False, "loss": "naive"},
    "porter": {"fused": True, "loss": "fused"},
}


@dataclass(frozen=True)
class Variant:
    """One way to run the step.

    Attributes:
        code: huggingface or porter.
        batch: samples that fit the card with the plan's tokens; None: no card was given.
        context: tokens of a sample that fit it, with the plan's batch.
    """

    code: str
    plan: Plan
    held: Footprint
    batch: int | None = None
    context: int | None = None


@dataclass(frozen=True)
class Survey:
    """All of it.

    Attributes:
        model: as it is called.
        parameters: elements.
        card: bytes; None: none was given.
        variants: each code without checkpointing, with plain and with offloaded.
        losses: peak of the step and what the head and loss hold alone, by loss, otherwise as porter patches it.
        worth: of the fused loss, for HF's code otherwise as it is.
    """

    model: str
    parameters: int
    plan: Plan
    card: int | None
    variants: tuple[Variant, ...]
    losses: Mapping[str, tuple[int, int]]
    worth: Worth


def survey(model: str, blueprint: Blueprint, plan: Plan, card: int | None = None) -> Survey:
    """What a training step of a model holds, each way.

    Args:
        plan: its code, loss and checkpointing are varied.
        card: bytes of a card to fit.

    Raises: UsageError: what the model computes is on no tape.
    """
    losses = {}
    for loss in get_args(Loss):
        held = footprint(blueprint, replace(plan, fused=True, loss=loss))
        losses[loss] = held.peak.bytes, held.loss
    return Survey(
        model, blueprint.num_parameters, plan, card, tuple(_variants(blueprint, plan, card)), losses,
        judge_fused_loss(blueprint, replace(plan, fused=False, checkpointing="none")),
    )  # fmt: skip


def _variants(blueprint: Blueprint, plan: Plan, card: int | None) -> Iterator[Variant]:
    for code, changes in CODES.items():
        for checkpointing in get_args(Checkpointing):
            each = replace(plan, checkpointing=checkpointing, **changes)
            held = footprint(blueprint, each)
            if card is None:
                yield Variant(code, each, held)
            else:
                fit = largest_batch(blueprint, each, card), largest_context(blueprint, each, card)
                yield Variant(code, each, held, *fit)


def to_document(found: Survey) -> dict[str, Any]:
    """JSON of schema porter.memory/1: sizes in bytes."""
    variants = []
    for variant in found.variants:
        held = variant.held
        variants.append({
            "code": variant.code, "checkpointing": variant.plan.checkpointing, "loss": variant.plan.loss,
            "weights": held.weights, "gradients": held.gradients, "optimizer": held.optimizer, "fixed": held.fixed,
            "layers": [{"layers": list(kind.layers), "bytes": kind.bytes, "saved": kind.saved} for kind in held.kinds],
            "head": held.head, "kept": held.kept, "moments": {each.name: each.bytes for each in held.moments},
            "peak": held.peak.bytes, "peak_at": held.peak.name,
            "largest_batch": variant.batch, "largest_context": variant.context,
        })  # fmt: skip
    return {
        "schema": SCHEMA, "model": found.model, "parameters": found.parameters, "plan": asdict(found.plan),
        "card": found.card, "variants": variants,
        "losses": {name: {"peak": peak, "loss": loss} for name, (peak, loss) in found.losses.items()},
        "fused_loss": asdict(found.worth),
    }  # fmt: skip
