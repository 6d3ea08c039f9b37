"""The elements of a node: error against magnitude, and how often each size of error is met, of both sides."""

import math

import plotly.graph_objects as go  # type: ignore[import-untyped]

from porter.comparison.report import DiffReport, NodeDiff
from porter.comparison.sample import Sample
from porter.reports.canvas import AXIS, blank_figure
from porter.reports.markup import Html, join, tag
from porter.reports.page import button, place
from porter.reports.sections import badge, nothing

PORT, REFERENCE = "#cf4a2c", "#5f97c0"
HEIGHT = 520
_NOTHING = "No node has elements to draw: none was compared, or the report is of an earlier porter."


def sample_panel(report: DiffReport, figures: dict[str, go.Figure]) -> Html:
    """A picture for each node that has a sample, the first that fails shown."""
    drawn = [node for node in report.nodes if node.sample is not None]
    if not drawn:
        return nothing(_NOTHING)
    shown = next((node for node in drawn if node.status == "FAIL"), drawn[0])
    buttons, places = [], []
    for index, node in enumerate(drawn):
        name, key = f"elements-{index}", f"{node.stage} {node.dtype} {node.name}"
        figures[name] = element_figure(node)
        label = join([f"{node.name} {node.dtype} ", badge(node.status, small=True)])
        buttons.append(button(name, label, selected=node is shown))
        said = f"Error against magnitude of the elements of {node.name}, {node.stage} {node.dtype}, and a histogram"
        places.append(place(name, figures[name], hidden=node is not shown, label=said, node=key))
    return join([tag("div", *buttons, class_="tabs", role="tablist"), *places])


def element_figure(node: NodeDiff) -> go.Figure:
    """Above |x − golden| over |golden|, element by element; below the share of elements with an error of each size."""
    found = node.sample
    assert found is not None
    figure = blank_figure(HEIGHT)
    least = _least(found)
    for name, errors, colour, symbol in (("reference", found.reference, REFERENCE, "circle"),
                                         ("port", found.port, PORT, "x")):  # fmt: skip
        figure.add_scatter(
            x=[max(value, least[0]) for value in found.golden], y=[max(value, least[1]) for value in errors],
            mode="markers", name=name, legendgroup=name,
            hovertemplate="|golden| %{x:.3g}<br>off by %{y:.3g}<extra>" + name + "</extra>",
            marker={"color": colour, "size": 5, "symbol": symbol, "opacity": 0.75},
        )  # fmt: skip
    _add_histograms(figure, found)
    decades = {"type": "log", "exponentformat": "e", "tickformat": ".0e", "nticks": 8}
    figure.update_layout(
        meta={"kind": "elements"},
        xaxis={**AXIS, **decades, "title": "|golden|", "domain": [0, 1], "anchor": "y"},
        yaxis={**AXIS, **decades, "title": "|side − golden|", "domain": [0.5, 1]},
        xaxis2={**AXIS, "title": "log₁₀ of the error over golden’s rms", "anchor": "y2", "domain": [0, 1]},
        yaxis2={**AXIS, "title": "elements, %", "domain": [0, 0.34], "rangemode": "tozero"},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}, hovermode="closest", bargap=0,
        barmode="overlay",
    )  # fmt: skip
    return figure


def _least(found: Sample) -> tuple[float, float]:
    """What stands for zero on each axis: half the smallest that is none."""

    def least(values: tuple[float, ...]) -> float:
        return min((each for each in values if each > 0 and math.isfinite(each)), default=1.0) / 2

    return least(found.golden), least((*found.port, *found.reference))


def _add_histograms(figure: go.Figure, found: Sample) -> None:
    step, total = found.edges[1] - found.edges[0], max(1, sum(found.reference_counts))
    counted = (("reference", found.reference_counts, REFERENCE), ("port", found.port_counts, PORT))
    used = [i for i in range(len(found.edges) - 1) if any(counts[i] for _, counts, _ in counted)]
    bins = range(used[0], used[-1] + 1) if used else range(0)
    for name, counts, colour in counted:
        figure.add_bar(
            x=[found.edges[i] + step / 2 for i in bins], y=[round(100 * counts[i] / total, 3) for i in bins],
            width=step, name=name, legendgroup=name, showlegend=False, xaxis="x2", yaxis="y2", opacity=0.55,
            hovertemplate="10^%{x:.2f} of rms: %{y:.3g} %<extra>" + name + "</extra>",
            marker={"color": colour, "line": {"width": 0}},
        )  # fmt: skip
