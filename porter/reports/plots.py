"""The curve of a report and the margins of its logits: pure functions from a DiffReport to a plotly figure."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import plotly.graph_objects as go  # type: ignore[import-untyped]

from porter.comparison.logits_record import SAFE_MARGIN, Logits, LogitsAt
from porter.comparison.report import DiffReport, NodeDiff, Stage
from porter.reports.canvas import AXIS, INK, UNCOMPARED, blank_figure, layer_axis
from porter.reports.hover import describe_local, describe_logits, describe_propagated
from porter.reports.stream import extent, log_difference, residual_stream, rounding_band
from porter.reports.summary import block_of, layer_peaks, layers_shown, limits

DTYPE_COLOURS = {"float32": "#2f7fc1", "bfloat16": "#d9822b", "float16": "#2a9d84"}
SPARE_COLOURS = ("#2f7fc1", "#d9822b", "#8a63c9", "#c2557f")
SAME, OTHER = "#5f97c0", "#cf4a2c"  # the port says the reference's word, or another
CURVE_HEIGHT, MARGIN_HEIGHT = 500, 360
RATIO_HEIGHT, NOTE_HEIGHT = 110, 15  # pixels: of the plot of ρ, of a line of text
NOT_FINITE = 1e5  # where a ρ that is not finite is drawn


def layer_curves(report: DiffReport) -> go.Figure:
    """log10 ‖h_port − h_ref‖₂ along the layers for each dtype, over what rounding explains; below it, the worst ρ."""
    figure = blank_figure(CURVE_HEIGHT)
    stages = [stage for stage in report.stages if residual_stream(report, stage)]
    room = extent(report, stages)
    for index, stage in enumerate(stages):
        colour = DTYPE_COLOURS.get(stage.dtype, SPARE_COLOURS[index % len(SPARE_COLOURS)])
        bottom = room.lane[0] + (room.lane[1] - room.lane[0]) * (index + 1) / (len(stages) + 1)
        _add_band(figure, report, stage, colour)
        _add_curve(figure, residual_stream(report, stage), colour, ends=(bottom, room.ceiling))
        _add_ratios(figure, report, stage, colour, width=2.4 if index == 0 else 1.4)
    if any(log_difference(node) is None for stage in stages for node in residual_stream(report, stage)):
        _add_lane(figure, room.lane, "bit-equal")
    places = ["embed", *map(str, layers_shown(report)), "final"]
    figure.update_layout(
        meta={"kind": "curve"},
        xaxis={**AXIS, **layer_axis(places), "anchor": "y2"},
        yaxis={**AXIS, "title": "log₁₀ ‖h_port − h_ref‖₂", "domain": [0.38, 1]},
        yaxis2={**AXIS, "title": "worst ρ", "type": "log", "domain": [0, 0.28], "dtick": 1},
        yaxis2_range=_ratio_range(figure),
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        margin={"r": 96},
        hovermode="closest",
    )
    _spread_limits(figure)
    return figure


def _spread_limits(figure: go.Figure) -> None:
    """Moves the names of limits apart where the decades lie too close for both."""
    low, high = figure.layout.yaxis2.range
    notes = sorted((note for note in figure.layout.annotations if note.yref == "y2"), key=lambda note: note.y)
    for below, above in pairwise(notes):
        gap = (above.y - below.y) * RATIO_HEIGHT / (high - low)
        if gap < NOTE_HEIGHT and above.text != below.text:
            below.yshift, above.yshift = (gap - NOTE_HEIGHT) / 2, (NOTE_HEIGHT - gap) / 2


def _add_band(figure: go.Figure, report: DiffReport, stage: Stage, colour: str) -> None:
    found = [(block_of(node), rounding_band(report, node)) for node in residual_stream(report, stage)]
    places = [place for place, band in found if band]
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    figure.add_scatter(x=places, y=[band[0] for _, band in found if band], showlegend=False, **edge)
    fill = {"fill": "tonexty", "fillcolor": f"{colour}33", "name": f"{stage.dtype} rounding"}
    figure.add_scatter(x=places, y=[band[1] for _, band in found if band], **fill, **edge)


def _add_curve(figure: go.Figure, nodes: Sequence[NodeDiff], colour: str, *, ends: tuple[float, float]) -> None:
    """The difference along the layers; `ends` is where bit-equal points go, and those that are not finite."""
    levels = [log_difference(node) for node in nodes]
    plain = [level is not None and level < math.inf for level in levels]
    marker = {
        "color": colour,
        "opacity": 1,  # plotly makes markers of several sizes see-through, and rings them
        "size": [7 if each else 9 for each in plain],
        "symbol": ["diamond-open" if each is None else "circle" if each < math.inf else "x" for each in levels],
        "line": {"width": [0 if each else 1.5 for each in plain], "color": colour},
    }
    figure.add_scatter(
        x=[block_of(node) for node in nodes],
        y=[ends[0] if level is None else min(level, ends[1]) for level in levels],
        text=[describe_propagated(node) for node in nodes],
        customdata=_names(nodes),
        hovertemplate="%{text}<extra></extra>",
        name=f"{nodes[0].dtype} difference",
        mode="lines+markers",
        line={"color": colour, "width": 2.2},
        marker=marker,
    )


def _add_ratios(figure: go.Figure, report: DiffReport, stage: Stage, colour: str, *, width: float) -> None:
    """The largest local ρ of each layer's observable nodes, and the limit above which it fails."""
    peaks = layer_peaks(report, stage)
    figure.add_scatter(
        x=[place for place, _ in peaks],
        y=[max(found.value, 0.1) if math.isfinite(found.value) else NOT_FINITE for _, found in peaks],
        text=[describe_local(report, found.node) for _, found in peaks],
        customdata=_names([found.node for _, found in peaks]),
        hovertemplate="%{text}<extra></extra>",
        showlegend=False,
        mode="lines+markers",
        line={"color": colour, "width": width},  # lines that coincide are both seen
        marker={"color": colour, "size": 5},
        yaxis="y2",
    )
    failing = limits(report, stage.dtype, "rho")[1]
    _add_limit(figure, failing, f"{stage.dtype} fail > {failing:g}", colour)


