"""The three pictures of a report: pure functions from a DiffReport to a plotly figure.

Backgrounds are transparent and the ink is grey enough for a light page and a dark one; a page may set layout.font.color
to its own. Status is never colour alone: nodes that did not pass carry their ρ or a sign.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape

import plotly.graph_objects as go  # type: ignore[import-untyped]

from porter.comparison.report import DiffReport, NodeDiff, Stage, Verdict
from porter.reports.hover import describe_local, describe_propagated
from porter.reports.summary import block_of, decoded_tokens, format_ratio, limits, nodes_of, peak

INK, GRID, UNCOMPARED = "#7d8794", "rgba(125,135,148,0.22)", "rgba(125,135,148,0.30)"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
DTYPE_COLOURS = {"fp32": "#2f7fc1", "bf16": "#d9822b", "fp16": "#2a9d84"}
SPARE_COLOURS = ("#8a63c9", "#c2557f")
PASS_LOW, PASS_HIGH, WARN, FAIL_LOW, FAIL_HIGH = "#c9dcea", "#79a9cb", "#f2bf4b", "#cf4a2c", "#6d1230"
SIGNS: dict[Verdict, str] = {"PASS": "", "WARN": "▲", "INCONCLUSIVE": "?", "FAIL": "✕", "NOT_COMPARED": "╱"}
SIGN_INK: dict[Verdict, str] = {"WARN": "#3a2a00", "FAIL": "#ffffff", "INCONCLUSIVE": "#16324a", "NOT_COMPARED": INK}
LEVELS: dict[Verdict, float] = {"PASS": 0.0, "WARN": 1.0, "INCONCLUSIVE": 1.0, "FAIL": 2.0}  # where nothing is measured
CURVE_HEIGHT, ROW_HEIGHT, HEATMAP_HEAD, TOKEN_HEIGHT = 500, 23, 70, 380
LOWEST, HIGHEST = -1.0, 4.0  # log10 ρ: what is outside takes the colour of the end
NUMBERS_FIT = 26  # layers, up to which a cell is wide enough for its ρ
BAR = {"thickness": 12, "outlinewidth": 0, "x": 1.01, "xanchor": "left", "len": 1, "tickfont": {"size": 11}}
AXIS = {"gridcolor": GRID, "zeroline": False, "automargin": True}


# --- the curve


def layer_curves(report: DiffReport) -> go.Figure:
    """log10 ‖h_port − h_ref‖₂ along the layers for each dtype, over what rounding explains; below it, the worst ρ."""
    figure = _figure(CURVE_HEIGHT)
    stages = [stage for stage in report.stages if _stream(report, stage)]
    bottom = _bit_equal_level(report, stages)
    for index, stage in enumerate(stages):
        colour = DTYPE_COLOURS.get(stage.dtype, SPARE_COLOURS[index % len(SPARE_COLOURS)])
        _add_band(figure, report, stage, colour)
        _add_curve(figure, report, stage, colour, bottom)
        _add_ratios(figure, report, stage, colour)
    if any(_level(node) is None for stage in stages for node in _stream(report, stage)):
        _add_line(figure, "y", bottom, "bit-equal", INK, dash="dot")
    places = ["embed", *(str(layer) for layer in range(report.num_layers)), "final"]
    figure.update_layout(
        xaxis={**AXIS, "title": "layer", "type": "category", "anchor": "y2", "categoryarray": places},
        yaxis={**AXIS, "title": "log₁₀ ‖h_port − h_ref‖₂", "domain": [0.38, 1]},
        yaxis2={**AXIS, "title": "worst ρ", "type": "log", "domain": [0, 0.28], "dtick": 1, "rangemode": "tozero"},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        margin={"r": 96},
        hovermode="closest",
    )
    return figure


def _stream(report: DiffReport, stage: Stage) -> list[NodeDiff]:
    """The residual stream with propagated errors: after the embedding, after each layer, after the final norm."""
    nodes = nodes_of(report, stage.name, stage.dtype)
    return [node for node in nodes if node.propagated and node.node in ("embed.out", "resid_post", "final.norm")]


def _level(node: NodeDiff) -> float | None:
    """log10 of the difference; None when bit-equal, or when it is not a number that can be drawn."""
    level = node.propagated.log10_l2 if node.propagated else None
    return level if level is not None and math.isfinite(level) else None


def _band(report: DiffReport, node: NodeDiff) -> tuple[float, float] | None:
    """log10 of the reference's own error, and of the difference to a port whose ρ still passes."""
    floor = node.propagated.floor_l2 if node.propagated else 0.0
    if not (math.isfinite(floor) and floor > 0):
        return None
    passing = limits(report, node.dtype, "rho")[0]
    return math.log10(floor), math.log10(floor * math.hypot(1, passing))


