"""The behaviour stage of a tiny model; its reference is loaded once for several runs."""

from functools import lru_cache
from typing import Any

import torch

from porter.comparison.behaviour.greedy import write
from porter.comparison.behaviour.lanes import HfRoutes, PortRoutes
from porter.comparison.behaviour.routes import TOKENS
from porter.comparison.behaviour.stage import Lanes, run_behaviour
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
    family: str, *overrides: str, dtype: str = "float32", ops: str = "reference", tokens: int = 200,
    greedy: bool = False, every_route: bool = True,
) -> list[Behaviour]:  # fmt: skip
    build, kind = tiny(family, *overrides), getattr(torch, dtype)
    ids = random_ids(build, tokens)[0].tolist()
    decoder = Decoder(build.blueprint, Streamed(build.blueprint, make_ops(ops), build.reader(), kind, CPU))
    reference, golden = references(family, kind)
    lanes = Lanes(PortRoutes(decoder, kind, CPU), HfRoutes(reference), HfRoutes(golden))
    given: dict[str, Any] = {}
    if greedy:
        given["text_1S"] = write(build.model(dtype, ops=ops), torch.tensor([ids[:TOKENS]]), kind, CPU)
    return run_behaviour(dtype, lanes, build.blueprint, ids, every_route=every_route, **given)


def statuses(checks: list[Behaviour]) -> dict[str, str]:
    return {check.name: check.status for check in checks}
