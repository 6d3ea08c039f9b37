"""Whether a patched training is as near to golden's as the plain one is: ratios of errors, as in a diff."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from porter.bench.convergence.training import TOP_K, Trajectory
from porter.comparison.report import Verdict
from porter.comparison.verdicts import FLOORS, THRESHOLDS

SATURATED = 0.5  # past this error of the plain training, two trainings have nothing left in common to compare


@dataclass(frozen=True)
class Row:
    """One kind of quantity of one model in one dtype.

    Attributes:
        what: losses, log_probs, layers, gradients or updates.
        where: which layer or parameter has the largest ratio; empty where there is one alone.
        e_plain, e_patched: relative errors there, from golden.
        rho: their ratio.
        flips: tokens that the patched model sent to other experts than golden's, over all steps. Past the first, it is
            another function that is trained, so that no ratio is a FAIL.
    """

    family: str
    dtype: str
    what: str
    where: str
    e_plain: float
    e_patched: float
    rho: float
    status: Verdict
    flips: int = 0


def judge(family: str, dtype: str, golden: Trajectory, plain: Trajectory, patched: Trajectory) -> list[Row]:
    """A row a kind; of several layers or parameters, joined by layer, the worst."""
    top_BTK = golden.log_probs.topk(TOP_K, dim=-1).indices
    sides = (golden, plain, patched)
    kinds: dict[str, list[Mapping[str, Tensor]]] = {
        "losses": [{"": side.losses} for side in sides],
        "log_probs": [{"": side.log_probs.gather(-1, top_BTK)} for side in sides],
        "layers": [side.layers for side in sides],
        "gradients": [_by_layer(side.gradients) for side in sides],
        "updates": [_by_layer(side.updates) for side in sides],
    }
    flips = sum(int((one != other).sum()) for one, other in zip(golden.choices, patched.choices, strict=True))
    return [_unless_flipped(_worst(family, dtype, what, *values), flips) for what, values in kinds.items()]


def _unless_flipped(row: Row, flips: int) -> Row:
    return replace(row, flips=flips, status="INCONCLUSIVE" if flips and row.status == "FAIL" else row.status)


def _worst(
    family: str, dtype: str, what: str,
    golden: Mapping[str, Tensor], plain: Mapping[str, Tensor], patched: Mapping[str, Tensor],
) -> Row:  # fmt: skip
    rows = []
    for where, wide in golden.items():
        e_plain, e_patched = (_error(side.get(where), wide) for side in (plain, patched))
        rho = e_patched / max(e_plain, FLOORS[dtype])
        rows.append(Row(family, dtype, what, where, e_plain, e_patched, rho, _status(dtype, e_plain, rho)))
    order = ("FAIL", "WARN", "PASS", "INCONCLUSIVE")
    return min(rows, key=lambda row: (order.index(row.status), -row.rho))


def _status(dtype: str, e_plain: float, rho: float) -> Verdict:
    good, bad = THRESHOLDS["gradients"][dtype]["rho_grad"]
    if rho > bad:
        return "FAIL"
    if e_plain > SATURATED:
        return "INCONCLUSIVE"
    return "PASS" if rho <= good else "WARN"


def _error(side: Tensor | None, golden: Tensor) -> float:
    if side is None:
        return float("inf")
    size = torch.linalg.vector_norm(golden)
    return float(torch.linalg.vector_norm(side - golden) / size) if size else float((side != 0).any())


def _by_layer(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters of a layer as one vector, since those of few numbers err by chance; others by their names."""
    joined: dict[str, list[Tensor]] = {}
    for name, value in values.items():
        parts = name.split(".")
        at = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        joined.setdefault(name if at is None else f"layers.{parts[at]}", []).append(value.flatten())
    return {where: torch.cat(each) for where, each in joined.items()}


def as_row(row: Row, commit: str) -> dict[str, str]:
    """For a CSV."""
    numbers = {name: f"{getattr(row, name):.4g}" for name in ("e_plain", "e_patched", "rho")}
    return {**{name: str(value) for name, value in vars(row).items()}, **numbers, "commit": commit}
