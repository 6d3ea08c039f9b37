"""Training benchmarks as a page: for each case tokens a second and peak memory of everybody, and the table."""

from string import Template

import plotly.graph_objects as go  # type: ignore[import-untyped]

from porter.bench.training.cases import TrainCase
from porter.bench.training.results import TrainRow, TrainRun
from porter.reports.canvas import AXIS, INK, blank_figure
from porter.reports.markup import Html, definitions, join, table, tag
from porter.reports.page import button, figures_json, icon, pinned, place, plotly_script, template
from porter.reports.train_table import COLUMNS, cells, sentence

COLOURS = {
    "hf": "#8b96a3",
    "hf+compile": "#56b4e9",
    "liger": "#009e73",
    "porter": "#e0561c",
    "porter-lean": "#cc79a7",
    "porter+compile": "#e69f00",
}
HEIGHT = 380
TITLES = {"speed": "tokens a second", "peak": "peak memory of a step, GB"}


def training_bars(rows: list[TrainRow], what: str) -> go.Figure:
    """Tokens a second ("speed", with the 20th to the 80th percentile) or peak memory ("peak") of each trainer."""
    figure = blank_figure(HEIGHT)
    for row in rows:
        value = row.tokens_per_s if what == "speed" else None if row.peak_bytes is None else row.peak_bytes / 1e9
        shown = row.status == "ok" and value is not None
        figure.add_bar(
            x=[row.trainer], y=[value if shown else 0], name=row.trainer,
            marker={"color": COLOURS.get(row.trainer, INK)}, text=["" if shown else row.status],
            textposition="outside", hovertext=[_hover(row)], hovertemplate="%{hovertext}<extra></extra>",
            error_y=_spread(row) if what == "speed" and shown else None,
        )  # fmt: skip
    figure.update_layout(
        xaxis={**AXIS, "type": "category"}, yaxis={**AXIS, "title": TITLES[what], "rangemode": "tozero"},
        showlegend=False, hovermode="closest", bargap=0.45,
    )  # fmt: skip
    return figure


def _spread(row: TrainRow) -> dict[str, object]:
    assert row.tokens_per_s is not None and row.low is not None and row.high is not None
    ends = {"array": [row.high - row.tokens_per_s], "arrayminus": [row.tokens_per_s - row.low]}
    return {"type": "data", "symmetric": False, "color": INK, "thickness": 1.4, **ends}


def _hover(row: TrainRow) -> str:
    names = zip(COLUMNS[1:], cells(row, [row])[1:], strict=True)
    lines = [f"{name}: {text}" for name, text in names if text and name != "of best peer"]
    return "<br>".join([f"<b>{row.trainer}</b>", *lines])


def training_to_html(run: TrainRun) -> str:
    """The whole page, which asks for nothing from anywhere."""
    figures: dict[str, go.Figure] = {}
    measured = [case for case in run.cases if run.rows_of(case.name)]
    sections = [_section(run, case, number, figures) for number, case in enumerate(measured)]
    when = f"porter bench train · {run.environment['gpu']} · {run.created[:19].replace('T', ' ')} UTC"
    environment = tag("section", tag("h2", "Environment"), definitions(run.environment.items()), id="environment")
    lines = [f"{case.name}: {sentence(run.rows_of(case.name))}" for case in measured]
    return Template(template("bench.html")).substitute(
        title=tag("title", f"porter bench train, {run.environment['gpu']}"),
        icon=icon("2f8f5b"),
        style=template("report.css"),
        script=template("report.js"),
        plotly=plotly_script(),
        figures=figures_json(figures),
        verdict_class="pass",
        banner=join([tag("p", when, class_="eyebrow"), tag("h1", lines[0] if lines else "Nothing was measured")]),
        sections=join([*sections, environment]),
    )


def _section(run: TrainRun, case: TrainCase, number: int, figures: dict[str, go.Figure]) -> Html:
    rows = run.rows_of(case.name)
    names = {what: f"{what}-{number}" for what in TITLES}
    for what, name in names.items():
        figures[name] = training_bars(rows, what)
    tabs = (
        button(names["speed"], "tokens a second", selected=True),
        button(names["peak"], "memory", selected=False),
    )
    return tag(
        "section",
        tag("h2", case.name),
        tag("p", f"{sentence(rows)}.", class_="caption"),
        tag("div", *tabs, class_="tabs", role="tablist"),
        place(names["speed"], figures[names["speed"]], hidden=False),
        place(names["peak"], figures[names["peak"]], hidden=True),
        pinned(),
        table(COLUMNS, [cells(row, rows) for row in rows], numbers=COLUMNS[1:-1]),
        id=f"case-{number}",
    )