def _ratio_range(figure: go.Figure) -> tuple[float, float]:
    """The decades that every ρ and every limit of the lower plot fits in."""
    drawn = [ratio for trace in figure.data if trace.yaxis == "y2" for ratio in trace.y]
    limits_drawn = [shape.y0 for shape in figure.layout.shapes if shape.yref == "y2"]
    return min(map(math.log10, [*drawn, 0.6])), max(map(math.log10, [*drawn, *limits_drawn, 1.0])) + 0.3


def _add_limit(figure: go.Figure, value: float, text: str, colour: str) -> None:
    """A dashed line across the plot of ρ with its name at the right end."""
    line = {"color": colour, "width": 1, "dash": "dash"}
    figure.add_shape(type="line", xref="paper", x0=0, x1=1, yref="y2", y0=value, y1=value, line=line, layer="below")
    place = {"xref": "paper", "x": 1, "xanchor": "left", "xshift": 4, "yref": "y2", "y": math.log10(value)}
    figure.add_annotation(text=text, showarrow=False, font={"size": 11, "color": colour}, **place)


def _add_lane(figure: go.Figure, lane: tuple[float, float], text: str) -> None:
    """A shaded strip across the plot with its name at the right end."""
    fill = {"fillcolor": UNCOMPARED, "opacity": 0.4, "line": {"width": 0}, "layer": "below"}
    figure.add_shape(type="rect", xref="paper", x0=0, x1=1, yref="y", y0=lane[0], y1=lane[1], **fill)
    place = {"xref": "paper", "x": 1, "xanchor": "left", "xshift": 4, "yref": "y", "y": sum(lane) / 2}
    figure.add_annotation(text=text, showarrow=False, font={"size": 11, "color": INK}, **place)


def _names(nodes: Sequence[NodeDiff]) -> list[str]:
    """What a click on each point goes to."""
    return [f"{node.stage} {node.dtype} {node.name}" for node in nodes]


def margin_scatter(logits: Logits, words: Mapping[int, str]) -> go.Figure:
    """The margin of each token's word over what rounding moves one by: above the line no word may change."""
    figure = blank_figure(MARGIN_HEIGHT)
    least = min((each.floor for each in logits.at if each.floor > 0), default=1.0)
    for flipped, name, colour, symbol in ((False, "same word", SAME, "circle"), (True, "another word", OTHER, "x")):
        found = [each for each in logits.at if each.flipped == flipped]
        figure.add_scatter(
            x=[max(each.floor, least) for each in found],
            y=[max(each.margin, least) for each in found],
            text=[describe_logits(each, words) for each in found],
            hovertemplate="%{text}<extra></extra>",
            name=f"{name} ({len(found)})",
            mode="markers",
            marker={"color": colour, "size": 9 if flipped else 7, "symbol": symbol, "opacity": 0.85},
        )
    _add_safe_line(figure, logits.at, least)
    figure.update_layout(
        meta={"kind": "margins"},
        xaxis={
            **AXIS,
            "title": "floor: what rounding moves a margin by",
            **_decades([each.floor for each in logits.at], least),
        },
        yaxis={
            **AXIS,
            "title": "margin of the reference’s word",
            **_decades([each.margin for each in logits.at], least),
        },
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hovermode="closest",
    )
    return figure


def _decades(values: Sequence[float], least: float) -> dict[str, object]:
    """A logarithmic axis with a name at every decade, or closer where it spans less than two."""
    found = [math.log10(max(value, least)) for value in values if math.isfinite(value)]
    span = max(found, default=0.0) - min(found, default=0.0)
    return {"type": "log", "dtick": 1 if span > 2 else "D2" if span > 0.6 else "D1", "tickformat": "~g"}


def _add_safe_line(figure: go.Figure, at: Sequence[LogitsAt], least: float) -> None:
    floors = [max(each.floor, least) for each in at if math.isfinite(each.floor)]
    ends = [min(floors, default=1.0) * 0.8, max(floors, default=1.0) * 1.25]
    figure.add_scatter(
        x=ends,
        y=[SAFE_MARGIN * each for each in ends],
        name=f"{SAFE_MARGIN:g} × floor: above it no word may change",
        mode="lines",
        line={"color": INK, "width": 1.2, "dash": "dash"},
        hoverinfo="skip",
    )
