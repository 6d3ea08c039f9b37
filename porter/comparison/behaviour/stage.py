"""The behaviour stage of one prompt in one dtype: every way of feeding tokens in float32, where a fault is far above
rounding; decoding and the port's own text in the port's dtype.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from porter.comparison.behaviour.checks import explain_missing, judge_logits, judge_routes, worst_first
from porter.comparison.behaviour.greedy import (
    MOST_PARAMETERS,
    NAME,
    WORDS,
    greedy_route,
    judge_greedy,
    not_written,
    scored,
    write,
)
from porter.comparison.behaviour.routes import (
    ALONE,
    LEAST_TOKENS,
    TOKENS,
    WHOLE,
    Others,
    batch_of_prompts,
    decode_routes,
    other_routes,
    plan_routes,
)
from porter.comparison.behaviour.walk import Sides, walk
from porter.comparison.logits import measure_logits
from porter.comparison.logits_record import Logits
from porter.comparison.report import Behaviour
from porter.comparison.verdicts import BEHAVIOUR
from porter.models.build import Build
from porter.models.ops import OpsName

Advance = Callable[[str], None]


def run_behaviour(
    build: Build,
    ops: OpsName,
    dtype: str,
    sides: Sides,
    ids: Sequence[int],
    logits: Sequence[Logits] = (),
    advance: Advance = lambda unit: None,
    *,
    others: Others = ALONE,
) -> list[Behaviour]:
    """The checks of the longest prompt, and of others what they take too, in one dtype.

    Args:
        sides: in that dtype.
        ids: of the longest prompt.
        logits: what other stages measured in that dtype, and is judged; none: those of this prompt's first tokens are.
        advance: called after each layer, and when the port has written its text.
        others: the other prompts.
    """
    if len(ids) < LEAST_TOKENS:
        limit, why = BEHAVIOUR[dtype]["route"][0], f"{len(ids)} tokens; pass {LEAST_TOKENS} or more"
        return [Behaviour("decode", dtype, "NOT_COMPARED", 0.0, limit, why)]
    text_1S, written = None, []
    if dtype == build.dtype:
        missing = _reason_not_to_write(build)
        written = [] if missing is None else [not_written(dtype, missing)]
        text_1S = _write(build, ops, sides, ids) if missing is None else None
        advance("text")
    checks = _check_routes(build, dtype, sides, ids, text_1S, logits, advance, others)
    return checks + [replace(check, prompt=others.longest) for check in written]


def count_units(build: Build, dtype: str, tokens: int) -> int:
    """How often run_behaviour of a prompt of so many tokens calls `advance`."""
    if tokens < LEAST_TOKENS:
        return 0
    return build.blueprint.dims.layers + (dtype == build.dtype)


def _check_routes(
    build: Build,
    dtype: str,
    sides: Sides,
    ids: Sequence[int],
    text_1S: Tensor | None,
    logits: Sequence[Logits],
    advance: Advance,
    others: Others,
) -> list[Behaviour]:
    """The checks of what goes through the layers; text_1S: what the port wrote, None: nothing."""
    blueprint, every_route = build.blueprint, dtype == "float32"
    routes = plan_routes(blueprint, ids) if every_route else decode_routes(ids)
    routes += other_routes(others.texts)
    if every_route and others.texts:
        routes.append(batch_of_prompts(blueprint, ids, others.texts))
    walked = routes if text_1S is None else [*routes, greedy_route(text_1S)]
    readings, streams = walk(dtype, sides, walked, blueprint.dims.layers, advance)
    checks = judge_routes(dtype, routes, readings, len(ids), others)
    if every_route:
        checks += [replace(each, prompt=others.longest) for each in explain_missing(blueprint, dtype, len(ids))]
    measured = logits
    if not logits:
        last = {side: each[WHOLE][0] for side, each in streams.items()}
        measured = [replace(_measure_logits(dtype, sides, last), prompt=others.longest)]
    checks += worst_first(judge_logits(each, others) for each in measured)
    if text_1S is not None:
        reference_BND, golden_BND = (streams[side][NAME][0][:, scored(text_1S)] for side in ("reference", "golden"))
        found = judge_greedy(
            dtype, text_1S, sides.reference.head(reference_BND)[0],
            lambda step: sides.golden.head(golden_BND[:, step : step + 1])[0, 0],
        )  # fmt: skip
        where = f"{others.name(others.longest)}{found.where}" if found.where else ""
        checks.append(replace(found, where=where, prompt=others.longest))
    for lane in (sides.port, sides.reference, sides.golden):
        lane.release()
    return checks


def _measure_logits(dtype: str, sides: Sides, last: Mapping[str, Tensor]) -> Logits:
    """The logits of the last layer's outputs, [1, T, D] by side."""
    port, reference, golden = (getattr(sides, side).head(last[side])[0] for side in ("port", "reference", "golden"))
    return measure_logits("behaviour", dtype, torch.arange(len(port)), port, reference, golden)


def _reason_not_to_write(build: Build) -> str | None:
    blueprint = build.blueprint
    if blueprint.num_parameters > MOST_PARAMETERS:
        return f"{blueprint.num_parameters:,} parameters are more than the {MOST_PARAMETERS:,} that are held whole"
    if _room(build) < LEAST_TOKENS:
        return f"a position table of {blueprint.dims.max_pos} holds no {LEAST_TOKENS} tokens and {WORDS} words"
    return None


def _room(build: Build) -> int:
    """Tokens of the prompt that the text may follow."""
    blueprint = build.blueprint
    has_table = blueprint.embed.positions in ("learned", "sinusoidal")
    return min(TOKENS, blueprint.dims.max_pos - WORDS) if has_table else TOKENS


def _write(build: Build, ops: OpsName, sides: Sides, ids: Sequence[int]) -> Tensor:
    lane = sides.port
    whole = build.model(ops=ops, device=str(lane.device))
    return write(whole, torch.tensor([ids[: _room(build)]]), lane.dtype, lane.device)
