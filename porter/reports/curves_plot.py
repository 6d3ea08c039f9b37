"""The figure of porter curves: log10 ‖h_port − h_reference‖₂ over the layers, a curve for every combination."""

import math
from html import escape

import plotly.graph_objects as go  # type: ignore[import-untyped]

from porter.explanation.curves import Curve, Curves
from porter.reports.canvas import AXIS, INK, blank_figure, layer_axis

WINNER = "#2f8f5b"
SINGLE = ("#2f7fc1", "#d9652b", "#8a63c9", "#c98a00", "#c2557f", "#4a5766")  # of single changes, in their order
HEIGHT = 620
_LANE = 0.9  # decades below the lowest curve, where bit-equal points go


def curves_figure(curves: Curves) -> go.Figure:
    """Every combination over the layers; single changes are named, what is the reference is bold and marked."""
    figure = blank_figure(HEIGHT)
    lowest = min(_log(value) for each in (*(c.l2 for c in curves.curves), curves.floor) for value in each if value > 0)
    lane = lowest - _LANE
    _add_band(figure, curves)
    ranked = sorted(curves.curves, key=lambda each: (each.is_reference, sum(each.made) == 1))
    several = next((curve for curve in ranked if _is_drawn_thin(curve)), None)
    for curve in ranked:
        _add_curve(figure, curves, curve, lane, legend=curve is several or not _is_drawn_thin(curve))
    if curves.winners:
        figure.add_hline(y=lane, line={"color": WINNER, "width": 1, "dash": "dot"})
    figure.update_layout(
        meta={"kind": "curve"},
        xaxis={**AXIS, **layer_axis(curves.places)},
        yaxis={**AXIS, "title": "log₁₀ ‖h_port − h_reference‖₂"},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        margin={"r": 24},
        hovermode="closest",
    )
    return figure


def _add_band(figure: go.Figure, curves: Curves) -> None:
    """From the reference's own error to that of two such runs, which are √2 of it apart."""
    places = [place for place, floor in zip(curves.places, curves.floor, strict=True) if floor > 0]
    levels = [_log(floor) for floor in curves.floor if floor > 0]
    edge = {"x": places, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    figure.add_scatter(y=levels, showlegend=False, **edge)
    top = [level + math.log10(math.sqrt(2)) for level in levels]
    figure.add_scatter(y=top, fill="tonexty", fillcolor="rgba(125,135,148,0.30)", name="what rounding costs", **edge)


def _is_drawn_thin(curve: Curve) -> bool:
    """Neither the reference nor a single change."""
    return not curve.is_reference and sum(curve.made) != 1


def _add_curve(figure: go.Figure, curves: Curves, curve: Curve, lane: float, *, legend: bool) -> None:
    told, thin = curves.told(curve), _is_drawn_thin(curve)
    colour = WINNER if curve.is_reference else INK if thin else SINGLE[curve.made.index(True)]
    name = f"bit-equal: {told}" if curve.is_reference else "other combinations" if thin else told
    figure.add_scatter(
        x=list(curves.places),
        y=[_log(value) if value else lane for value in curve.l2],
        text=[_hover(told, place, value, size)
              for place, value, size in zip(curves.places, curve.l2, curves.size, strict=True)],
        hovertemplate="%{text}<extra></extra>",
        name=name,
        legendgroup=name,
        showlegend=legend,
        mode="lines+markers" if curve.is_reference else "lines",
        line={"color": colour, "width": 4 if curve.is_reference else 1 if thin else 2.4},
        marker={"symbol": ["circle" if value else "diamond-open" for value in curve.l2], "size": 8, "color": colour},
        opacity=0.45 if thin else 1.0,
    )  # fmt: skip


def _hover(told: str, place: str, value: float, size: float) -> str:
    where = "embedding" if place == "embed" else f"layer {place}"
    far = "bit-equal" if not value else f"‖Δ‖₂ {value:.3g}, {value / size:.2e} of the reference"
    return f"<b>{escape(told)}</b><br>{where}: {far}"


def _log(value: float) -> float:
    return math.log10(value) if math.isfinite(value) else 12.0


def heights(curves: Curves) -> list[tuple[Curve, float]]:
    """The combinations from the nearest to the farthest after the last layer."""
    return sorted(((curve, curve.l2[-1]) for curve in curves.curves), key=lambda each: (each[1], sum(each[0].made)))
