"""A DiffReport as one HTML page that opens offline: style, script, plotly and pictures are all inside."""

from collections.abc import Callable, Sequence
from string import Template

import plotly.graph_objects as go  # type: ignore[import-untyped]

from porter.comparison.report import DiffReport, Stage, Verdict
from porter.reports import sections
from porter.reports.attribution_panel import attribution_panel
from porter.reports.behaviour_table import behaviour_table
from porter.reports.explain_card import explain_panel
from porter.reports.heatmaps import node_heatmap, token_heatmap
from porter.reports.hover import describe_local, describe_token
from porter.reports.logits_panel import logits_panel
from porter.reports.markup import Html, join, tag
from porter.reports.page import button, figures_json, icon, pinned, place, plotly_script, template
from porter.reports.plots import layer_curves
from porter.reports.sample_panel import sample_panel
from porter.reports.self_check_table import self_check_table
from porter.reports.summary import coverage, nodes_of, peak, worst_of

ICON_COLOURS: dict[Verdict, str] = {
    "PASS": "2f8f5b",
    "WARN": "c98a00",
    "FAIL": "cf3f2c",
    "INCONCLUSIVE": "8a63c9",
    "NOT_COMPARED": "7d8794",
}


def to_html(report: DiffReport) -> str:
    """The whole page, which asks for nothing from anywhere."""
    figures: dict[str, go.Figure] = {}
    curves = _curves(report, figures)
    node_maps = _tabs(report, figures, "nodes", _stages_with_nodes(report), node_heatmap)
    token_maps = _tabs(report, figures, "tokens", _stages_with_tokens(report), token_heatmap)
    attribution, elements = attribution_panel(report, figures), sample_panel(report, figures)
    logits = logits_panel(report, figures)
    return Template(template("report.html")).substitute(
        title=tag("title", f"{report.verdict} {report.name}"),
        icon=icon(ICON_COLOURS[report.verdict]),
        style=template("report.css"),
        script=template("report.js"),
        plotly=plotly_script(),
        figures=figures_json(figures),
        verdict_class=report.verdict.lower(),
        banner=sections.banner(report),
        coverage=tag("p", coverage(report, None), class_="coverage"),
        stages=sections.stage_table(report),
        explanation=explain_panel(report),
        curves=curves,
        attribution=attribution,
        elements=elements,
        node_maps=node_maps,
        token_maps=token_maps,
        offenders=sections.offender_table(report),
        logits=logits,
        behaviour=behaviour_table(report),
        preflight=sections.preflight_table(report),
        axes=sections.axes_table(report),
        self_check=self_check_table(report),
        environment=sections.environment(report),
    )


def _stages_with_nodes(report: DiffReport) -> list[Stage]:
    return [stage for stage in report.stages if any(nodes_of(report, stage.name, stage.dtype))]


def _stages_with_tokens(report: DiffReport) -> list[Stage]:
    return [
        stage
        for stage in report.stages
        if any(node.local and node.node == "resid_post" for node in nodes_of(report, stage.name, stage.dtype))
    ]


def _curves(report: DiffReport, figures: dict[str, go.Figure]) -> Html:
    if not any(node.propagated for node in report.nodes):
        return sections.nothing("No node was compared on its own hidden states.")
    figures["curves"] = layer_curves(report)
    label = "The difference of port and reference after each layer, and below it the worst ρ of each layer"
    return join([place("curves", figures["curves"], hidden=False, label=label), pinned()])


def _tabs(
    report: DiffReport,
    figures: dict[str, go.Figure],
    group: str,
    stages: Sequence[Stage],
    draw: Callable[[DiffReport, Stage], go.Figure],
) -> Html:
    """A figure for each stage, one of them shown: the first that did not pass, else the last."""
    if not stages:
        return sections.nothing("No node was compared.")
    shown = next((stage for stage in stages if stage.status == "FAIL"), stages[-1])
    shown = shown if shown.status != "PASS" else next((each for each in stages if each.status != "PASS"), shown)
    buttons, places = [], []
    for index, stage in enumerate(stages):
        name = f"{group}-{index}"
        figures[name] = draw(report, stage)
        label = join([f"{stage.name} {stage.dtype} ", sections.badge(stage.status, small=True)])
        buttons.append(button(name, label, selected=stage is shown))
        said = f"ρ of the {group} of every layer, {stage.name} {stage.dtype}, {stage.status}"
        places.append(place(name, figures[name], hidden=stage is not shown, label=said))
    tabs = tag("div", *buttons, class_="tabs", role="tablist")
    return join([tabs, *places, pinned(_worst_said(report, shown, group))])


def _worst_said(report: DiffReport, stage: Stage, group: str) -> str:
    """What a tab's picture says at its worst point, before anyone points at one."""
    if group == "nodes":
        first = worst_of(report, stage)
        return describe_local(report, first) if first else ""
    drawn = (node for node in nodes_of(report, stage.name, stage.dtype) if node.node == "resid_post")
    largest = peak(drawn, "rho_tok")
    return describe_token(report, largest.node) if largest else ""
