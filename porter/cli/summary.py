"""What porter build prints."""

import click
from rich.console import Console
from rich.table import Table

from porter.models.build import Build
from porter.specs.conventions import conventions

_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def print_build(made: Build, *, recorded: bool) -> None:
    """The build's size, weights and conventions, and the next command."""
    blueprint, console = made.blueprint, Console(highlight=False, soft_wrap=True)
    count = blueprint.num_parameters
    console.print(f"[bold]{made.name}[/bold]  {blueprint.family}, {blueprint.dims.layers} layers, {made.dtype}")
    console.print(
        f"{count:,} parameters, {count * _BYTES[made.dtype] / 1e9:.2f} GB in {made.dtype}, weights {made.weights}"
    )
    table = Table(box=None, show_header=False, pad_edge=False)
    for topic, text in conventions(blueprint):
        table.add_row(topic, text)
    console.print(table)
    for override in made.overrides:
        console.print(f"port only: {override}", style="yellow")
    console.print(f"spec sha256 {blueprint.hash[:16]}")
    if recorded:
        click.echo(f"Recorded in builds/{made.name}/. Next: porter diff --reference hf --layers all")
