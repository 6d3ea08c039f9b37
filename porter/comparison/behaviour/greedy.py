"""Greedy text: what the port writes through its cache, against what the reference would write after the same words.

The reference scores the port's text in one forward pass, so it need not be whole in memory; its choice after each word
is the one that its own greedy text makes as long as the two have agreed, and nothing is compared past the first word
where they do not.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from porter.comparison.behaviour.routes import Route
from porter.comparison.logits import margin_floor
from porter.comparison.logits_record import SAFE_MARGIN
from porter.comparison.report import Behaviour, Verdict
from porter.models.decoder import Decoder
from porter.models.matmul import quick_matmul, widened_once

WORDS = 16
MOST_PARAMETERS = 500_000_000  # the port is whole in memory while it writes: 3 GB in bfloat16 on a CPU
NAME = "greedy"


def write(decoder: Decoder, ids_1T: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[1, T + WORDS]: the port's own continuation."""
    with widened_once(), quick_matmul(dtype, device):
        return decoder.generate(ids_1T.to(device), WORDS).cpu()


def greedy_route(text_1S: Tensor) -> Route:
    """The port's text in one forward pass, which the reference and golden score."""
    return Route(NAME, text_1S, (text_1S.shape[1],), cached=False, sides=("reference", "golden"))


def scored(text_1S: Tensor) -> slice:
    """The tokens after which the port's words follow."""
    return slice(text_1S.shape[1] - WORDS - 1, text_1S.shape[1] - 1)


def judge_greedy(
    dtype: str, text_1S: Tensor, reference_NV: Tensor, golden_logits: Callable[[int], Tensor]
) -> Behaviour:
    """Whether the reference would have chosen the port's words.

    Args:
        reference_NV: logits after the tokens of scored(text_1S), one row a word.
        golden_logits: golden's row [V] of one word; asked for where the reference chooses another.
    """
    words_N, reference_NV = text_1S[0, -WORDS:].to(reference_NV.device), reference_NV.double()
    best_N = reference_NV.argmax(-1)
    said = f"{WORDS} words after {text_1S.shape[1] - WORDS} tokens"
    differing = (best_N != words_N).nonzero().flatten().tolist()
    if not bool(reference_NV.isfinite().all()):
        return Behaviour(NAME, dtype, "INCONCLUSIVE", 0.0, SAFE_MARGIN, f"{said}: the reference's are not finite")
    if not differing:
        return Behaviour(NAME, dtype, "PASS", 0.0, SAFE_MARGIN, f"{said}: the reference chooses every one of them")
    step = differing[0]
    margin = float(reference_NV[step, best_N[step]] - reference_NV[step, words_N[step]])
    floor = max(float(margin_floor(reference_NV[step], golden_logits(step))), torch.finfo(torch.float64).tiny)
    floors = margin / floor
    pair = f"#{int(best_N[step])} and not #{int(words_N[step])}"
    found = f"the reference chooses {pair} with a margin of {floors:.2g} floors"
    status: Verdict = "PASS" if floors <= SAFE_MARGIN else "FAIL"
    why = "rounding explains: a tie, and the rest is not compared" if status == "PASS" else "rounding does not explain"
    detail = f"{said}: {step} agree, then {found}, which {why}"
    return Behaviour(NAME, dtype, status, floors, SAFE_MARGIN, detail, f"word {step + 1}")


def not_written(dtype: str, why: str) -> Behaviour:
    """The record of a port that writes nothing."""
    return Behaviour(NAME, dtype, "NOT_COMPARED", 0.0, SAFE_MARGIN, why)
