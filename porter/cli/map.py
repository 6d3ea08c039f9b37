"""porter map: draft the map file of a torch module of one's own."""

from pathlib import Path

import click

from porter.cli.options import PLACE


@click.command()
@click.argument("module")
@click.argument("model", required=False)
@click.option("--reference", default="hf", show_default=True, help="Whose nodes are looked for: hf.")
@click.option("--size", help="Size of a family, or the path of its YAML.")
@click.option("--weights", help="As in porter build; the module must hold the same.")
@click.option("--device", help="cpu, cuda, or auto.  [default: auto]")
@click.option("--out", type=PLACE, metavar="FILE", help="Write the map there; it must not exist.  [default: stdout]")
def map(module: str, model: str | None, out: Path | None, **given: str) -> None:
    """Draft a map file: where the reference's nodes are in a module.

    MODULE is pkg.mod:fn, found from the working directory; fn() or fn(folder) gives the torch module. MODEL is what
    porter build takes; without it, the build just made. Weights and activations of one prompt are compared by value;
    a layout that is not the reference's is proposed as a line where the values fit, and what was not found is listed.
    """
    from porter.errors import UsageError

    if out is not None and out.exists():
        raise UsageError(f"--out {out} is there already", "a new file: a map may hold edits", "Name another.")
    from porter.cli.map_views import describe
    from porter.comparison.map_module import map_module
    from porter.references.user_module.draft_text import map_text
    from porter.reports.write import write_file

    draft, build = map_module(module, model, **given)
    text = map_text(draft, module.removeprefix("module:"), build.name)
    if out is None:
        click.echo(text, nl=False)
    else:
        write_file(out, text.encode())
    for line in describe(draft, module, out):
        click.echo(line, err=out is None)
