"""porter explain: the axis of the port's spec that is wrong, its right value, and the patch."""

from pathlib import Path

import click

from porter.cli.freed_memory import keep_freed_memory
from porter.cli.options import PLACE, build_options


@click.command()
@click.argument("model", required=False)
@build_options
@click.option("--port", metavar="PORT", help="The port, where it is not the build: dump:DIR, or module:pkg.mod:fn.")
@click.option("--map", type=PLACE, metavar="FILE", help="Where the nodes of a module are; porter map drafts it.")
@click.option("--prompts", type=PLACE, help="A text file, or .jsonl with a prompt a line; the longest is taken.")
@click.option("--out", type=PLACE, default=Path("diff_reports"), show_default=True, help="Folder of the reports.")
@click.option("--json", "json_path", metavar="FILE", help="Write the result there too; - prints it alone on stdout.")
@click.pass_context
def explain(ctx: click.Context, /, model: str | None, out: Path, json_path: str | None, **given: object) -> None:
    """Name the axis that makes a port differ from its reference.

    MODEL is what porter build takes; without it, the build just made. The newest report of the port is explained; if
    none is newer than the port, porter diff runs first. Other values of the axes that act at the first failing node are
    tried there, until it and what follows are at the floor. Of a module or a dump, the axes and tensors are named with
    which the reference's own spec computes what the port did. explain.json is written beside the report, and the
    report's page gets a card. Exits with 0 when all is explained or nothing differs, 1 when a part of it or nothing is.
    """
    from porter.reports.write import check_writable, write_file

    to_file = Path(json_path) if json_path and json_path != "-" else None
    check_writable(out, json_path=to_file)
    keep_freed_memory()
    from porter.cli.explain_views import print_explanation
    from porter.cli.explained_report import add_explanation, report_to_explain
    from porter.cli.progress import stage_progress
    from porter.explanation.explain import explain as find
    from porter.reports.explain_json import explain_to_text

    with stage_progress(quiet=json_path == "-") as progress:
        held = report_to_explain(model, out, given, progress)
        found = find(model, progress=progress, **given).record  # type: ignore[arg-type]
    page = add_explanation(held, found) if held else None
    text = explain_to_text(found, str(page.with_name("report.json")) if page else None)
    if json_path == "-":
        click.echo(text, nl=False)
    else:
        print_explanation(found, page)
    if to_file:
        write_file(to_file, text.encode())
    ctx.exit(found.exit_code)
