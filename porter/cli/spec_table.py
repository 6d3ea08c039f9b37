"""porter specs table: the README's table of families."""

from pathlib import Path

import click


@click.command()
@click.option(
    "--exact", "results", type=click.Path(path_type=Path), default=Path("benchmarks/results/exact.json"),
    show_default=True, help="What porter specs exact --json wrote.",
)  # fmt: skip
@click.option("--write", "page", type=click.Path(exists=True, path_type=Path), help="Put it into this page instead.")
def table(results: Path, page: Path | None) -> None:
    """Print the table of families: type, sizes, axes off the base, exactness."""
    from porter.specs.overview import make_table, put_into, read_results, stale

    found = read_results(results)
    for name in stale(found):
        click.echo(f"{name} is not as it was run; porter specs exact --json {results} runs it anew", err=True)
    text = make_table(found)
    if page is None:
        click.echo(text, nl=False)
    else:
        page.write_text(put_into(page.read_text(encoding="utf-8"), text), encoding="utf-8")
