"""A benchmark as one HTML page that opens offline: style, script, plotly and pictures are all inside."""

from collections.abc import Iterator
from string import Template

import plotly.graph_objects as go  # type: ignore[import-untyped]

from porter.bench.ranking import longer_on_the_host, regressions
from porter.bench.results import BenchRun, Metric
from porter.reports import bench_plots
from porter.reports.bench_rows import (
    Row,
    format_megabytes,
    format_ms,
    format_peer,
    format_ratio,
    ops,
    rows,
    tally,
    tone,
    unranked,
)
from porter.reports.markup import Html, definitions, join, table, tag
from porter.reports.page import button, figures_json, icon, pinned, place, plotly_script, template

HEAD = (
    "forward + backward",
    "porter ms",
    "of floor",
    "best peer ms",
    "ratio",
    "forward ratio",
    "host ratio",
    "porter MB",
    "best peer MB",
)
CLASSES = {"ahead": "pass", "level": "", "behind": "fail"}
HOW = (
    "Each dot is one provider on one shape; whiskers reach from the 20th to the 80th percentile. A time stands over "
    "what the card allows: the bytes that the op must move at the bandwidth measured for that size in this run, or its "
    "flops at the measured rate. 1 is the floor, so left is better. Only providers whose outputs and gradients are "
    "right are drawn. A ratio is the best right peer over porter: above 1, porter is faster."
)


def bench_to_html(run: BenchRun) -> str:
    """The whole page, which asks for nothing from anywhere."""
    figures: dict[str, go.Figure] = {}
    sections = [*_op_sections(run, figures), *_roofline_section(run, figures), *_rest(run)]
    worse = regressions(run)
    return Template(template("bench.html")).substitute(
        title=tag("title", f"porter bench, {run.environment['gpu']}"),
        icon=icon("c98a00" if worse else "2f8f5b"),
        style=template("report.css"),
        script=template("report.js"),
        plotly=plotly_script(),
        figures=figures_json(figures),
        verdict_class="warn" if worse else "pass",
        banner=_banner(run, worse),
        sections=join(sections),
    )


def _banner(run: BenchRun, worse: list[str]) -> Html:
    when = f"porter bench · {run.environment['gpu']} · {run.created.replace('T', ' ').removesuffix('+00:00')} UTC"
    parts = [tag("p", when, class_="eyebrow"), tag("h1", _sentence(run))]
    if worse:
        lines = (tag("li", line) for line in worse)
        summary = tag("summary", f"regressions: {len(worse)}")
        parts.append(tag("details", summary, tag("ul", *lines)))
    else:
        parts.append(tag("p", "Nowhere is porter worse than eager, in device time or in memory.", class_="coverage"))
    if longer := longer_on_the_host(run):
        summary = tag("summary", f"porter holds the host longer than eager in {len(longer)} small cases")
        parts.append(tag("details", summary, tag("ul", *(tag("li", line) for line in longer))))
    parts += [tag("p", note, class_="note") for note in run.notes]
    return join(parts)


def _sentence(run: BenchRun) -> str:
    counts = tally(run)
    if not any(counts.values()):
        return "Nothing was timed; errors alone"
    return (
        f"Forward and backward, beside the fastest right peer at each of {sum(counts.values())} shapes: porter is "
        f"ahead at {counts['ahead']}, level at {counts['level']}, behind at {counts['behind']}"
    )


def _op_sections(run: BenchRun, figures: dict[str, go.Figure]) -> Iterator[Html]:
    for index, op in enumerate(ops(run)):
        parts = [tag("h2", op)]
        if index == 0 and run.floors:
            parts.append(tag("p", HOW, class_="caption"))
        metrics: list[Metric] = ["forward_backward_ms", "forward_ms", "host_ms", "peak_bytes"]
        drawn = [metric for metric in metrics if bench_plots.has_points(run, op, metric)]
        buttons, places = [], []
        for metric in drawn:
            name = f"{op}-{metric}"
            figures[name] = bench_plots.dots(run, op, metric)
            buttons.append(button(name, bench_plots.TABS[metric], selected=metric == drawn[0]))
            places.append(place(name, figures[name], hidden=metric != drawn[0]))
        if drawn:
            parts += [tag("div", *buttons, class_="tabs", role="tablist"), *places, pinned()]
        parts.append(_table(run, op) if drawn else _errors(run, op))
        yield tag("section", *parts, id=op)


def _table(run: BenchRun, op: str) -> Html:
    return table(HEAD, (_cells(row) for row in rows(run, op)), numbers=HEAD[1:])


def _cells(row: Row) -> list[str | Html]:
    return [
        row.label,
        format_ms(row.both_ms) or row.status,
        "" if row.share is None else f"{row.share:.0%}",
        format_peer(row.peer),
        *(_ratio(row.ratios.get(metric)) for metric in _RATIOS),
        format_megabytes(row.peak_bytes),
        format_peer(row.peer_bytes),
    ]


_RATIOS: tuple[Metric, ...] = ("forward_backward_ms", "forward_ms", "host_ms")


def _ratio(ratio: float | None) -> str | Html:
    if ratio is None:
        return ""
    kind = CLASSES[tone(ratio)]
    return tag("span", format_ratio(ratio), class_=f"badge {kind}") if kind else format_ratio(ratio)


def _errors(run: BenchRun, op: str) -> Html:
    """Who is how far off, where nothing could be timed."""
    names = {case.name for case in run.cases if case.op == op}
    found = [record for record in run.records if record.case in names and record.metric == "error" and record.value]
    lines = ([record.case, record.provider, f"{record.value:.1e}", record.note] for record in found)
    return table(("case", "provider", "worst relative error", "at"), lines, numbers=("worst relative error",))


def _roofline_section(run: BenchRun, figures: dict[str, go.Figure]) -> Iterator[Html]:
    if not run.rates:
        return
    figures["roofline"] = bench_plots.roofline(run)
    products = [rate for rate in run.rates if rate.kind == "matmul"]
    rates = ", ".join(f"{rate.per_second / 1e12:,.0f} TFLOP/s for {rate.size / 1e12:.1f} TFLOP" for rate in products)
    caption = (
        f"What plain traffic reached in the same run, flushed and timed in the same way. Products in bf16: {rates}."
    )
    yield tag(
        "section",
        tag("h2", "The card"),
        tag("p", caption, class_="caption"),
        place("roofline", figures["roofline"], hidden=False),
        pinned(),
        id="card",
    )


def _rest(run: BenchRun) -> Iterator[Html]:
    lines = [[record.provider, "" if record.status == "missing" else record.case, record.status, record.note]
             for record in unranked(run)]  # fmt: skip
    if lines:
        yield tag("section", tag("h2", "Not ranked"), table(("provider", "case", "", "why"), lines), id="unranked")
    yield tag("section", tag("h2", "Environment"), definitions(run.environment.items()), id="environment")