def _bit_equal_level(report: DiffReport, stages: Sequence[Stage]) -> float:
    """Where bit-equal points are drawn: under everything that has a logarithm."""
    nodes = [node for stage in stages for node in _stream(report, stage)]
    levels = [level for node in nodes if (level := _level(node)) is not None]
    levels += [band[0] for node in nodes if (band := _band(report, node))]
    lowest, highest = min(levels, default=0.0), max(levels, default=0.0)
    return lowest - max(0.6, 0.12 * (highest - lowest))


def _add_band(figure: go.Figure, report: DiffReport, stage: Stage, colour: str) -> None:
    found = [(block_of(node), band) for node in _stream(report, stage) if (band := _band(report, node))]
    places, floors, tops = [place for place, _ in found], [band[0] for _, band in found], [band[1] for _, band in found]
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    figure.add_scatter(x=places, y=floors, showlegend=False, **edge)
    name = f"{stage.dtype} rounding"
    figure.add_scatter(x=places, y=tops, name=name, fill="tonexty", fillcolor=f"{colour}33", **edge)


def _add_curve(figure: go.Figure, report: DiffReport, stage: Stage, colour: str, bottom: float) -> None:
    nodes = _stream(report, stage)
    levels = [_level(node) for node in nodes]
    symbols = ["circle" if level is not None else "diamond-open" for level in levels]
    figure.add_scatter(
        x=[block_of(node) for node in nodes],
        y=[bottom if level is None else level for level in levels],
        text=[describe_propagated(node) for node in nodes],
        hovertemplate="%{text}<extra></extra>",
        name=f"{stage.dtype} difference",
        mode="lines+markers",
        line={"color": colour, "width": 2.2},
        marker={"color": colour, "size": [7 if level is not None else 9 for level in levels], "symbol": symbols},
    )


def _add_ratios(figure: go.Figure, report: DiffReport, stage: Stage, colour: str) -> None:
    """The largest local ρ of each layer's observable nodes, and the limit above which it fails."""
    inside: dict[str, list[NodeDiff]] = {}
    for node in nodes_of(report, stage.name, stage.dtype):
        inside.setdefault(block_of(node), []).append(node)
    peaks = [(place, found) for place, nodes in inside.items() if place != "logits" and (found := peak(nodes, "rho"))]
    figure.add_scatter(
        x=[place for place, _ in peaks],
        y=[10 ** _log_ratio(found.value) for _, found in peaks],
        text=[describe_local(report, found.node) for _, found in peaks],
        hovertemplate="%{text}<extra></extra>",
        showlegend=False,
        mode="lines+markers",
        line={"color": colour, "width": 1.4},
        marker={"color": colour, "size": 5},
        yaxis="y2",
    )
    failing = limits(report, stage.dtype, "rho")[1]
    _add_line(figure, "y2", failing, f"{stage.dtype} fail > {failing:g}", colour, dash="dash")


def _add_line(figure: go.Figure, axis: str, value: float, text: str, colour: str, *, dash: str) -> None:
    """A line across the plot with its name at the right end."""
    line = {"color": colour, "width": 1, "dash": dash}
    figure.add_shape(type="line", xref="paper", x0=0, x1=1, yref=axis, y0=value, y1=value, line=line, layer="below")
    place = {"xref": "paper", "x": 1, "xanchor": "left", "xshift": 4, "yref": axis}
    height = math.log10(value) if axis == "y2" else value  # annotations on a log axis are placed by logarithm
    figure.add_annotation(text=text, y=height, showarrow=False, font={"size": 11, "color": colour}, **place)


# --- the heatmaps


def node_heatmap(report: DiffReport, stage: Stage) -> go.Figure:
    """Every node of every layer of one stage, coloured by ρ; in a stage that measures nothing, by status."""
    nodes = list(nodes_of(report, stage.name, stage.dtype))
    rows = list(dict.fromkeys(node.node for node in nodes))
    columns = ["embed", *(str(layer) for layer in range(report.num_layers)), "end"]
    cells = {(node.node, _column(node)): node for node in nodes}
    grid = [[cells.get((row, column)) for column in columns] for row in rows]
    text = [[describe_local(report, node) if node else "" for node in line] for line in grid]
    figure = _figure(HEATMAP_HEAD + ROW_HEIGHT * max(len(rows), 3))
    hover = {"x": columns, "y": rows, "text": text, "hovertemplate": "%{text}<extra></extra>", "hoverongaps": False}
    grey = [[0.0 if node and _cell(node) is None else None for node in line] for line in grid]
    shades = [[0, UNCOMPARED], [1, UNCOMPARED]]
    figure.add_heatmap(z=grey, colorscale=shades, showscale=False, xgap=1, ygap=1, **hover)
    levels = [[_cell(node) if node else None for node in line] for line in grid]
    measured = any(node.local for node in nodes)
    scale = _ratio_scale(*limits(report, stage.dtype, "rho"), "ρ") if measured else _status_scale()
    figure.add_heatmap(z=levels, xgap=1, ygap=1, **scale, **hover)
    _add_signs(figure, nodes, numbers=report.num_layers <= NUMBERS_FIT)
    axis = {**AXIS, "type": "category", "gridcolor": "rgba(0,0,0,0)"}
    figure.update_layout(
        xaxis={**axis, "title": "layer", "categoryarray": columns, "range": [-0.5, len(columns) - 0.5]},
        yaxis={**axis, "categoryarray": rows, "range": [len(rows) - 0.5, -0.5], "dtick": 1},
    )
    return figure


