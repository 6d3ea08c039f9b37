"""The two heatmaps of a report, layers by nodes and tokens by layers: pure functions to a plotly figure."""

import math
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]

from porter.comparison.report import DiffReport, NodeDiff, Stage, Verdict
from porter.reports.canvas import AXIS, INK, UNCOMPARED, blank_figure, layer_axis
from porter.reports.hover import describe_local, visible_tokens
from porter.reports.summary import block_of, format_ratio, layers_shown, limits, nodes_of

PASS_LOW, PASS_HIGH, WARN, FAIL_LOW, FAIL_HIGH = "#b3cbdb", "#5f97c0", "#f2bf4b", "#cf4a2c", "#6d1230"
SIGNS: dict[Verdict, str] = {"PASS": "", "WARN": "▲", "INCONCLUSIVE": "?", "FAIL": "✕", "NOT_COMPARED": "╱"}
SIGN_INK: dict[Verdict, str] = {"WARN": "#3a2a00", "FAIL": "#ffffff", "INCONCLUSIVE": "#16324a", "NOT_COMPARED": INK}
LEVELS: dict[Verdict, float] = {"NOT_COMPARED": 0.0, "PASS": 0.0, "WARN": 1.0, "INCONCLUSIVE": 1.0, "FAIL": 2.0}
ROW_HEIGHT, HEATMAP_HEAD, TOKEN_ROW, TOKEN_HEAD, TOKEN_HEIGHT = 23, 70, 26, 96, 400
LOWEST, HIGHEST = -1.0, 3.0  # log10 ρ: what is outside takes the colour of the end
BAR = {"thickness": 12, "outlinewidth": 0, "x": 1.01, "xanchor": "left", "ypad": 0, "tickfont": {"size": 10}}


def node_heatmap(report: DiffReport, stage: Stage) -> go.Figure:
    """Every node of every layer of one stage, coloured by ρ; in a stage that measures nothing, by status."""
    nodes = list(nodes_of(report, stage.name, stage.dtype))
    rows = list(dict.fromkeys(node.node for node in nodes))
    columns = ["embed", *map(str, layers_shown(report)), "end"]
    cells = {(node.node, _column(node)): node for node in nodes}
    grid = [[cells.get((row, column)) for column in columns] for row in rows]
    figure = blank_figure(HEATMAP_HEAD + ROW_HEIGHT * max(len(rows), 3))
    shades = {"colorscale": [[0, UNCOMPARED], [1, UNCOMPARED]], "showscale": False}
    measured = any(node.local for node in nodes)
    metric = "rho_grad" if stage.name == "gradients" else "rho"
    scale = _ratio_scale(*limits(report, stage.dtype, metric), "ρ") if measured else _status_scale()
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
    _add_signs(figure, nodes)
    advisory = {node.node for node in nodes if node.kind == "gauge"}
    names = [f"<i>{escape(row)}</i>" if row in advisory else escape(row) for row in rows]
    figure.update_layout(
        meta={"kind": "nodes", "key": f"{stage.name} {stage.dtype}"},
        xaxis={**AXIS, **layer_axis(columns), "showgrid": False},
        yaxis={**AXIS, "type": "category", "showgrid": False, "categoryarray": rows, "range": [len(rows) - 0.5, -0.5]},
        yaxis_tickvals=list(range(len(rows))),
        yaxis_ticktext=names,
    )
    return figure


def _column(node: NodeDiff) -> str:
    return str(node.layer) if node.layer is not None else "embed" if block_of(node) == "embed" else "end"


def _cell(node: NodeDiff) -> float:
    """The value that colours a node."""
    return log_ratio(node.local.rho) if node.local else LEVELS[node.status]


def log_ratio(ratio: float) -> float:
    """log10 within the scale; what is not finite is as bad as the scale knows."""
    if not math.isfinite(ratio):
        return HIGHEST
    return round(min(max(math.log10(ratio), LOWEST), HIGHEST), 3) if ratio > 0 else LOWEST


def _add_signs(figure: go.Figure, nodes: Iterable[NodeDiff]) -> None:
    """Writes the ρ on every node that did not pass; the page writes meta, its sign, where a cell is too narrow."""
    for status, sign in SIGNS.items():
        marked = [node for node in nodes if node.status == status and sign]
        has_ratio = status in ("WARN", "FAIL")
        figure.add_scatter(
            x=[_column(node) for node in marked],
            y=[node.node for node in marked],
            text=[short_ratio(node.local.rho) if node.local and has_ratio else sign for node in marked],
            meta=sign,
            mode="text",
            textfont={"size": 10, "color": SIGN_INK.get(status, INK)},
            hoverinfo="skip",
            showlegend=False,
        )


def short_ratio(ratio: float) -> str:
    """A ρ in at most four characters: 2.25, 34.1, 987, 1.1k, 24k, 2e6."""
    if not 1000 <= ratio < math.inf:
        return format_ratio(ratio)
    return f"{ratio / 1000:.{0 if ratio >= 9950 else 1}f}k" if ratio < 999_500 else f"{ratio:.0e}".replace("+0", "")


def _ratio_scale(passing: float, failing: float, name: str) -> dict[str, object]:
    """Blue up to what passes, yellow up to what fails, red above: all of it on log10."""
    low, high = (min(max(math.log10(each), LOWEST + 0.1), HIGHEST - 0.1) for each in (passing, failing))
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
    """ρ_tok of every token after every layer: which words a fault shows at.

    The words are in layout.meta, once a prompt; each layer shows the prompt that it is worst for.
    """
    nodes = [node for node in nodes_of(report, stage.name, stage.dtype) if node.local and node.node == "resid_post"]
    figure = blank_figure(min(TOKEN_HEIGHT, TOKEN_HEAD + TOKEN_ROW * max(len(nodes), 3)))
    ratios = [node.local.tokens if node.local else () for node in nodes]
    width = max((len(line) for line in ratios), default=0)
    words = [list(visible_tokens(prompt.tokens)) for prompt in report.prompts]
    figure.add_heatmap(
        y=[str(node.layer) for node in nodes],
        z=np.array([_padded(map(log_ratio, line), width) for line in ratios], np.float32),
        customdata=np.array([_padded(line, width) for line in ratios], np.float32),
        hovertemplate="token %{x}<br>layer %{y}<br>ρ_tok %{customdata:.3g}<extra></extra>",
        hoverongaps=False,
        **_ratio_scale(*limits(report, stage.dtype, "rho_tok"), "ρ_tok"),
    )
    figure.update_layout(
        meta={
            "kind": "tokens",
            "key": f"{stage.name} {stage.dtype}",
            "words": words,
            "width": width,
            "prompts": [node.prompt for node in nodes],
        },
        xaxis={**AXIS, "title": "token", "showgrid": False},
        yaxis={**AXIS, "title": "layer", "type": "category", "showgrid": False, "range": [len(nodes) - 0.5, -0.5]},
    )
    return figure


def _padded(values: Iterable[float], width: int) -> Sequence[float]:
    line = list(values)[:width]
    return line + [math.nan] * (width - len(line))
