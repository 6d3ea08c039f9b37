"""What the behaviour stage makes of its readings: one record a check."""

import math
from collections.abc import Iterable, Sequence

from porter.comparison.behaviour.routes import (
    ALONE,
    DECODED,
    LEAST_TOKENS,
    MOST_OTHERS,
    PAST,
    Others,
    Route,
    widest_window,
)
from porter.comparison.behaviour.walk import ANOTHER, CACHE, STREAM, Reading
from porter.comparison.logits_record import SAFE_MARGIN, Logits, LogitsAt
from porter.comparison.report import Behaviour, Verdict
from porter.comparison.verdicts import BEHAVIOUR, FLOORS
from porter.specs.blueprint import Blueprint

ORDER = (CACHE, "decode", "chunks", "window", "padding.left", "padding.right", "batch", "packed", "prompts")


def judge_routes(
    dtype: str, routes: Sequence[Route], readings: Sequence[Reading], prompt: int, others: Others = ALONE
) -> list[Behaviour]:
    """A record for each check whose route was taken.

    Args:
        prompt: tokens of the longest prompt, of which the routes take the first.
        others: prompts that some routes take too.
    """
    by_name = {route.name: route for route in routes}
    found = []
    for name in ORDER:
        if name == CACHE or name in by_name:
            own = [reading for reading in readings if reading.check == name]
            said = _said(name, by_name, prompt) + (_alike(others) if name == "decode" else "")
            found.append(_judge(dtype, name, said, own, others))
    return found


def _alike(others: Others) -> str:
    """How many other prompts are decoded too."""
    count, left_out = len(others.texts), others.left_out
    alike = f", and {count} other prompt{'s' if count > 1 else ''} alike" if count else ""
    why = f"shorter than {LEAST_TOKENS} tokens, or past the first {MOST_OTHERS}"
    return alike + (f" ({left_out} left out: {why})" if left_out else "")


def _judge(dtype: str, name: str, said: str, readings: Sequence[Reading], others: Others) -> Behaviour:
    good, bad = BEHAVIOUR[dtype]["route"]
    if name == CACHE and not readings:
        return Behaviour(name, dtype, "NOT_COMPARED", 0.0, good, "the reference keeps no cache", prompt=others.longest)
    decidable = [reading for reading in readings if reading.decidable]
    if not decidable:
        why = f"{said}: the reference itself is too far from golden to judge by"
        return Behaviour(name, dtype, "INCONCLUSIVE", 0.0, good, why, prompt=others.longest)
    status, found = _worst(name, decidable, good, bad)
    detail, prompt = f"{said}: {_outcome(status, found)}", others.longest if found.prompt is None else found.prompt
    where = f"{others.name(prompt)}{found.node}, {_token(found)}"
    return Behaviour(name, dtype, status, found.ratio, good, detail, where, prompt)


def _worst(name: str, readings: Sequence[Reading], good: float, bad: float) -> tuple[Verdict, Reading]:
    """The first failing reading, else the first that warns, else the largest; keys and values alone only warn."""

    def status(reading: Reading) -> Verdict:
        if reading.ratio <= good:
            return "PASS"
        gauge = name != CACHE and not reading.node.endswith(STREAM)
        return "FAIL" if not reading.ratio <= bad and not gauge else "WARN"

    for wanted in ("FAIL", "WARN"):
        found = next((reading for reading in readings if status(reading) == wanted), None)
        if found is not None:
            return status(found), found
    return "PASS", max(readings, key=lambda reading: reading.ratio)


def _outcome(status: Verdict, found: Reading) -> str:
    if status == "PASS":
        other = "; the reference itself computes otherwise" if found.reference_apart > ANOTHER else ""
        return (f"{found.ratio:.2g} × what rounding explains" if found.ratio else "equal to the bit") + other
    across = found.across > found.apart
    if found.check == CACHE:
        other = "HF's cache" if across else "what attention computed"
    else:
        other = "the reference fed alike" if across else "one forward pass"
    tensor = "" if found.node.endswith(STREAM) else f"{found.node.rsplit('.', 1)[1]} "
    same = "; the outputs agree" if status == "WARN" and tensor and found.check != CACHE else ""
    return f"{tensor}{found.error:.2g} from {other}, {found.ratio:.3g} × what rounding explains{same}"


def _token(found: Reading) -> str:
    way = f"{found.route}, " if found.check == CACHE else ""
    return f"{way}token {found.slot}" + (f" of row {found.row}" if found.row else "")


