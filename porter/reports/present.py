"""Writes a report to its folder and shows it: the terminal table, or the JSON alone."""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from porter.comparison.report import DiffReport
from porter.errors import UsageError
from porter.reports.json_report import to_json
from porter.reports.terminal import render, render_timings
from porter.reports.terminal_tables import render_axes, render_self_check
from porter.reports.write import write_report


def present(
    report: DiffReport,
    out: Path,
    *,
    json_path: str | None,
    html_path: Path | None = None,
    timings: bool,
    axes: bool = False,
) -> Path:
    """The folder of the written report, after it was shown on stdout.

    A report that cannot be written is shown all the same: the minutes it took are not lost.

    Args:
        json_path: a further place for the JSON; "-" prints it alone on stdout.
        html_path: a further place for the page.
        axes: show the table of axes too.

    Raises: UsageError: it cannot be written, and was shown.
    """
    to_stdout = json_path == "-"
    json_file = Path(json_path) if json_path and not to_stdout else None
    start = time.perf_counter()
    try:
        folder = write_report(report, out, json_path=json_file, html_path=html_path)
    except UsageError:
        _show(report, None, as_json=to_stdout, timings=timings, axes=axes)
        raise
    written_s = round(time.perf_counter() - start, 3)
    report = replace(report, timings_s={**report.timings_s, "report": written_s})
    _show(report, folder / "report.html", as_json=to_stdout, timings=timings, axes=axes)
    return folder


def _show(report: DiffReport, page: Path | None, *, as_json: bool, timings: bool, axes: bool) -> None:
    if as_json:
        json.dump(to_json(report), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
        return
    if timings:
        render_timings(report, Console(stderr=True))
    if axes:
        render_axes(report, Console(highlight=False))
    if report.self_check:
        render_self_check(report, Console(highlight=False))
    render(report, Console(highlight=False), page=page)
