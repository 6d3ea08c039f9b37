"""porter bench: the fused ops beside their peers. Results are measured, saved as they come, and drawn from the file."""

from pathlib import Path

import click

from porter.cli.bench_train import train

OUT = Path("benchmarks/results")


@click.group()
def bench() -> None:
    """Benchmarks: measure the kernels, and draw what was measured."""


@bench.command()
@click.option("--op", "ops", multiple=True, help="Only this op; several times for more.")
@click.option("--case", "names", multiple=True, metavar="TEXT", help="Only cases whose name has this in it.")
@click.option("--provider", "providers", multiple=True, help="Only this one, and eager.  [default: all]")
@click.option("--quick", is_flag=True, help="The first case of each op and option.")
@click.option("--list", "list_only", is_flag=True, help="Name the cases and stop.")
@click.option("--out", type=click.Path(path_type=Path), default=OUT, show_default=True, help="Folder for the results.")
@click.option("--resume", type=click.Path(path_type=Path), metavar="FILE", help="Go on with this file, or begin it.")
@click.option("--stop-after", type=float, default=0.0, metavar="SECONDS", help="Begin no case later than that.")
@click.option("--commit", help="What to record as the commit where there is no git.")
@click.option("--check", is_flag=True, help="Exit 1 where porter is wrong, slower than eager, or takes more memory.")
@click.pass_context
def kernels(
    ctx: click.Context,
    /,
    ops: tuple[str, ...],
    names: tuple[str, ...],
    providers: tuple[str, ...],
    quick: bool,
    list_only: bool,
    out: Path,
    resume: Path | None,
    stop_after: float,
    commit: str | None,
    check: bool,
) -> None:
    """Check and time each op beside its peers. Forward and backward; what is right is what float64 says.

    Without a GPU nothing is timed: porter's kernels are checked in Triton's interpreter on shrunken shapes.
    Exits with 1 under --check if porter is anywhere wrong or worse than eager, and with 4 if a peer broke the GPU.
    """
    from porter.bench.cases import choose_cases

    cases = choose_cases(ops=ops, names=names, quick=quick)
    if list_only:
        click.echo("\n".join(case.name for case in cases))
        return
    from porter.cli.bench_runs import measure_kernels, show

    path, run = measure_kernels(cases, providers, out, resume=resume, stop_after_s=stop_after, commit=commit)
    worse = show(run, path)
    ctx.exit(int(check and worse))


@bench.command()
@click.option("--out", type=click.Path(path_type=Path), default=OUT, show_default=True, help="Folder for the results.")
@click.option("--commit", help="What to record as the commit where there is no git.")
def memory(out: Path, commit: str | None) -> None:
    """Measure memory and time of the head's loss. Against tokens: naive, chunked, fused; only on a GPU."""
    from porter.cli.bench_runs import measure_memory, show_file

    path = measure_memory(out, commit=commit)
    if path is not None:
        show_file(path)


@bench.command()
@click.argument("file", type=click.Path(path_type=Path))
def report(file: Path) -> None:
    """Draw a result again. FILE is a JSON that porter bench wrote: tables here, and a page beside it."""
    from porter.cli.bench_runs import show_file

    show_file(file)


bench.add_command(train)
