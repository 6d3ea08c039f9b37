"""porter capture: write what a port, or its reference, computes as a dump."""

from pathlib import Path

import click

from porter.cli.freed_memory import keep_freed_memory
from porter.cli.options import PLACE, build_options


@click.command()
@click.argument("model", required=False)
@build_options
@click.option("--out", type=PLACE, required=True, help="Folder the dump is written to.")
@click.option(
    "--side", type=click.Choice(["port", "reference"]), default="port", show_default=True,
    help="Whom to run: the build, or HuggingFace on its weights.",
)  # fmt: skip
def capture(model: str | None, out: Path, side: str, **build_flags: object) -> None:
    """Write what a model computes for one prompt as a dump, for porter diff --port dump:DIR or --reference dump:DIR.

    MODEL is what porter build takes; without it, the build just made. A model that is none of porter's is dumped with
    the Recorder (porter/references/recorder.py), which needs numpy alone.
    """
    keep_freed_memory()
    from porter.cli.progress import stage_progress
    from porter.comparison.capture import capture as write

    with stage_progress() as progress:
        folder = write(model, out=out, side=side, progress=progress, **build_flags)  # type: ignore[arg-type]
    click.echo(f"wrote {folder}; next: porter diff {model or ''} --port dump:{folder}".replace("  ", " "))
