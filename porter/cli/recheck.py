"""porter recheck: judge a written report by other thresholds, without any model."""

import json
import sys
from pathlib import Path

import click

from porter.cli.options import PLACE


@click.command()
@click.argument("report", type=click.Path(path_type=Path))
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    metavar="NAME=VALUE",
    help="bf16.rho.fail=4, f32.rho.warn=2, bf16.rho_tok.fail=5; may be given several times.",
)
@click.option("--json", "json_path", metavar="PATH", help="Write the JSON there; - prints it alone on stdout.")
@click.option("--html", "html_path", type=PLACE, help="Write the page there.")
@click.option("--axes", is_flag=True, help="List the axes that were tried, and where each could have shown.")
@click.pass_context
def recheck(
    ctx: click.Context,
    /,
    report: Path,
    thresholds: tuple[str, ...],
    json_path: str | None,
    html_path: Path | None,
    axes: bool,
) -> None:
    """Judge a report's numbers by other thresholds, without any model.

    REPORT is a report.json; its own thresholds hold where none is given. Exits as porter diff does: 0 when they agree,
    1 when they part, 4 when nothing can be judged; 2 for a threshold that the report does not have, 3 for a file that
    is no report.
    """
    from rich.console import Console

    from porter.reports.json_report import to_json, to_text
    from porter.reports.read_json import read_report
    from porter.reports.recheck import recheck as judge_again
    from porter.reports.terminal import render
    from porter.reports.terminal_tables import render_axes
    from porter.reports.write import check_distinct, write_file

    check_distinct(json_path, html_path, report)
    found = judge_again(read_report(report), thresholds)
    if html_path is not None:
        from porter.reports.html import to_html

        write_file(html_path, to_html(found).encode("utf-8", "replace"))
    if json_path == "-":
        json.dump(to_json(found), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        if json_path is not None:
            write_file(Path(json_path), to_text(found).encode("utf-8", "backslashreplace"))
        if axes:
            render_axes(found, Console(highlight=False))
        render(found, Console(highlight=False), page=html_path)
    ctx.exit(found.exit_code)
