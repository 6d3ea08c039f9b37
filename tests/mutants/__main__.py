"""make mutants: changes the kernel library in one place at a time, and expects its tests to fail each time."""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"}
os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
# A graph compiled for another mutant must not be found again.
os.environ |= {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

import sys
import tempfile
from pathlib import Path

import click

from tests.mutants.find import choose, find_mutants
from tests.mutants.judge import judge_all, survey
from tests.mutants.report import check_reasons, read_reasons, show_diff, show_results
from tests.mutants.trial import copy_tree, warm

ROOT = Path.cwd()


@click.command()
@click.option("--op", "ops", multiple=True, help="Only this module of porter_kernels, or what lies below it.")
@click.option("--mutant", "ids", multiple=True, help="Only the one with this id; shows its diff.")
@click.option("--count", default=40, show_default=True, help="So many of each module; 0 for all.")
@click.option("--seed", default=0, show_default=True, help="Which ones --count draws.")
@click.option("--list", "only_list", is_flag=True, help="List them, run nothing.")
@click.option("--jobs", default=1, show_default=True, help="How many at a time.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("build/mutants.jsonl"), show_default=True,
    help="Verdicts, a line each. What is there and still holds is not run again.",
)  # fmt: skip
def mutants(
    ops: tuple[str, ...], ids: tuple[str, ...], count: int, seed: int, only_list: bool, jobs: int, out: Path
) -> None:
    """Judge mutants of the kernel library; exit 1 if one survives for which equivalent.json has no reason."""
    everything = find_mutants(ROOT)
    chosen = [m for m in choose(everything, ops, 0 if ids else count, seed) if not ids or m.id in ids]
    if not chosen:
        raise click.UsageError("No such mutant. List them with --list.")
    if only_list:
        for m in chosen:
            click.echo(f"{m.id}  {m.path}:{m.lines[0]}  {m.diff}")
        return
    if ids:
        click.echo("".join(show_diff(m) for m in chosen))
    reasons = read_reasons(ROOT)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        warm(Path(folder))
        tree = copy_tree(ROOT, Path(folder) / "tree")
        known = survey(tree, out.with_suffix(".survey.json"), chosen)
        verdicts = judge_all(chosen, known, reasons, tree, out, jobs)
    click.echo(show_results(chosen, verdicts, reasons))
    problems = check_reasons(everything, chosen, verdicts, reasons)
    click.echo("\n".join(problems), err=True)
    sys.stdout.flush()
    os._exit(1 if problems else 0)  # at a usual end Triton's bindings report what they did not free


if __name__ == "__main__":
    mutants()
