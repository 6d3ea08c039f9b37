"""porter schema: print the JSON Schema of a file that porter writes or reads."""

import click


@click.command()
@click.argument("name", metavar="NAME", type=click.Choice(["diff", "spec"]))
def schema(name: str) -> None:
    """Print the JSON Schema of a report or of a spec. NAME is diff, for a report.json, or spec, for a family's YAML."""
    if name == "diff":
        from porter.reports.schema import schema_text

        click.echo(schema_text(), nl=False)
        return
    from porter.specs.tree import spec_folder

    click.echo((spec_folder() / "schema.json").read_text(encoding="utf-8"), nl=False)
