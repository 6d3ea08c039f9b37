"""Whether a port sends tokens to the experts that the reference sends them to, and whether rounding explains it if not.

A token whose experts differ cannot be compared any further, so all sides take the reference's experts; what the port's
router chose itself is looked at here.
"""

from dataclasses import replace

import torch
from torch import Tensor

from porter.comparison.logits_record import SAFE_MARGIN
from porter.comparison.report import NodeDiff
from porter.comparison.verdicts import FLOORS
from porter.models.moe import Routed

_SHOWN = 3
_MOST_ELSEWHERE = 0.1  # of all tokens, those that rounding may send to another group


def judge_routing(node: NodeDiff, golden: Routed | None, reference: Routed | None, port: Routed | None) -> NodeDiff:
    """The node of the weights, with what is to be said of the choice: FAIL where a token went elsewhere though golden's
    scores are clear, INCONCLUSIVE where they are nearly alike, so that rounding decides.

    Args:
        golden: has the scores; its own choice is not looked at.
    """
    if golden is None or reference is None or port is None or golden.scores is None:
        return node
    if port.own.shape != reference.own.shape:
        said = f"a token goes to {port.own.shape[-1]} experts, the reference's to {reference.own.shape[-1]}"
        return replace(node, status="FAIL", reason=said)
    flipped_T = (_sorted(port.own) != _sorted(reference.own)).any(-1)[0].nonzero().flatten()
    if not len(flipped_T):
        return node
    noise = _noise(golden.scores, reference.scores, node.dtype)
    gaps_T = _gaps(golden.scores[0, flipped_T], reference.own[0, flipped_T], port.own[0, flipped_T])
    elsewhere_T = gaps_T.isinf()
    many = int(elsewhere_T.sum()) > _MOST_ELSEWHERE * port.own.shape[1]
    clear_T = flipped_T[elsewhere_T if many else (gaps_T > SAFE_MARGIN * noise) & ~elsewhere_T]
    said = f"{len(flipped_T)} of {port.own.shape[1]} tokens go to other experts than the reference's"
    if len(clear_T):
        at = ", ".join(map(str, clear_T[:_SHOWN].tolist()))
        more = f" and {len(clear_T) - _SHOWN} more" if len(clear_T) > _SHOWN else ""
        return replace(node, status="FAIL", reason=f"{said}, and rounding does not explain it at tokens {at}{more}")
    if node.status == "FAIL":
        return node
    return replace(node, status="INCONCLUSIVE", reason=f"{said}, whose scores are alike but for rounding")


def _sorted(chosen_BTK: Tensor) -> Tensor:
    return chosen_BTK.sort(-1).values


def _noise(golden_BTE: Tensor, reference_BTE: Tensor | None, dtype: str) -> float:
    """How far off rounding puts a score: what it did to the reference's at worst, and no less than the floor."""
    seen = golden_BTE.isfinite()
    floor = FLOORS[dtype] * float(golden_BTE[seen].abs().max())
    if reference_BTE is None:
        return floor
    seen = seen & reference_BTE.isfinite()
    return max(floor, float((reference_BTE.double() - golden_BTE)[seen].abs().max()))


def _gaps(golden_NE: Tensor, reference_NK: Tensor, port_NK: Tensor) -> Tensor:
    """[N]: by how much golden prefers the best expert that the port leaves out to the worst it has instead.

    Infinite where that one is in a group that was not chosen from; by how much groups differ is not shown.
    """
    left_NE, added_NE = (torch.zeros_like(golden_NE, dtype=torch.bool) for _ in range(2))
    left_NE.scatter_(-1, reference_NK, True).scatter_(-1, port_NK, False)
    added_NE.scatter_(-1, port_NK, True).scatter_(-1, reference_NK, False)
    left_N = golden_NE.masked_fill(~left_NE, -torch.inf).amax(-1)
    added_N = golden_NE.masked_fill(~added_NE, torch.inf).amin(-1)
    return (left_N - added_N).nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
