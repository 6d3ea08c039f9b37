"""What every page is made of: templates, figures as JSON, the places they are drawn in, an icon."""

import gzip
import json
from base64 import b64encode
from functools import cache
from importlib.resources import files
from string import Template

import plotly.graph_objects as go  # type: ignore[import-untyped]

from porter.reports.markup import Html, join, tag

ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg'%3E"
    "%3Ccircle cx='8' cy='8' r='7' fill='%23{}'/%3E%3C/svg%3E"
)

HINT = "Point, click, or use the arrow keys; drag to zoom, double-click to go back."


def icon(colour: str) -> Html:
    """A dot of a colour, given as six hexadecimal digits."""
    return Html(ICON.format(colour))


@cache
def template(name: str) -> str:
    return (files("porter.reports") / "templates" / name).read_text(encoding="utf-8")


@cache
def plotly_source() -> str:
    """plotly.js without what no report draws (maps, 3D): 1.5 MB, not 4.8."""
    return (files("porter.reports") / "vendor" / "plotly-cartesian.min.js").read_text(encoding="utf-8")


@cache
def plotly_script() -> str:
    """plotly.js packed, with what unpacks it: 0.7 MB inside each page, not 1.5."""
    packed = gzip.compress(plotly_source().encode(), compresslevel=9, mtime=0)
    return Template(template("plotly.js")).substitute(packed=b64encode(packed).decode())


def figures_json(figures: dict[str, go.Figure]) -> str:
    """The figures for a script element; plotly writes < and > as JSON escapes, so that no text can end it."""
    return f"{{{','.join(f'{json.dumps(name)}:{figure.to_json()}' for name, figure in figures.items())}}}"


def place(name: str, figure: go.Figure, *, hidden: bool, label: str = "A picture", node: str = "") -> Html:
    """Where the script draws a figure; the arrow keys move over its points once it has the focus.

    Args:
        node: the one it is a picture of, which is shown when that node is chosen.
    """
    return tag(
        "div",
        id=name,
        class_="figure hidden" if hidden else "figure",
        style=f"height:{figure.layout.height}px",
        tabindex="0",
        role="application",
        aria_label=f"{label}. Arrow keys move over its points, Enter goes to a node.",
        **({"data_of": node} if node else {}),
    )


def button(name: str, label: str | Html, *, selected: bool) -> Html:
    """A tab that shows the figure of that name."""
    shown, index = ("true", "0") if selected else ("false", "-1")
    return tag(
        "button", label, type="button", role="tab", aria_selected=shown, aria_controls=name, data_shows=name,
        tabindex=index,
    )  # fmt: skip


def pinned(said: str = "") -> Html:
    """Where what a point says is kept, and how to get it.

    Args:
        said: what is kept there at first, in the form of a hover text.
    """
    lines = join([" ", *(tag("span", Html(line)) for line in said.split("<br>"))]) if said else Html("")
    return join([tag("div", lines, class_="pinned", aria_live="polite"), tag("p", HINT, class_="hint")])
