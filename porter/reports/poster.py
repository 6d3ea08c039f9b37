"""One picture of one report or of several: what `porter report --png` photographs, and the page of several reports."""

from collections.abc import Sequence
from string import Template

import plotly.graph_objects as go  # type: ignore[import-untyped]

from porter.comparison.report import DiffReport, Stage
from porter.reports import sections
from porter.reports.heatmaps import node_heatmap
from porter.reports.html import ICON_COLOURS
from porter.reports.markup import Html, join, table, tag
from porter.reports.overlay import EMPTY, overlay
from porter.reports.page import figures_json, icon, pinned, place, plotly_script, template
from porter.reports.plots import layer_curves
from porter.reports.summary import coverage, format_ratio, nodes_of, peak, worst_status

CURVES = "The difference of port and reference after each layer, and below it the worst ρ of each layer"


def to_poster(reports: Sequence[DiffReport], *, interactive: bool) -> str:
    """The page: of one report its banner, stages, curve and worst node map; of several a table and their curves in one.

    Args:
        interactive: with the lines that say what a point is; a picture has no use for them.
    """
    figures: dict[str, go.Figure] = {}
    parts = _one(reports[0], figures) if len(reports) == 1 else _several(reports, figures)
    worst = worst_status(report.verdict for report in reports)
    if interactive:
        parts.append(pinned())
    return Template(template("bench.html")).substitute(
        title=tag("title", f"{worst} {', '.join(dict.fromkeys(report.name for report in reports))}"),
        icon=icon(ICON_COLOURS[worst]),
        style=template("report.css"),
        script=template("report.js"),
        plotly=plotly_script(),
        figures=figures_json(figures),
        verdict_class=worst.lower(),
        banner=sections.banner(reports[0]) if len(reports) == 1 else _banner(reports),
        sections=join(parts),
    )


def _one(report: DiffReport, figures: dict[str, go.Figure]) -> list[Html]:
    parts = [tag("section", sections.stage_table(report), tag("p", coverage(report), class_="caption"), id="stages")]
    if any(node.propagated for node in report.nodes):
        figures["curves"] = layer_curves(report)
        parts.append(tag("section", tag("h2", "Layer by layer"), place("curves", figures["curves"], hidden=False, label=CURVES)))  # fmt: skip  # noqa: E501
    stage = _to_show(report)
    if stage is not None:
        figures["nodes-0"] = node_heatmap(report, stage)
        head = tag("h2", f"Node by node, {stage.name} {stage.dtype}")
        parts.append(tag("section", head, place("nodes-0", figures["nodes-0"], hidden=False, label="ρ of every node"), id="nodes"))  # fmt: skip  # noqa: E501
    return parts


def _to_show(report: DiffReport) -> Stage | None:
    """The stage with nodes that failed, else the last of those that have ρ."""
    drawn = [stage for stage in report.stages if any(node.local for node in nodes_of(report, stage.name, stage.dtype))]
    return next((stage for stage in drawn if stage.status == "FAIL"), drawn[-1] if drawn else None)


def _banner(reports: Sequence[DiffReport]) -> Html:
    counts = {verdict: sum(report.verdict == verdict for report in reports) for verdict in ICON_COLOURS}
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    return join([tag("p", "porter report", class_="eyebrow"), tag("h1", f"{len(reports)} reports: {said}")])


def _several(reports: Sequence[DiffReport], figures: dict[str, go.Figure]) -> list[Html]:
    head = ("report", "verdict", "dtype", "port", "reference", "worst ρ", "says")
    rows = [_row(report) for report in reports]
    parts = [tag("section", tag("h2", "Reports"), table(head, rows, numbers=("worst ρ",)), id="stages")]
    drawn = overlay(reports)
    if not drawn.data:
        return [*parts, sections.nothing(EMPTY)]
    figures["curves"] = drawn
    caption = tag("p", "A colour a report, a dash a dtype. Above: each side on its own hidden states. Below: the worst "
                  "ρ of each layer, all sides fed alike.", class_="caption")  # fmt: skip
    parts.append(
        tag("section", tag("h2", "Layer by layer"), caption, place("curves", drawn, hidden=False, label=CURVES))
    )
    return parts


def _row(report: DiffReport) -> Sequence[str | Html]:
    worst = [found for stage in report.stages if (found := peak(nodes_of(report, stage.name, stage.dtype), "rho"))]
    largest = format_ratio(max(found.value for found in worst)) if worst else ""
    said = report.sentence.removeprefix(report.verdict).lstrip(": ")
    called = " ".join((report.name, *report.overrides))
    sides = (report.port.what, report.reference.what)
    return called, sections.badge(report.verdict), report.port.dtype, *sides, largest, said
