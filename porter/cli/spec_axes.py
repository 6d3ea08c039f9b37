"""porter specs axes: each family's own mutations, caught or not."""

from pathlib import Path

import click


@click.command()
@click.argument("names", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Also the axes that a family has from the base.")
@click.option("--json", "json_path", metavar="FILE", help="Write the rows there too.")
def axes(names: tuple[str, ...], every: bool, json_path: str | None) -> None:
    """Change every axis that a family's file sets: does a comparison with it notice?

    NAMES are families; default: all. float32 or other bits in bfloat16, one layer of each kind, size tiny. Exits with
    1 when a change stays hidden without a reason.
    """
    from porter.cli.axes_views import print_axes_table, to_text, unexplained
    from porter.comparison.axis_table import mutate_families
    from porter.specs.family import find_family
    from porter.specs.tree import builtin_spec_names

    rows = list(mutate_families([find_family(name) for name in names or builtin_spec_names()]))
    print_axes_table(rows, every=every)
    if json_path:
        from porter.reports.write import write_file

        write_file(Path(json_path), to_text(rows).encode())
    if unexplained(rows):
        raise click.exceptions.Exit(1)
