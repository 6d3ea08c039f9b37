"""The three pictures of a report: pure functions from a DiffReport to a plotly figure.

Backgrounds are transparent and the ink is grey enough for a light page and a dark one; a page may set layout.font.color
to its own. Status is never colour alone: nodes that did not pass carry their ρ or a sign.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TypeVar

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]

from porter.comparison.report import DiffReport, NodeDiff, Stage, Verdict
from porter.reports.hover import describe_local, describe_propagated, visible_tokens
from porter.reports.stream import extent, log_difference, residual_stream, rounding_band
from porter.reports.summary import block_of, decoded_tokens, format_ratio, limits, nodes_of, peak

INK, GRID, UNCOMPARED = "#7d8794", "rgba(125,135,148,0.22)", "rgba(125,135,148,0.30)"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
DTYPE_COLOURS = {"fp32": "#2f7fc1", "bf16": "#d9822b", "fp16": "#2a9d84"}
SPARE_COLOURS = ("#8a63c9", "#c2557f")
PASS_LOW, PASS_HIGH, WARN, FAIL_LOW, FAIL_HIGH = "#a8c4d8", "#5f97c0", "#f2bf4b", "#cf4a2c", "#6d1230"
SIGNS: dict[Verdict, str] = {"PASS": "", "WARN": "▲", "INCONCLUSIVE": "?", "FAIL": "✕", "NOT_COMPARED": "╱"}
SIGN_INK: dict[Verdict, str] = {"WARN": "#3a2a00", "FAIL": "#ffffff", "INCONCLUSIVE": "#16324a", "NOT_COMPARED": INK}
LEVELS: dict[Verdict, float] = {"NOT_COMPARED": 0.0, "PASS": 0.0, "WARN": 1.0, "INCONCLUSIVE": 1.0, "FAIL": 2.0}
CURVE_HEIGHT, ROW_HEIGHT, HEATMAP_HEAD, TOKEN_HEIGHT = 500, 23, 70, 400
LOWEST, HIGHEST = -1.0, 3.0  # log10 ρ: what is outside takes the colour of the end
NOT_FINITE = 1e5  # where a ρ that is not finite is drawn
NUMBERS_FIT = 26  # layers, up to which a cell is wide enough for its ρ
BAR = {"thickness": 12, "outlinewidth": 0, "x": 1.01, "xanchor": "left", "ypad": 0, "tickfont": {"size": 10}}
Value = TypeVar("Value", float, str)
AXIS = {"gridcolor": GRID, "zeroline": False, "automargin": True, "tickfont": {"size": 11}}


# --- the curve


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
    places = ["embed", *(str(layer) for layer in range(report.num_layers)), "final"]
    figure.update_layout(
        xaxis={**AXIS, **_layer_axis(places), "anchor": "y2"},
        yaxis={**AXIS, "title": "log₁₀ ‖h_port − h_ref‖₂", "domain": [0.38, 1]},
        yaxis2={**AXIS, "title": "worst ρ", "type": "log", "domain": [0, 0.28], "dtick": 1},
        yaxis2_range=_ratio_range(figure),
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        margin={"r": 96},
        hovermode="closest",
    )
    return figure


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
        hovertemplate="%{text}<extra></extra>",
        name=f"{nodes[0].dtype} difference",
        mode="lines+markers",
        line={"color": colour, "width": 2.2},
        marker=marker,
    )


def _add_ratios(figure: go.Figure, report: DiffReport, stage: Stage, colour: str, *, width: float) -> None:
    """The largest local ρ of each layer's observable nodes, and the limit above which it fails."""
    inside: dict[str, list[NodeDiff]] = {}
    for node in nodes_of(report, stage.name, stage.dtype):
        inside.setdefault(block_of(node), []).append(node)
    peaks = [(place, found) for place, nodes in inside.items() if place != "logits" and (found := peak(nodes, "rho"))]
    figure.add_scatter(
        x=[place for place, _ in peaks],
        y=[max(found.value, 0.1) if math.isfinite(found.value) else NOT_FINITE for _, found in peaks],
        text=[describe_local(report, found.node) for _, found in peaks],
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


# --- the heatmaps


def node_heatmap(report: DiffReport, stage: Stage) -> go.Figure:
    """Every node of every layer of one stage, coloured by ρ; in a stage that measures nothing, by status."""
    nodes = list(nodes_of(report, stage.name, stage.dtype))
    rows = list(dict.fromkeys(node.node for node in nodes))
    columns = ["embed", *(str(layer) for layer in range(report.num_layers)), "end"]
    cells = {(node.node, _column(node)): node for node in nodes}
    grid = [[cells.get((row, column)) for column in columns] for row in rows]
    figure = blank_figure(HEATMAP_HEAD + ROW_HEIGHT * max(len(rows), 3))
    shades = {"colorscale": [[0, UNCOMPARED], [1, UNCOMPARED]], "showscale": False}
    measured = any(node.local for node in nodes)
    scale = _ratio_scale(*limits(report, stage.dtype, "rho"), "ρ") if measured else _status_scale()
    for compared, style in ((False, shades), (True, scale)):
        kept = [
            [node if node and (node.status != "NOT_COMPARED") == compared else None for node in line] for line in grid
        ]
        figure.add_heatmap(
            x=columns,
            y=rows,
            z=[[_cell(node) if node else None for node in line] for line in kept],
            text=[[describe_local(report, node) if node else "" for node in line] for line in kept],
            hovertemplate="%{text}<extra></extra>",
            hoverongaps=False,
            xgap=1,
            ygap=1,
            **style,
        )
    _add_signs(figure, nodes, numbers=report.num_layers <= NUMBERS_FIT)
    advisory = {node.node for node in nodes if node.kind == "gauge"}
    names = [f"<i>{escape(row)}</i>" if row in advisory else escape(row) for row in rows]
    figure.update_layout(
        xaxis={**AXIS, **_layer_axis(columns), "showgrid": False},
        yaxis={**AXIS, "type": "category", "showgrid": False, "categoryarray": rows, "range": [len(rows) - 0.5, -0.5]},
        yaxis_tickvals=list(range(len(rows))),
        yaxis_ticktext=names,
    )
    return figure


def _column(node: NodeDiff) -> str:
    return str(node.layer) if node.layer is not None else "embed" if block_of(node) == "embed" else "end"


def _cell(node: NodeDiff) -> float:
    """The value that colours a node."""
    return _log_ratio(node.local.rho) if node.local else LEVELS[node.status]


def _log_ratio(ratio: float) -> float:
    """log10 within the scale; what is not finite is as bad as the scale knows."""
    if not math.isfinite(ratio):
        return HIGHEST
    return round(min(max(math.log10(ratio), LOWEST), HIGHEST), 3) if ratio > 0 else LOWEST


def _add_signs(figure: go.Figure, nodes: Iterable[NodeDiff], *, numbers: bool) -> None:
    """Writes a sign, or the ρ where it fits, on every node that did not pass."""
    for status, sign in SIGNS.items():
        marked = [node for node in nodes if node.status == status and sign]
        write_ratio = numbers and status in ("WARN", "FAIL")
        figure.add_scatter(
            x=[_column(node) for node in marked],
            y=[node.node for node in marked],
            text=[_short(node.local.rho) if node.local and write_ratio else sign for node in marked],
            mode="text",
            textfont={"size": 10, "color": SIGN_INK.get(status, INK)},
            hoverinfo="skip",
            showlegend=False,
        )


def _short(ratio: float) -> str:
    """A ρ in at most four characters: 2.25, 34.1, 987, 1.1k, 24k, 2e6."""
    if not 1000 <= ratio < math.inf:
        return format_ratio(ratio)
    return f"{ratio / 1000:.{0 if ratio >= 9950 else 1}f}k" if ratio < 999_500 else f"{ratio:.0e}".replace("+0", "")


def _ratio_scale(passing: float, failing: float, name: str) -> dict[str, object]:
    """Blue up to what passes, yellow up to what fails, red above: all of it on log10."""
    low, high = math.log10(passing), math.log10(failing)
    warn, fail = ((level - LOWEST) / (HIGHEST - LOWEST) for level in (low, high))
    colours = [[0, PASS_LOW], [warn, PASS_HIGH], [warn, WARN], [fail, WARN], [fail, FAIL_LOW], [1, FAIL_HIGH]]
    ticks = {low: f"{passing:g} warn", high: f"{failing:g} fail"}
    for level, label in ((-1, "≤ 0.1"), (0, "1"), (1, "10"), (2, "100"), (3, "≥ 10³")):
        if min(abs(level - low), abs(level - high)) > 0.25:  # decades, the height of a label
            ticks[level] = label
    bar = {**BAR, "title": {"text": f"{name}<br> "}, "tickvals": list(ticks), "ticktext": list(ticks.values())}
    return {"colorscale": colours, "zmin": LOWEST, "zmax": HIGHEST, "colorbar": bar}


def _status_scale() -> dict[str, object]:
    third = [[0, PASS_HIGH], [1 / 3, PASS_HIGH], [1 / 3, WARN], [2 / 3, WARN], [2 / 3, FAIL_LOW], [1, FAIL_LOW]]
    bar = {**BAR, "tickvals": [0, 1, 2], "ticktext": ["equal", "differs", "fails"]}
    return {"colorscale": third, "zmin": -0.5, "zmax": 2.5, "colorbar": bar}


def token_heatmap(report: DiffReport, stage: Stage) -> go.Figure:
    """ρ_tok of every token after every layer: which words a fault shows at."""
    nodes = [node for node in nodes_of(report, stage.name, stage.dtype) if node.local and node.node == "resid_post"]
    figure = blank_figure(TOKEN_HEIGHT)
    ratios = [node.local.tokens if node.local else () for node in nodes]
    width = max((len(line) for line in ratios), default=0)
    figure.add_heatmap(
        y=[node.layer for node in nodes],
        z=np.array([_padded(map(_log_ratio, line), width, math.nan) for line in ratios], np.float32),
        customdata=np.array([_padded(line, width, math.nan) for line in ratios], np.float32),
        text=np.array([_padded(visible_tokens(decoded_tokens(report, node)), width, "") for node in nodes], object),
        hovertemplate="token %{x}: <b>%{text}</b><br>layer %{y}<br>ρ_tok %{customdata:.3g}<extra></extra>",
        hoverongaps=False,
        **_ratio_scale(*limits(report, stage.dtype, "rho_tok"), "ρ_tok"),
    )
    figure.update_layout(
        xaxis={**AXIS, "title": "token", "showgrid": False},
        yaxis={**AXIS, "title": "layer", "showgrid": False, "autorange": "reversed"},
    )
    return figure


def _padded(values: Iterable[Value], width: int, blank: Value) -> list[Value]:
    line = list(values)[:width]
    return line + [blank] * (width - len(line))


def _layer_axis(places: Sequence[str]) -> dict[str, object]:
    """An axis over embedding, layers and what follows; a deep model has its layers named in steps of ten."""
    tens = range(10, len(places) - 4, 10)  # none so close to an end that names overlap
    named = places if len(places) <= NUMBERS_FIT + 2 else [str(layer) for layer in tens]
    ticks = [place for place in places if place in named or not place.isdecimal()]
    grid = {"type": "category", "categoryarray": places, "range": [-0.5, len(places) - 0.5]}
    return {**grid, "title": "layer", "tickvals": ticks, "tickangle": 0}


def blank_figure(height: int) -> go.Figure:
    """A figure without a background, in ink that can be read on a light page and on a dark one."""
    clear = "rgba(0,0,0,0)"
    return go.Figure(
        layout={
            "template": "none",
            "height": height,
            "paper_bgcolor": clear,
            "plot_bgcolor": clear,
            "font": {"family": FONT, "size": 12, "color": INK},
            "margin": {"l": 60, "r": 20, "t": 12, "b": 46},
            "hoverlabel": {
                "align": "left",
                "bgcolor": "#1f2933",
                "bordercolor": "#4a5766",
                "font": {"color": "#f2f4f6"},
            },
        }
    )
