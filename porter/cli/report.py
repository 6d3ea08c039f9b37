"""porter report: draw written reports again, as a page, a picture, JUnit or a GitHub summary."""

from pathlib import Path

import click

from porter.cli.options import PLACE, summary_options


@click.command()
@click.argument("reports", metavar="REPORT...", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--html", "html_path", type=PLACE, metavar="FILE", help="Write the page there; of several, one page.")
@click.option(
    "--png", "png_path", type=PLACE, metavar="FILE", help="Write a picture there; Chromium or Chrome draws it."
)
@summary_options
def report(
    reports: tuple[Path, ...],
    html_path: Path | None,
    png_path: Path | None,
    junit_path: Path | None,
    github_path: Path | None,
) -> None:
    """Draw reports that porter diff wrote, without any model.

    REPORT is a report.json, or the folder of one. Of several, --html and --png have their curves in one picture.
    Without an option, the verdicts are printed. Exits 0 once all is written, whatever they are; porter recheck judges.
    """
    from porter.reports.poster import to_poster
    from porter.reports.read_json import read_report
    from porter.reports.summaries import write_summaries
    from porter.reports.write import write_file

    found = [read_report(path / "report.json" if path.is_dir() else path) for path in reports]
    for each in found:
        click.echo(each.sentence)
        write_summaries(each, junit_path=junit_path if len(found) == 1 else None, github_path=github_path)
    if junit_path is not None and len(found) > 1:
        raise click.UsageError("--junit takes one REPORT: name a file for each")
    if html_path is not None:
        from porter.reports.html import to_html

        page = to_html(found[0]) if len(found) == 1 else to_poster(found, interactive=True)
        write_file(html_path, page.encode("utf-8", "replace"))
    if png_path is not None:
        from porter.reports.photograph import photograph

        write_file(png_path, photograph(to_poster(found, interactive=False)))
