"""Memory curves: a page with both pictures for each head, and a table in the terminal."""

from collections.abc import Sequence
from string import Template

import plotly.graph_objects as go  # type: ignore[import-untyped]

from porter.bench.curves import METHODS, MemoryRun, Point, gradient_bytes
from porter.reports.bench_plots import LOG_TICKS
from porter.reports.canvas import AXIS, INK, blank_figure
from porter.reports.markup import Html, definitions, join, table, tag
from porter.reports.memory_table import format_cell, heads, methods_of, points_of, saving, tokens_of
from porter.reports.page import button, figures_json, icon, pinned, place, plotly_script, template

MARKS = {
    "naive": ("#8b96a3", "circle"),
    "chunked": ("#56b4e9", "diamond"),
    "fused": ("#e0561c", "square"),
    "fused, lean": ("#e69f00", "triangle-up"),
}
HEIGHT = 420
TITLES = {"peak": "peak memory above the inputs, GB (log)", "time": "forward + backward, ms (log)"}


def memory_curves(points: Sequence[Point], what: str) -> go.Figure:
    """Peak memory ("peak") or time ("time") of each method against tokens; a cross on top is out of memory."""
    figure = blank_figure(HEIGHT)
    known = [value for point in points if (value := _value(point, what)) is not None]
    top = 1.25 * max(known, default=1.0)
    for method in methods_of(points):
        mine = [point for point in points if point.method == method]
        values = [_value(point, what) for point in mine]
        colour, symbol = MARKS.get(method, (INK, "circle"))
        figure.add_scatter(
            x=[point.tokens for point in mine],
            y=[top if value is None else value for value in values],
            text=[_hover(point) for point in mine],
            hovertemplate="%{text}<extra></extra>",
            name=method,
            mode="lines+markers",
            line={"color": colour, "width": 2.2},
            marker={"color": colour, "size": 9, "symbol": ["x" if value is None else symbol for value in values]},
        )
    if what == "peak":
        _add_floor(figure, points)
    ticks = tokens_of(points)
    figure.update_layout(
        xaxis={**AXIS, "type": "log", "title": "tokens (log)", "tickvals": ticks, "ticktext": [str(n) for n in ticks]},
        yaxis={**AXIS, "type": "log", "title": TITLES[what], **LOG_TICKS},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        hovermode="closest",
    )
    return figure


def _value(point: Point, what: str) -> float | None:
    if what == "time":
        return point.time_ms
    return None if point.peak_bytes is None else point.peak_bytes / 1e9


def _hover(point: Point) -> str:
    lines = [f"<b>{point.method}</b>, {point.tokens} tokens", METHODS.get(point.method, "")]
    if point.status != "ok":
        return "<br>".join([*lines, point.note])
    peak, time = format_cell(point, "peak"), format_cell(point, "time")
    return "<br>".join([*lines, f"{peak} GB above the inputs", f"{time} ms forward + backward"])


def _add_floor(figure: go.Figure, points: Sequence[Point]) -> None:
    ticks = tokens_of(points)
    floors = {point.tokens: gradient_bytes(point) / 1e9 for point in points}
    figure.add_scatter(
        x=ticks,
        y=[floors[count] for count in ticks],
        name="the gradients alone",
        mode="lines",
        line={"color": INK, "width": 1.5, "dash": "dash"},
        hoverinfo="skip",
    )


def memory_to_html(run: MemoryRun) -> str:
    """The whole page, which asks for nothing from anywhere."""
    figures: dict[str, go.Figure] = {}
    sections = [_section(run, head, figures) for head in heads(run)]
    when = f"porter bench memory · {run.environment['gpu']} · {run.created[:19].replace('T', ' ')} UTC"
    environment = tag("section", tag("h2", "Environment"), definitions(run.environment.items()), id="environment")
    return Template(template("bench.html")).substitute(
        title=tag("title", f"porter bench memory, {run.environment['gpu']}"),
        icon=icon("2f8f5b"),
        style=template("report.css"),
        script=template("report.js"),
        plotly=plotly_script(),
        figures=figures_json(figures),
        verdict_class="pass",
        banner=join([tag("p", when, class_="eyebrow"), tag("h1", saving(run))]),
        sections=join([*sections, environment]),
    )


def _section(run: MemoryRun, head: tuple[int, int], figures: dict[str, go.Figure]) -> Html:
    features, vocabulary = head
    points = points_of(run, head)
    names = {what: f"{what}-{vocabulary}" for what in TITLES}
    for what, name in names.items():
        figures[name] = memory_curves(points, what)
    tabs = (
        button(names["peak"], "memory", selected=True),
        button(names["time"], "time", selected=False),
    )
    methods = methods_of(points)
    lines = (
        [str(count), *(_cell(points, method, count) for method in methods)] for count in tokens_of(points)
    )  # fmt: skip
    caption = "Forward and backward of the loss, in bf16. " + "; ".join(f"{m}: {METHODS[m]}" for m in methods) + "."
    return tag(
        "section",
        tag("h2", f"{features} features, {vocabulary:,} classes"),
        tag("p", caption, class_="caption"),
        tag("div", *tabs, class_="tabs", role="tablist"),
        place(names["peak"], figures[names["peak"]], hidden=False),
        place(names["time"], figures[names["time"]], hidden=True),
        pinned(),
        table(
            ("tokens", *(f"{method}: GB, ms" for method in methods)), lines, numbers=[f"{m}: GB, ms" for m in methods]
        ),
        id=f"head-{vocabulary}",
    )


def _cell(points: Sequence[Point], method: str, tokens: int) -> str:
    found = next((point for point in points if (point.method, point.tokens) == (method, tokens)), None)
    if found is None:
        return ""
    return f"{format_cell(found, 'peak')}, {format_cell(found, 'time')}" if found.status == "ok" else found.status
