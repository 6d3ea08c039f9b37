"""Logits at the tokens that are looked at: KL, argmax agreement, mean square error, margins."""

import math

from torch import Tensor

from porter.comparison.logits_record import Logits, LogitsAt
from porter.comparison.names import StageName

_TOP = 5  # of each side's logits that a report shows


def measure_logits(
    stage: StageName, dtype: str, at_N: Tensor, port_NV: Tensor, reference_NV: Tensor, golden_NV: Tensor
) -> Logits:
    """The propagated logits of one stage.

    Args:
        at_N: the tokens' positions in the prompt.
        golden_NV: float64.
    """
    port64_NV, reference64_NV = port_NV.double(), reference_NV.double()
    log_reference_NV = reference64_NV.log_softmax(-1)
    kl_N = _kl(log_reference_NV, port64_NV.log_softmax(-1))
    kl_ref_N = _kl(golden_NV.log_softmax(-1), log_reference_NV)
    return Logits(
        stage=stage,
        dtype=dtype,
        kl=float(kl_N.mean()),
        kl_ref=float(kl_ref_N.mean()),
        worst_kl=float(kl_N.max()),
        worst_token=int(at_N[int(kl_N.argmax())]),
        nmse=float((port64_NV - reference64_NV).square().sum() / reference64_NV.square().sum()),
        agreement=float((port_NV.argmax(-1) == reference_NV.argmax(-1)).double().mean()),
        tokens=len(at_N),
        at=_each(at_N, kl_N, port64_NV, reference64_NV, golden_NV),
    )


def _each(at_N: Tensor, kl_N: Tensor, port_NV: Tensor, reference_NV: Tensor, golden_NV: Tensor) -> tuple[LogitsAt, ...]:
    """The largest logits of each token, and the reference's margin over its own rounding."""
    top = min(_TOP, port_NV.shape[1])
    sides = [side.topk(top, -1) for side in (reference_NV, port_NV)]
    floor_N = margin_floor(reference_NV, golden_NV)
    found = []
    for row, token in enumerate(at_N.tolist()):
        reference, port = (
            tuple(zip(side.indices[row].tolist(), side.values[row].tolist(), strict=True)) for side in sides
        )
        margin = reference[0][1] - reference[1][1] if top > 1 else math.inf
        found.append(LogitsAt(token, float(kl_N[row]), margin, float(floor_N[row]), reference, port))
    return tuple(found)


def margin_floor(reference_NV: Tensor, golden_NV: Tensor) -> Tensor:
    """[N]: what the reference's own rounding moves the difference of two of its logits by."""
    return math.sqrt(2) * (reference_NV.double() - golden_NV.double()).square().mean(-1).sqrt()


def _kl(log_p_NV: Tensor, log_q_NV: Tensor) -> Tensor:
    return (log_p_NV.exp() * (log_p_NV - log_q_NV)).sum(-1).clamp_min(0)
