"""The attribution of a report in words: which layers and which nodes have the largest shares."""

from collections.abc import Sequence

from porter.comparison.names import place_in_unit
from porter.comparison.observed import Share
from porter.comparison.report import DiffReport

_SAID = 4  # places in the line


def told(report: DiffReport) -> str:
    """float32: layers.0 42 %, layers.1 24 %, …; mlp.act 100 %."""
    layers, nodes = (shares_of(report, kind) for kind in ("layer", "node"))
    kinds = sorted(by_node(report.attribution).items(), key=lambda each: -abs(each[1]))
    parts = [_largest([(each.unit, each.share) for each in layers]), _largest(kinds)]
    return f"{(layers or nodes)[0].dtype}: {'; '.join(filter(None, parts))}"


def by_node(shares: Sequence[Share]) -> dict[str, float]:
    """mlp.act -> its share, of all layers together."""
    found: dict[str, float] = {}
    for each in shares:
        if each.kind == "node":
            node = place_in_unit(each.unit)
            found[node] = found.get(node, 0.0) + each.share
    return found


def shares_of(report: DiffReport, kind: str) -> list[Share]:
    return [each for each in report.attribution if each.kind == kind]


def percent(share: float) -> str:
    """42 %, 0.3 %, −5 %."""
    size = abs(100 * share)
    said = f"{size:.0f}" if size >= 10 else f"{size:.1f}" if size >= 0.05 else "0.0"
    return f"{'−' if share < 0 and said != '0.0' else ''}{said} %"


def _largest(shares: Sequence[tuple[str, float]]) -> str:
    ranked = sorted(shares, key=lambda each: -abs(each[1]))
    said = ", ".join(f"{unit} {percent(share)}" for unit, share in ranked[:_SAID])
    left = sum(share for _, share in ranked[_SAID:])
    return f"{said}, {len(ranked) - _SAID} others {percent(left)}" if len(ranked) > _SAID else said
