"""porter specs diff and exact: a spec against another, and against HuggingFace."""

from pathlib import Path

import click


@click.command()
@click.argument("one")
@click.argument("other")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def diff(one: str, other: str, as_json: bool) -> None:
    """Say in which axes two models differ, and what each axis means.

    ONE and OTHER are families, sizes (gemma-7b), or paths of spec files. Of two families, what both take from the
    config in the same way is left out.
    """
    from porter.cli.difference_views import print_differences, to_text
    from porter.specs.difference import differences
    from porter.specs.family import find_model
    from porter.specs.resolve import resolve_size

    models = [find_model(name) for name in (one, other)]
    resolved = [resolve_size(family, size or family.default_size) for family, size in models]
    found = list(differences(*resolved, of_families=not any(size for _, size in models)))
    if as_json:
        click.echo(to_text(one, other, found))
    else:
        print_differences(one, other, found)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--demo", is_flag=True, help="Also the real checkpoints gemma-3-270m and smollm2-135m, at 640 tokens.")
@click.option("--jobs", type=click.IntRange(1), help="Processes.  [default: one a core]")
@click.option("--json", "json_path", metavar="FILE", help="Write the rows there too.")
def exact(names: tuple[str, ...], demo: bool, jobs: int | None, json_path: str | None) -> None:
    """Compare specs with HuggingFace eager, bit for bit. Every layer is run, in float32 and bfloat16.

    NAMES are families (their size tiny), sizes or paths; default: every family.  [weights: random:stress, 320 tokens]
    Exit 1 if any row is not bit-equal.
    """
    from porter.cli.exact_views import closing_line, exact_line, exact_runs, to_text
    from porter.comparison.exact_table import run_exact_table

    rows = []
    for row in run_exact_table(exact_runs(names, demo=demo), jobs):
        click.echo(exact_line(row))
        rows.append(row)
    click.echo(closing_line(rows))
    if json_path:
        from porter.reports.write import write_file

        write_file(Path(json_path), to_text(rows).encode())
    if not all(row.exact for row in rows):
        raise click.exceptions.Exit(1)
