"""The behaviour stage of a tiny model; its reference is loaded once for several runs."""

from dataclasses import replace
from functools import lru_cache

import torch

from porter.comparison.behaviour.lanes import HfRoutes, PortRoutes
from porter.comparison.behaviour.stage import run_behaviour
from porter.comparison.behaviour.walk import Sides
from porter.comparison.report import Behaviour
from porter.models.decoder import Decoder, Streamed
from porter.models.ops import make_ops
from porter.references.hf import HfReference
from tests.models.tiny import random_ids, tiny

CPU = torch.device("cpu")


@lru_cache(maxsize=4)
def references(family: str, dtype: torch.dtype) -> tuple[HfReference, HfReference]:
    """The reference and its golden."""
    build = tiny(family)
    reference = HfReference(build.reference_blueprint, build.checkpoint(), dtype, CPU)
    return reference, reference.golden_of(build.checkpoint())


def run(
    family: str,
    *overrides: str,
    dtype: str = "float32",
    ops: str = "reference",
    tokens: int = 200,
    greedy: bool = False,
) -> list[Behaviour]:
    """The checks of a tiny model on seeded ids; not `greedy`: as of a port of another dtype, which writes none."""
    build, kind = tiny(family, *overrides, dtype=dtype, weights=str(tiny(family).checkpoint())), getattr(torch, dtype)
    ids = random_ids(build, tokens)[0].tolist()
    decoder = Decoder(build.blueprint, Streamed(build.blueprint, make_ops(ops), build.reader(), kind, CPU))
    reference, golden = references(family, kind)
    sides = Sides(PortRoutes(decoder, kind, CPU), HfRoutes(reference), HfRoutes(golden))
    return run_behaviour(build if greedy else replace(build, dtype="float16"), ops, dtype, sides, ids)


def statuses(checks: list[Behaviour]) -> dict[str, str]:
    return {check.name: check.status for check in checks}
