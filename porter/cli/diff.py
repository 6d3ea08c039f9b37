"""porter diff: run a port and its reference on the same tokens, say where they part."""

import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path

import click

from porter.cli.freed_memory import keep_freed_memory
from porter.cli.options import PLACE, build_options, report_options, summary_options


@click.command()
@click.argument("model", required=False)
@build_options
@click.option("--port", metavar="PORT", help="The port, where it is not the build: dump:DIR, or module:pkg.mod:fn.")
@click.option("--map", type=PLACE, metavar="FILE", help="Where the nodes of a module are; porter map drafts it.")
@click.option("--reference", default="hf", show_default=True, help="Whom to agree with: hf, or dump:DIR.")
@click.option("--layers", default="all", show_default=True, help="all, first-bad, or a list: 0-3,7.")
@click.option("--prompts", type=PLACE, help="Several prompts: .jsonl, one a line.")
@report_options
@summary_options
@click.option("--fail-on", default="", metavar="LIST", help="Also exit 1 on: warn, exact, missing.")
@click.option(
    "--stage", "stages", default="", metavar="LIST", help="Only exact, semantics, precision, behaviour, gradients."
)
@click.option("--grad", is_flag=True, help="Compare gradients too, which the default stages leave out.")
@click.option("--axes", is_flag=True, help="List the axes that were tried, and where each could have shown.")
@click.option("--golden-cache", type=PLACE, metavar="DIR", help="Keep golden and the reference there for the next run.")
@click.option("--attribution", is_flag=True, help="Say which layers and nodes make the difference at the logits.")
@click.option("--self-check", is_flag=True, help="Put known faults into the port, and exit 1 if one is missed.")
@click.option("--timings", is_flag=True, help="Say where the time went.")
@click.pass_context
def diff(
    ctx: click.Context, /, model: str | None, out: Path, json_path: str | None, html_path: Path | None,
    junit_path: Path | None, github_path: Path | None, fail_on: str, stages: str, axes: bool, timings: bool,
    attribution: bool, **given: object,
) -> None:  # fmt: skip
    """Compare a port with its reference, layer by layer.

    MODEL is what porter build takes; without it, the build just made. Exits with 0 when they agree, 1 when they part,
    and 2 to 5 when the comparison could not be made: 2 usage or spec, 3 unreadable artifact, 4 inconclusive or nothing
    to compare, 5 tokenizer, config or weights against the spec.
    """
    from porter.reports.write import check_writable

    json_file = Path(json_path) if json_path and json_path != "-" else None
    check_writable(out, json_path=json_file, html_path=html_path)
    keep_freed_memory()
    start = time.perf_counter()
    from porter.cli.progress import stage_progress
    from porter.comparison.diff import diff as compare
    from porter.explanation.attribution import attribute_report, check_attribution
    from porter.reports.present import present
    from porter.reports.summaries import write_summaries

    imports_s = round(time.perf_counter() - start, 3)
    if attribution:
        check_attribution(given["port"], str(given["reference"]))
    with stage_progress(quiet=json_path == "-") as progress:
        report = compare(
            model, progress=progress, fail_on=_names(fail_on), stages=_names(stages),
            command=shlex.join(["porter", *sys.argv[1:]]), **given,  # type: ignore[arg-type]
        )  # fmt: skip
        if attribution:
            report = attribute_report(report, model, progress, **given)
    report = replace(report, timings_s={"imports": imports_s, **report.timings_s})
    write_summaries(report, junit_path=junit_path, github_path=github_path)
    present(report, out, json_path=json_path, html_path=html_path, timings=timings, axes=axes)
    ctx.exit(report.exit_code)


def _names(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]
