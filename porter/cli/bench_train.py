"""porter bench train: training steps of whole models, whoever's code runs them."""

from pathlib import Path

import click

OUT = Path("benchmarks/results")


@click.command()
@click.option(
    "--model", "models", multiple=True, help="A size; several times for more.  [default: llama-3-8b, gemma-7b]"
)
@click.option(
    "--grid", "grid", multiple=True, metavar="BxT", help="Samples x tokens.  [default: 16x512, 2x4096, 1x8192]"
)
@click.option("--layers", type=click.IntRange(min=1), default=8, show_default=True, help="Layers of each model.")
@click.option("--medusa/--no-medusa", default=True, help="With 3 and 5 Medusa heads too, at 8x4096.  [default: medusa]")
@click.option("--case", "names", multiple=True, metavar="TEXT", help="Only cases whose name has this in it.")
@click.option("--trainer", "trainers", multiple=True, help="Only this one, and hf.  [default: all]")
@click.option("--turns", type=click.IntRange(min=1), default=3, show_default=True, help="Of each trainer at a case.")
@click.option("--steps", type=click.IntRange(min=1), default=4, show_default=True, help="Timed in a turn.")
@click.option("--list", "list_only", is_flag=True, help="Name the cases and stop.")
@click.option("--out", type=click.Path(path_type=Path), default=OUT, show_default=True, help="Folder for the results.")
@click.option("--resume", type=click.Path(path_type=Path), metavar="FILE", help="Go on with this file, or begin it.")
@click.option(
    "--stop-after", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Begin no case later than that."
)
@click.option("--commit", help="What to record as the commit where there is no git.")
def train(
    models: tuple[str, ...],
    grid: tuple[str, ...],
    layers: int,
    medusa: bool,
    names: tuple[str, ...],
    trainers: tuple[str, ...],
    turns: int,
    steps: int,
    list_only: bool,
    out: Path,
    resume: Path | None,
    stop_after: float,
    commit: str | None,
) -> None:
    """Training steps beside peers: tokens a second, peak memory, first losses.

    HuggingFace's model as it is (hf), compiled, with Liger's patch, with porter's, and porter's compiled, in turns, on
    one set of random weights in bfloat16. Who loses other than HuggingFace is wrong, and not ranked.
    """
    from porter.bench.training.cases import read_grid, train_cases

    cases = train_cases(models=models, grid=[*map(read_grid, grid)], layers=layers, medusa=medusa, names=names)
    if list_only:
        click.echo("\n".join(case.name for case in cases))
        return
    from porter.cli.bench_runs import show_file
    from porter.cli.bench_train_runs import measure_training

    path = measure_training(
        cases, trainers, out, turns=turns, steps=steps, resume=resume, stop_after_s=stop_after, commit=commit
    )
    show_file(path)
