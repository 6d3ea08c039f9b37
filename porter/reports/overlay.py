"""Several reports in one picture: their curves over the layers, and under them the worst ρ of each layer."""

import math
from collections.abc import Iterator, Sequence

import plotly.graph_objects as go  # type: ignore[import-untyped]

from porter.comparison.report import DiffReport, NodeDiff, Stage
from porter.reports.canvas import AXIS, blank_figure, layer_axis
from porter.reports.hover import describe_local, describe_propagated
from porter.reports.plots import NOT_FINITE
from porter.reports.stream import log_difference, residual_stream
from porter.reports.summary import block_of, layer_peaks, layers_shown

COLOURS = ("#2f7fc1", "#d9822b", "#2a9d84", "#8a63c9", "#c2557f", "#7d8794", "#a7861f", "#4a5766")
DASHES = {"float32": "solid", "bfloat16": "dot", "float16": "dash"}
HEIGHT, BIT_EQUAL = 560, 0.6  # decades under all else at which bit-equal points are drawn
EMPTY = "No report has a node that was compared on its own hidden states."


def report_labels(reports: Sequence[DiffReport]) -> list[str]:
    """What each is called: its name, with what changed in it, numbered where that does not tell it apart."""
    names = [" ".join((report.name, *report.overrides)) for report in reports]
    told = [
        name if names.count(name) == 1 else f"{name}: {report.port.what}"
        for name, report in zip(names, reports, strict=True)
    ]
    return [name if told.count(name) == 1 else f"{name} ({told[: i + 1].count(name)})" for i, name in enumerate(told)]


def overlay(reports: Sequence[DiffReport]) -> go.Figure:
    """log10 ‖h_port − h_ref‖₂ along the layers of every report and dtype, a colour a report; below it the worst ρ."""
    figure = blank_figure(HEIGHT)
    curves, labels = list(_curves(reports)), report_labels(reports)
    levels = [level for *_, nodes in curves for node in nodes if (level := log_difference(node)) is not None]
    finite = [level for level in levels if math.isfinite(level)] or [0.0]
    low, high = min(finite) - BIT_EQUAL, max(finite) + BIT_EQUAL
    for index, (number, report, stage, nodes) in enumerate(curves):
        label, colour = labels[number], COLOURS[number % len(COLOURS)]
        dash = DASHES.get(stage.dtype, "solid")
        known = [log_difference(node) for node in nodes]
        figure.add_scatter(
            x=[block_of(node) for node in nodes], y=[low if each is None else min(each, high) for each in known],
            text=[f"<b>{label}</b><br>{describe_propagated(node)}" for node in nodes], name=f"{label}, {stage.dtype}",
            hovertemplate="%{text}<extra></extra>", mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2},
            marker={"color": colour, "size": 6, "symbol": [_symbol(each) for each in known]}, legendgroup=str(index),
        )  # fmt: skip
        _add_ratios(figure, label, report, stage, colour=colour, dash=dash, group=str(index))
    layers = sorted({layer for report in reports for layer in layers_shown(report)})
    places = ["embed", *map(str, layers), "final"]
    figure.update_layout(
        meta={"kind": "curve"}, xaxis={**AXIS, **layer_axis(places), "anchor": "y2"},
        yaxis={**AXIS, "title": "log₁₀ ‖h_port − h_ref‖₂", "domain": [0.42, 1]},
        yaxis2={**AXIS, "title": "worst ρ", "type": "log", "domain": [0, 0.32], "dtick": 1},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        hovermode="closest",
    )  # fmt: skip
    return figure


def _curves(reports: Sequence[DiffReport]) -> Iterator[tuple[int, DiffReport, Stage, list[NodeDiff]]]:
    for number, report in enumerate(reports):
        for stage in report.stages:
            nodes = residual_stream(report, stage)
            if nodes:
                yield number, report, stage, nodes


def _symbol(level: float | None) -> str:
    return "diamond-open" if level is None else "circle" if math.isfinite(level) else "x"


def _add_ratios(
    figure: go.Figure, label: str, report: DiffReport, stage: Stage, *, colour: str, dash: str, group: str
) -> None:
    peaks = layer_peaks(report, stage)
    figure.add_scatter(
        x=[place for place, _ in peaks],
        y=[max(found.value, 0.1) if math.isfinite(found.value) else NOT_FINITE for _, found in peaks],
        text=[f"<b>{label}</b><br>{describe_local(report, found.node)}" for _, found in peaks],
        hovertemplate="%{text}<extra></extra>", showlegend=False, legendgroup=group, mode="lines+markers",
        line={"color": colour, "dash": dash, "width": 1.6}, marker={"color": colour, "size": 5}, yaxis="y2",
    )  # fmt: skip
