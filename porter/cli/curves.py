"""porter curves: log-L2 over the layers for every combination of changes, and the one that is the reference."""

import shlex
import sys
from pathlib import Path

import click

from porter.cli.freed_memory import keep_freed_memory
from porter.cli.options import DTYPES, PLACE


@click.command()
@click.argument("model", required=False)
@click.option(
    "--change",
    "changes",
    multiple=True,
    metavar="[NAME:] AXIS=VALUE",
    help="A change to combine with the others; up to six.  [default: what ports of such a model got wrong]",
)
@click.option("--size", help="Size of a family, or the path of its YAML.")
@click.option("--weights", help="As in porter build.")
@click.option("--set", "overrides", multiple=True, metavar="AXIS=VALUE", help="Change the port in every curve.")
@click.option("--dtype", type=DTYPES, help="Dtype of both sides.  [default: bfloat16]")
@click.option("--device", help="cpu, cuda, or auto.  [default: auto]")
@click.option("--prompt", help="Text, or the path of a text file.")
@click.option("--tokens", type=int, help="Cut the prompt to so many tokens.")
@click.option("--out", type=PLACE, default=Path("diff_reports"), show_default=True, help="Folder of the page.")
@click.option("--json", "json_path", metavar="FILE", help="Write the numbers there; - prints them alone on stdout.")
@click.pass_context
def curves(
    ctx: click.Context, /, model: str | None, changes: tuple[str, ...], out: Path, json_path: str | None,
    **given: object,
) -> None:  # fmt: skip
    """Draw what each combination of changes does to a model, layer by layer.

    MODEL is what porter build takes; without it, the build just made. Every subset of the changes is run beside the
    reference; the one that is bit-equal to it is marked. Exits with 0 when there is one, 1 when none is.
    """
    from porter.reports.write import check_writable, write_file

    to_file = Path(json_path) if json_path and json_path != "-" else None
    check_writable(out, json_path=to_file)
    keep_freed_memory()
    from porter.cli.curves_views import print_curves
    from porter.cli.progress import stage_progress
    from porter.explanation.curves import parse_change, trace_curves
    from porter.reports.curves_html import curves_to_html, curves_to_json

    with stage_progress(quiet=json_path == "-") as progress:
        found = trace_curves(
            model, changes=[parse_change(text) for text in changes], progress=progress,
            command=shlex.join(["porter", *sys.argv[1:]]), **given,  # type: ignore[arg-type]
        )  # fmt: skip
    if json_path == "-":
        click.echo(curves_to_json(found), nl=False)
    else:
        page = out / f"{found.name}-curves.html"
        write_file(page, curves_to_html(found).encode())
        if to_file:
            write_file(to_file, curves_to_json(found).encode())
        print_curves(found, page)
    ctx.exit(0 if found.winners else 1)
