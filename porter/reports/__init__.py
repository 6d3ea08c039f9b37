"""Reports of a diff: JSON, one offline HTML page, and the terminal."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from porter.reports.json_report import to_json
    from porter.reports.read_json import from_json
    from porter.reports.terminal import render
    from porter.reports.write import write_report

__all__ = ["from_json", "render", "to_json", "write_report"]

HOMES = {
    "from_json": "porter.reports.read_json",
    "render": "porter.reports.terminal",
    "to_json": "porter.reports.json_report",
    "write_report": "porter.reports.write",
}


def __getattr__(name: str) -> object:
    """Imports what is asked for: plotly alone takes 0.1 s, and no command but diff writes a page."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(HOMES[name]), name)
