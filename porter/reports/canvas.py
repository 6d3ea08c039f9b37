"""What all pictures of reports have in common: ink, axes, and a figure without a background.

Backgrounds are transparent and the ink is grey enough for a light page and a dark one; a page may set layout.font.color
to its own. Status is never colour alone: nodes that did not pass carry their ρ or a sign.
"""

from collections.abc import Sequence

import plotly.graph_objects as go  # type: ignore[import-untyped]

INK, GRID, UNCOMPARED = "#7d8794", "rgba(125,135,148,0.22)", "rgba(125,135,148,0.30)"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
NUMBERS_FIT = 26  # layers, up to which a page of full width names each of them
AXIS = {"gridcolor": GRID, "zeroline": False, "automargin": True, "tickfont": {"size": 11}}


def layer_axis(places: Sequence[str]) -> dict[str, object]:
    """An axis over embedding, layers and what follows; a deep model has its layers named in steps of ten."""
    tens = range(10, len(places) - 4, 10)  # none so close to an end that names overlap
    named = places if len(places) <= NUMBERS_FIT + 2 else [str(layer) for layer in tens]
    ticks = [place for place in places if place in named or not place.isdecimal()]
    grid = {"type": "category", "categoryarray": places, "range": [-0.5, len(places) - 0.5]}
    return {**grid, "title": "layer", "tickvals": ticks, "tickangle": 0}


def blank_figure(height: int) -> go.Figure:
    """A figure without a background, in ink that can be read on a light page and on a dark one."""
    clear = "rgba(0,0,0,0)"
    return go.Figure(
        layout={
            "template": "none",
            "height": height,
            "paper_bgcolor": clear,
            "plot_bgcolor": clear,
            "font": {"family": FONT, "size": 12, "color": INK},
            "margin": {"l": 60, "r": 20, "t": 12, "b": 46},
            "hoverlabel": {
                "align": "left",
                "bgcolor": "#1f2933",
                "bordercolor": "#4a5766",
                "font": {"color": "#f2f4f6"},
            },
        }
    )
