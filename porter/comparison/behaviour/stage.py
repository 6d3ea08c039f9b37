"""The behaviour stage of one prompt in one dtype."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from porter.comparison.behaviour.checks import explain_missing, judge_routes
from porter.comparison.behaviour.greedy import NAME, greedy_route, judge_greedy, scored
from porter.comparison.behaviour.lanes import HfRoutes, PortRoutes
from porter.comparison.behaviour.routes import LEAST_TOKENS, decode_routes, plan_routes
from porter.comparison.behaviour.walk import Sides, walk
from porter.comparison.report import Behaviour
from porter.comparison.verdicts import BEHAVIOUR
from porter.specs.blueprint import Blueprint


@dataclass(frozen=True)
class Lanes:
    """The sides of the stage in one dtype."""

    port: PortRoutes
    reference: HfRoutes
    golden: HfRoutes


def run_behaviour(
    dtype: str,
    lanes: Lanes,
    blueprint: Blueprint,
    ids: Sequence[int],
    *,
    every_route: bool,
    text_1S: Tensor | None = None,
    advance: Callable[[str], None] = lambda unit: None,
) -> list[Behaviour]:
    """The checks of one prompt.

    Args:
        every_route: else decoding and its cache alone.
        text_1S: what the port wrote; None: it wrote nothing.
        advance: called after each layer.
    """
    if len(ids) < LEAST_TOKENS:
        limit, why = BEHAVIOUR[dtype]["route"][0], f"{len(ids)} tokens; pass {LEAST_TOKENS} or more"
        return [Behaviour("decode", dtype, "NOT_COMPARED", 0.0, limit, why)]
    routes = plan_routes(blueprint, ids) if every_route else decode_routes(ids)
    walked = routes if text_1S is None else [*routes, greedy_route(text_1S)]
    sides = Sides(lanes.port, lanes.reference, lanes.golden)
    readings, streams = walk(dtype, sides, walked, blueprint.dims.layers, advance)
    checks = judge_routes(dtype, routes, readings, len(ids))
    if every_route:
        checks += explain_missing(blueprint, dtype, len(ids))
    if text_1S is not None:
        last = {side: streams[side][NAME][0][:, scored(text_1S)] for side in ("reference", "golden")}
        logits = [lane.head(last[side])[0] for side, lane in (("reference", lanes.reference), ("golden", lanes.golden))]
        checks.append(judge_greedy(dtype, text_1S, *logits))
    return checks


def text_room(blueprint: Blueprint, words: int) -> int | None:
    """Tokens that may stand before so many words; None: any number."""
    return blueprint.dims.max_pos - words if blueprint.embed.positions == "learned" else None