def _column(node: NodeDiff) -> str:
    return str(node.layer) if node.layer is not None else "embed" if block_of(node) == "embed" else "end"


def _cell(node: NodeDiff) -> float | None:
    """The value that colours a node; None for one that was not compared."""
    if node.status == "NOT_COMPARED":
        return None
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
    """A ρ in at most four characters."""
    return f"{ratio / 1000:.0f}k" if 1000 <= ratio < math.inf else format_ratio(ratio)


def _ratio_scale(passing: float, failing: float, name: str) -> dict[str, object]:
    """Blue up to what passes, yellow up to what fails, red above: all of it on log10."""
    low, high = math.log10(passing), math.log10(failing)
    warn, fail = ((level - LOWEST) / (HIGHEST - LOWEST) for level in (low, high))
    colours = [[0, PASS_LOW], [warn, PASS_HIGH], [warn, WARN], [fail, WARN], [fail, FAIL_LOW], [1, FAIL_HIGH]]
    ticks = {0.1: "0.1", 1.0: "1", passing: f"{passing:g} warn", failing: f"{failing:g} fail", 100.0: "100", 1e4: "10⁴"}
    ticks = {value: text for value, text in ticks.items() if value in (passing, failing) or value not in (1, 100)} | {
        value: ticks[value] for value in (1.0, 100.0) if all(abs(math.log10(value) - each) > 0.15 for each in (low, high))
    }
    bar = {**BAR, "title": name, "tickvals": [math.log10(value) for value in ticks], "ticktext": list(ticks.values())}
    return {"colorscale": colours, "zmin": LOWEST, "zmax": HIGHEST, "colorbar": bar}


def _status_scale() -> dict[str, object]:
    third = [[0, PASS_HIGH], [1 / 3, PASS_HIGH], [1 / 3, WARN], [2 / 3, WARN], [2 / 3, FAIL_LOW], [1, FAIL_LOW]]
    bar = {**BAR, "tickvals": [0, 1, 2], "ticktext": ["equal", "differs", "fails"]}
    return {"colorscale": third, "zmin": -0.5, "zmax": 2.5, "colorbar": bar}


def token_heatmap(report: DiffReport, stage: Stage) -> go.Figure:
    """ρ_tok of every token after every layer: which words a fault shows at."""
    nodes = [node for node in nodes_of(report, stage.name, stage.dtype) if node.local and node.node == "resid_post"]
    figure = _figure(TOKEN_HEIGHT)
    ratios = [node.local.tokens if node.local else () for node in nodes]
    width = max((len(line) for line in ratios), default=0)
    figure.add_heatmap(
        y=[node.layer for node in nodes],
        z=[[_log_ratio(ratio) for ratio in line] for line in ratios],
        customdata=[[format_ratio(ratio) for ratio in line] for line in ratios],
        text=[_shown_tokens(decoded_tokens(report, node), width) for node in nodes],
        hovertemplate="token %{x}: <b>%{text}</b><br>layer %{y}<br>ρ_tok %{customdata}<extra></extra>",
        **_ratio_scale(*limits(report, stage.dtype, "rho_tok"), "ρ_tok"),
    )
    figure.update_layout(
        xaxis={**AXIS, "title": "token", "showgrid": False},
        yaxis={**AXIS, "title": "layer", "showgrid": False, "autorange": "reversed"},
    )
    return figure


def _shown_tokens(tokens: Sequence[str], width: int) -> list[str]:
    """Tokens as hover text: visible white space, escaped; empty where there is no tokenizer."""
    shown = [escape(repr(token.encode("utf-8", "replace").decode())[1:-1]) for token in tokens[:width]]
    return shown + [""] * (width - len(shown))


def _figure(height: int) -> go.Figure:
    clear = "rgba(0,0,0,0)"
    return go.Figure(
        layout={
            "template": "none",
            "height": height,
            "paper_bgcolor": clear,
            "plot_bgcolor": clear,
            "font": {"family": FONT, "size": 12, "color": INK},
            "margin": {"l": 60, "r": 20, "t": 12, "b": 46},
            "hoverlabel": {"align": "left", "font": {"family": FONT, "size": 12}},
        }
    )
