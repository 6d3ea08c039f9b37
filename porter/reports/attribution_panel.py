"""Which layers and nodes make the difference at the logits: a bar a layer, and one line of the largest."""

import plotly.graph_objects as go  # type: ignore[import-untyped]

from porter.comparison.names import place_in_unit
from porter.comparison.observed import Share
from porter.comparison.report import DiffReport
from porter.reports.canvas import AXIS, blank_figure, layer_axis
from porter.reports.markup import Html, join, tag
from porter.reports.page import pinned, place
from porter.reports.sections import nothing
from porter.reports.shares import by_node, percent, shares_of, told

COLOURS = ("#2f7fc1", "#d9822b", "#2a9d84", "#8a63c9", "#c2557f", "#a7861f")
REST, REST_COLOUR = "other nodes", "#8d99a6"
HEIGHT = 300
_NOTHING = "porter diff --attribution says which layers and nodes make the difference at the logits."


def attribution_panel(report: DiffReport, figures: dict[str, go.Figure]) -> Html:
    """The line and the picture."""
    if not report.attribution:
        return nothing(_NOTHING)
    figures["shares"] = attribution_bars(report)
    label = "The share that each layer has in the difference at the logits, by node"
    said = tag("p", told(report), class_="caption")
    return join([said, place("shares", figures["shares"], hidden=False, label=label), pinned()])


def attribution_bars(report: DiffReport) -> go.Figure:
    """A bar a layer, its nodes stacked; what takes away hangs below."""
    figure = blank_figure(HEIGHT)
    kinds = sorted(by_node(report.attribution).items(), key=lambda each: -abs(each[1]))
    colours = {node: colour for (node, _), colour in zip(kinds, COLOURS, strict=False)}
    places = ["embed", *map(str, range(report.num_layers)), "head"]
    for node in (*colours, REST):
        mine = [each for each in shares_of(report, "node") if colours.keys() and _kind(each, colours) == node]
        if mine:
            figure.add_bar(
                x=[_place(each) for each in mine], y=[100 * each.share for each in mine], name=node,
                customdata=[f"semantics {each.dtype} {each.unit}" for each in mine],
                text=[f"<b>{each.unit}</b><br>{percent(each.share)} of the difference at the logits" for each in mine],
                hovertemplate="%{text}<extra></extra>", textposition="none",
                marker={"color": colours.get(node, REST_COLOUR), "line": {"width": 0}},
            )  # fmt: skip
    figure.update_layout(
        meta={"kind": "bars"}, barmode="relative", bargap=0.25, xaxis={**AXIS, **layer_axis(places)},
        yaxis={**AXIS, "title": "share of the difference, %", "zeroline": True, "zerolinecolor": "#7d8794"},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}, hovermode="closest",
    )  # fmt: skip
    return figure


def _kind(each: Share, colours: dict[str, str]) -> str:
    node = place_in_unit(each.unit)
    return node if node in colours else REST


def _place(each: Share) -> str:
    parts = each.unit.split(".")
    return parts[1] if parts[0] == "layers" else "embed" if parts[0] == "embed" else "head"
