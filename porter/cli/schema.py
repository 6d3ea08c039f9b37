"""porter schema: print the JSON Schema of a file that porter writes or reads."""

import click


@click.command()
@click.argument("name", metavar="NAME", type=click.Choice(["diff", "explain", "spec"]))
def schema(name: str) -> None:
    """Print the JSON Schema of what porter writes or reads.

    NAME is diff, for a report.json, explain, for an explain.json, or spec, for a family's YAML.
    """
    if name == "explain":
        from porter.reports.explain_json import schema_text as explain_schema_text

        click.echo(explain_schema_text(), nl=False)
        return
    if name == "diff":
        from porter.reports.schema import schema_text

        click.echo(schema_text(), nl=False)
        return
    from porter.specs.tree import spec_folder

    click.echo((spec_folder() / "schema.json").read_text(encoding="utf-8"), nl=False)
