"""The residual stream of each side on its own hidden states: what the curve of a report is drawn from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from porter.comparison.report import DiffReport, NodeDiff, Stage
from porter.reports.summary import limits, nodes_of

STREAM = ("embed.out", "resid_post", "final.norm")


@dataclass(frozen=True)
class Extent:
    """Where the curve puts what has no logarithm.

    Attributes:
        lane: bottom and top of the strip for bit-equal points, under everything else.
        ceiling: for differences that are not finite, above everything else.
    """

    lane: tuple[float, float]
    ceiling: float


def residual_stream(report: DiffReport, stage: Stage) -> list[NodeDiff]:
    """The nodes with propagated errors after the embedding, after each layer and after the final norm."""
    return [node for node in nodes_of(report, stage.name, stage.dtype) if node.propagated and node.node in STREAM]


def log_difference(node: NodeDiff) -> float | None:
    """log10 ‖port − reference‖₂: None when bit-equal, inf when it is not finite."""
    level = node.propagated.log10_l2 if node.propagated else None
    if level is None or level == -math.inf:
        return None
    return level if math.isfinite(level) else math.inf


def rounding_band(report: DiffReport, node: NodeDiff) -> tuple[float, float] | None:
    """log10 of the reference's own error, and of the difference to a port whose ρ still passes."""
    floor = node.propagated.floor_l2 if node.propagated else 0.0
    if not (math.isfinite(floor) and floor > 0):
        return None
    passing = limits(report, node.dtype, "rho")[0]
    return math.log10(floor), math.log10(floor * math.hypot(1, passing))


def extent(report: DiffReport, stages: Sequence[Stage]) -> Extent:
    """The room that curves and bands take, with what is put under and above it."""
    nodes = [node for stage in stages for node in residual_stream(report, stage)]
    levels = [level for node in nodes if (level := log_difference(node)) is not None and level < math.inf]
    levels += [level for node in nodes for level in rounding_band(report, node) or ()]
    lowest, highest = min(levels, default=0.0), max(levels, default=0.0)
    height = max(0.5, 0.16 * (highest - lowest))
    return Extent((lowest - 1.5 * height, lowest - 0.5 * height), highest + height)
