"""Whether the fused linear cross-entropy pays for a model, and why not where it does not.

It pays if it lowers the peak of the step or its time by LEAST or more, and raises neither by as much. The peak is that
of the footprint. The time is counted: both ways multiply as much (three products of rows, width and vocabulary), and
what is saved is traffic: HF's loss moves some 40 bytes a logit besides the products (cast, log-softmax, its gradient,
that of the cast), the fused one 8.

Rates, one H200, bf16: products of a head reach 673 to 725 TFLOP/s, a train step of an 8-layer Llama 3 8B 482 to 566
in all, copies 4.27 TB/s; 8192 x 4096 x 128256 took HF's loss 47.1 ms, its products 35.6 to 38.4, the fused one 34.8 to
36.4. The saving is a share of the step's time, so other cards are asked for nothing but a like ratio of flops to
bandwidth.
"""

from dataclasses import dataclass, replace

from porter.bench.footprint.plan import Plan
from porter.bench.footprint.step import footprint
from porter.specs.blueprint import Blueprint

LEAST = 0.02  # of the peak or of the time; less is within what two runs differ by
PRODUCTS, STEP, COPY = 700e12, 550e12, 4.27e12
NAIVE_TRAFFIC, FUSED_TRAFFIC = 40, 8  # bytes a logit


@dataclass(frozen=True)
class Worth:
    """What the fused loss does to a step.

    Attributes:
        peak: share of the peak that it saves; negative: it costs.
        time: share of the step's time, estimated.
        pays: by the rule above.
        reason: in a sentence.
    """

    peak: float
    time: float
    pays: bool
    reason: str


def count_flops(blueprint: Blueprint, plan: Plan) -> tuple[int, int]:
    """Of a step, forward and backward, and the share of the head in it; with checkpointing the layers run once more."""
    dims, rows = blueprint.dims, plan.rows
    head = 6 * rows * blueprint.embed_width * dims.vocab
    tables = blueprint.embed_width * dims.vocab * (1 if blueprint.head.tied else 2)
    linear = 2 * rows * (blueprint.num_parameters - tables)
    scores = 4 * rows * plan.tokens * dims.heads * dims.head_dim * len(blueprint.blocks)
    scores = scores if plan.attention == "eager" else scores // 2  # flash attention leaves out what causality hides
    return head + (linear + scores) * (3 if plan.checkpointing == "none" else 4), head


def judge_fused_loss(blueprint: Blueprint, plan: Plan) -> Worth:
    """Whether the fused loss pays in a step that is otherwise as planned.

    Raises: UsageError: what the model computes is on no tape.
    """
    naive, fused = (footprint(blueprint, replace(plan, loss=loss)) for loss in ("naive", "fused"))
    peak = 1 - fused.peak.bytes / naive.peak.bytes
    logits = plan.rows * blueprint.dims.vocab
    flops, head = count_flops(blueprint, plan)
    seconds = (flops - head) / STEP + head / PRODUCTS + logits * NAIVE_TRAFFIC / COPY
    time = logits * (NAIVE_TRAFFIC - FUSED_TRAFFIC) / COPY / seconds
    pays = max(peak, time) >= LEAST and min(peak, time) > -LEAST
    size = f"{plan.rows:,} rows of {blueprint.dims.vocab:,} logits"
    saved = f"{peak:.0%} of the peak and about {time:.0%} of the step's time"
    if pays:
        return Worth(peak, time, True, f"It pays: {size} cost {saved}.")
    where = f"the peak lies in the {naive.peak.name}, not in the loss's logits"
    if naive.peak.name.startswith("loss"):
        where = "what the layers keep and the optimizer's states outweigh them"
    return Worth(peak, time, False, f"It does not pay: {size} cost {saved}; {where}.")
