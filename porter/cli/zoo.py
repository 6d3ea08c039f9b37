"""porter zoo: public porting bugs as changes of a spec, each to be found by porter diff where it acts."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from porter.explanation.scorecard import Given


@click.command()
@click.option(
    "--row", "names", multiple=True, metavar="N", help="Only this row; several times for more.  [default: all]"
)
@click.option(
    "--json", "json_path", metavar="FILE", help="Write the outcomes there too; - prints them alone on stdout."
)
@click.option(
    "--file", "zoo_path", type=click.Path(path_type=Path), help="Rows of another file.  [default: porter's own]"
)
@click.option(
    "--explain", "explained", is_flag=True, help="Does explain name each mistake? Also pairs, and clean ports."
)
@click.option("--dumps", "given", flag_value="dumps", help="With --explain: of dumps of what the ports computed.")
@click.option("--modules", "given", flag_value="modules", help="With --explain: of the ports as torch modules.")
@click.pass_context
def zoo(
    ctx: click.Context, /, names: tuple[str, ...], json_path: str | None, zoo_path: Path | None, explained: bool,
    given: "Given | None",
) -> None:  # fmt: skip
    """Put known porting bugs into right ports: does diff find them?

    Tiny sizes, random:stress weights, plain torch on the CPU. Exits with 1 when fewer than 98 % of the mistakes are
    caught in the stage and at the node expected, or when a false alarm FAILs. What the data cannot show is not caught.

    With --explain, each mistake is given to porter explain instead, then 50 pairs of mistakes, then a clean port of
    every family. Exits with 1 when the right axis is named first in fewer than 95 %, its value is right in fewer than
    90 %, both of a pair are named in fewer than 85 %, or a clean port is accused.
    """
    from porter.explanation.zoo_file import PATH, Outside, read_zoo

    read = read_zoo(zoo_path or PATH)
    to_file = Path(json_path) if json_path and json_path != "-" else None
    if to_file:
        from porter.reports.write import check_writable

        check_writable(to_file.parent, json_path=to_file)
    if given and not explained:
        raise click.UsageError(f"--{given} goes with --explain", ctx)
    if explained:
        from porter.cli.scorecard_views import run_scorecard

        ctx.exit(0 if run_scorecard(read, names, json_path, given or "specs").passed else 1)
    from porter.cli.progress import stage_progress
    from porter.cli.zoo_views import print_outcomes, print_score, to_text
    from porter.comparison.progress import Work
    from porter.explanation.zoo import Score, choose_rows, run_zoo

    with stage_progress(quiet=json_path == "-") as progress:
        rows = [name for name in choose_rows(read, names) if not isinstance(read.rows[name], Outside)]
        progress.plan([Work("row", len(rows))])
        score = Score(tuple(run_zoo(read, names, progress=lambda name: progress.done("row", name))))
    if json_path == "-":
        click.echo(to_text(score), nl=False)
    else:
        print_outcomes(score)
        print_score(score)
    if to_file:
        from porter.reports.write import write_file

        write_file(to_file, to_text(score).encode())
    ctx.exit(0 if score.passed else 1)
