"""What every page is made of: templates, figures as JSON, the places they are drawn in, an icon."""

import json
from functools import cache
from importlib.resources import files

import plotly.graph_objects as go  # type: ignore[import-untyped]

from porter.reports.markup import Html, tag

ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg'%3E"
    "%3Ccircle cx='8' cy='8' r='7' fill='%23{}'/%3E%3C/svg%3E"
)


def icon(colour: str) -> Html:
    """A dot of a colour, given as six hexadecimal digits."""
    return Html(ICON.format(colour))


@cache
def template(name: str) -> str:
    return (files("porter.reports") / "templates" / name).read_text(encoding="utf-8")


def figures_json(figures: dict[str, go.Figure]) -> str:
    """The figures for a script element; plotly writes < and > as JSON escapes, so that no text can end it."""
    return f"{{{','.join(f'{json.dumps(name)}:{figure.to_json()}' for name, figure in figures.items())}}}"


def place(name: str, figure: go.Figure, *, hidden: bool) -> Html:
    """Where the script draws a figure."""
    style = f"height:{figure.layout.height}px"
    kind = "figure hidden" if hidden else "figure"
    return tag("div", id=name, class_=kind, style=style)


def button(name: str, label: str | Html, *, selected: bool) -> Html:
    """A tab that shows the figure of that name."""
    shown = "true" if selected else "false"
    return tag("button", label, type="button", role="tab", aria_selected=shown, data_shows=name)


def pinned() -> Html:
    """Where what a point says is kept after a click."""
    return tag(
        "p",
        "Click a point to keep what it says here; drag to zoom, double-click to see all again.",
        class_="pinned",
        aria_live="polite",
    )
