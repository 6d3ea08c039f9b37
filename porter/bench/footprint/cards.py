"""How much memory a card has, and what fits in it."""

import re
from collections.abc import Callable
from dataclasses import replace

from porter.bench.footprint.plan import Plan
from porter.bench.footprint.step import footprint
from porter.errors import UsageError, closest
from porter.specs.blueprint import Blueprint

GIB = 2**30
CARDS = {  # GiB that torch.cuda.get_device_properties reports, rounded down
    "t4": 14.5, "v100": 31.7, "a10": 22.0, "l4": 22.0, "rtx3090": 23.5, "rtx4090": 23.5, "rtx5090": 31.3, "l40s": 44.3,
    "a100-40": 39.3, "a100": 79.1, "h100": 79.1, "gh200": 95.0, "h200": 139.8, "b200": 178.3,
}  # fmt: skip
USABLE = 0.95  # the CUDA context, NCCL's buffers and what the allocator cannot hand out take the rest
MOST = 2**24


def read_card(text: str) -> int:
    """Bytes of a card: a name, or a size such as 80GiB, 80GB, 24g.

    Raises: UsageError: neither.
    """
    if text.lower() in CARDS:
        return int(CARDS[text.lower()] * GIB)
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(g|gb|gib|m|mb|mib)", text.strip().lower())
    if found is None or float(found[1]) <= 0:
        raise UsageError(
            f"--card {text!r}", closest(text.lower(), CARDS), f"A size such as 80GiB, or any of {', '.join(CARDS)}."
        )
    unit = {"g": GIB, "gib": GIB, "gb": 10**9, "m": 2**20, "mib": 2**20, "mb": 10**6}[found[2]]
    return int(float(found[1]) * unit)


def largest_batch(blueprint: Blueprint, plan: Plan, card: int) -> int:
    """Samples of the plan's tokens that a step can have on a card; 0: none."""
    return _largest(lambda batch: replace(plan, batch=batch), blueprint, card, MOST)


def largest_context(blueprint: Blueprint, plan: Plan, card: int) -> int:
    """Tokens that a sample can have, in a step of the plan's batch; 0: none. The model's own limit is not asked."""
    return _largest(lambda tokens: replace(plan, tokens=tokens), blueprint, card, MOST)


def _largest(plan_of: Callable[[int], Plan], blueprint: Blueprint, card: int, most: int) -> int:
    def fits(count: int) -> bool:
        return footprint(blueprint, plan_of(count)).peak.bytes <= USABLE * card

    low, high = 0, 1
    while high < most and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
