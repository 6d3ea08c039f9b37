"""The curves of porter curves as one HTML page that opens offline, and as JSON."""

import json
import math
from string import Template
from typing import Any

from porter.explanation.curves import Curve, Curves
from porter.reports.curves_plot import curves_figure, heights
from porter.reports.markup import Html, definitions, join, table, tag
from porter.reports.page import figures_json, icon, pinned, place, plotly_script, template

SCHEMA = "porter.curves/1"
HOW = (
    "Each line is one combination of the changes below, run on its own hidden states in plain torch beside the "
    "reference. The shaded band is what rounding alone costs the reference: between its distance from float64 and √2 "
    "of that. A combination that is the reference is bit-equal to it after every layer, whatever the others look like."
)


def curves_to_html(curves: Curves) -> str:
    """The whole page, which asks for nothing from anywhere."""
    figure = curves_figure(curves)
    found = bool(curves.winners)
    sections = [
        tag("section", tag("h2", "Layer by layer"), tag("p", HOW, class_="caption"),
            place("curves", figure, hidden=False, label="A curve for every combination"), pinned(), id="layers"),
        tag("section", tag("h2", "Combinations"), _table(curves), id="combinations"),
        tag("section", tag("h2", "Run"), definitions([
            ("model", curves.name), ("dtype", curves.dtype), ("prompt", f"{curves.prompt}, {curves.tokens} tokens"),
            *((change.label, change.override) for change in curves.changes), ("command", curves.command),
        ]), id="run"),
    ]  # fmt: skip
    return Template(template("bench.html")).substitute(
        title=tag("title", f"porter curves, {curves.name}"),
        icon=icon("2f8f5b" if found else "c98a00"),
        style=template("report.css"),
        script=template("report.js"),
        plotly=plotly_script(),
        figures=figures_json({"curves": figure}),
        verdict_class="pass" if found else "warn",
        banner=join([tag("p", f"porter curves · {curves.name} · {curves.dtype}", class_="eyebrow"),
                     tag("h1", sentence(curves))]),
        sections=join(sections),
    )  # fmt: skip


def sentence(curves: Curves) -> str:
    """Which combination is the reference."""
    count, winners = len(curves.curves), [curves.told(curve) for curve in curves.winners]
    if not winners:
        return f"None of {count} combinations is the reference"
    if len(winners) == 1:
        return f"One of {count} combinations is the reference, bit for bit after every layer: {winners[0]}"
    return f"{len(winners)} of {count} combinations are bit-equal to the reference; this prompt cannot tell them apart"


def curves_to_json(curves: Curves) -> str:
    """Every number that the figure draws."""
    document = {
        "schema": SCHEMA, "model": curves.name, "dtype": curves.dtype, "tokens": curves.tokens,
        "changes": [vars(change) for change in curves.changes], "places": curves.places,
        "curves": [{"made": curve.made, "told": curves.told(curve), "l2": list(map(_number, curve.l2)),
                    "bit_equal": curve.is_reference} for curve in curves.curves],
        "floor": list(map(_number, curves.floor)), "size": list(map(_number, curves.size)),
        "winners": [curves.told(curve) for curve in curves.winners], "command": curves.command,
    }  # fmt: skip
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def row(curves: Curves, curve: Curve) -> list[str]:
    """A combination in a table: what is changed, its distance after the last layer, where it first parts."""
    first = next((place for place, value in zip(curves.places, curve.l2, strict=True) if value), None)
    last = curve.l2[-1]
    return [
        curves.told(curve), f"{last:.4g}" if last else "0", f"{last / curves.size[-1]:.1e}" if last else "0",
        "bit-equal" if first is None else first if first == "embed" else f"layer {first}",
    ]  # fmt: skip


HEAD = ("combination", "‖Δ‖₂ at the end", "relative", "parts at")


def _table(curves: Curves) -> Html:
    return table(HEAD, (row(curves, curve) for curve, _ in heights(curves)), numbers=HEAD[1:3])


def _number(value: float) -> Any:
    return value if math.isfinite(value) else None