def _said(name: str, routes: dict[str, Route], prompt: int) -> str:
    """What the check compared, with how much of the prompt, and through which layers if not all."""
    if name == CACHE:
        return "keys after rotary and values, as cached"
    route = routes[name]
    layers = f"{route.layers} layers, one of each kind" if route.layers != 1 else "one layer, of their only kind"
    return _fed(name, route, prompt) + (f", through {layers}" if route.layers is not None else "")


def _fed(name: str, route: Route, prompt: int) -> str:
    tokens, first = route.ids_BS.shape[1], route.calls[0]
    of = f" of {prompt} tokens"
    if name == "decode":
        return f"{first}{of} at once, then {DECODED} one at a time"
    if name == "chunks":
        return f"{tokens}{of} in chunks of {', '.join(map(str, route.calls))}"
    if name == "window":
        return f"{first}{of} at once, {route.calls[1]} past the window of {tokens - PAST}, {DECODED} one at a time"
    if name.startswith("padding"):
        decoded = f", the last {DECODED} decoded" if route.cached else ""
        padded = int((route.documents_BS[1] < 0).sum()) if route.documents_BS is not None else 0
        return f"two rows, one with {padded} of {tokens} padded on the {name.partition('.')[2]}{decoded}"
    if name == "prompts":
        rows = f"{len(route.ids_BS)} prompts of up to {tokens} tokens as rows of one batch"
        return f"{rows}, padded on the left, the last {DECODED} decoded"
    if name == "batch":
        return f"two rows of {tokens} tokens, against each alone"
    border = route.pieces[0].slots.stop
    return f"documents of {border} and {tokens - border} tokens in one row, against each alone"


def explain_missing(blueprint: Blueprint, dtype: str, prompt: int) -> list[Behaviour]:
    """Records of checks that this model or prompt does not allow."""
    windows = sorted({block.attn.window for block in blueprint.blocks if block.attn.window is not None})
    if not windows or widest_window(blueprint, prompt) is not None:
        return []
    why = f"{prompt} tokens do not pass the window of {windows[0]}; pass --tokens {windows[0] + PAST} or more"
    return [Behaviour("window", dtype, "NOT_COMPARED", 0.0, BEHAVIOUR[dtype]["route"][0], why)]


def judge_logits(logits: Logits, others: Others = ALONE) -> Behaviour:
    """KL of the stage's logits over the reference's own, and words that rounding cannot flip."""
    good, bad = BEHAVIOUR[logits.dtype]["kl"]
    if not math.isfinite(logits.kl_ref):
        why = "the reference's own logits are not finite"
        return Behaviour("logits", logits.dtype, "INCONCLUSIVE", 0.0, good, why, prompt=logits.prompt)
    ratio = logits.kl / max(logits.kl_ref, FLOORS[logits.dtype] ** 2)  # KL is quadratic in the error
    safe = [at for at in logits.at if at.safe]
    moved = [at for at in logits.at if (at.safe and at.flipped) or _lost(at)]
    status: Verdict = "FAIL" if moved else "PASS" if ratio <= good else "WARN" if ratio <= bad else "FAIL"
    kl = f"KL(reference‖port) {logits.kl:.2g}, {ratio:.2g} × KL(golden‖reference)"
    flips = f"{len(moved) or 'none'} of {logits.tokens} tokens ({len(safe)} with a margin past four floors)"
    at = max(moved, key=lambda at: at.kl).token if moved else logits.worst_token
    detail = f"{kl}; {flips} {'say' if len(moved) > 1 else 'says'} another word than rounding allows"
    where = f"{others.name(logits.prompt)}token {at}"
    return Behaviour("logits", logits.dtype, status, ratio, good, detail, where, logits.prompt)


def _lost(at: LogitsAt) -> bool:
    """A word of the reference's largest five that the port no longer has, although rounding could not take it out."""
    least = at.reference[-1][1] + SAFE_MARGIN * at.floor
    kept = {word for word, _ in at.port}
    return any(word not in kept for word, logit in at.reference if logit > least)


def worst_first(checks: Iterable[Behaviour]) -> list[Behaviour]:
    """One record a check and dtype, of several prompts: the worst."""
    rank = {"NOT_COMPARED": 0, "PASS": 1, "WARN": 2, "INCONCLUSIVE": 3, "FAIL": 4}
    found: dict[tuple[str, str], Behaviour] = {}
    for check in checks:
        held = found.get((check.name, check.dtype))
        if held is None or (rank[check.status], check.measured) > (rank[held.status], held.measured):
            found[check.name, check.dtype] = check
    return list(found.values())
