"""What porter bench does between reading its options and showing the result."""

import re
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from porter.bench.cases import Case
from porter.bench.ranking import regressions
from porter.bench.results import BenchRun, read_run, to_csv, to_text, write_whole
from porter.reports.bench_terminal import render_bench


def measure_kernels(
    cases: Sequence[Case],
    provider_names: Sequence[str],
    out: Path,
    *,
    resume: Path | None,
    stop_after_s: float,
    commit: str | None,
) -> tuple[Path, BenchRun]:
    """The run, and the file it was saved to after every case.

    Args:
        resume: a file to go on with, or to begin; a file of another machine or of other code is left alone.
    """
    from porter_kernels import use_interpreter_on_cpu

    use_interpreter_on_cpu()
    from porter.bench.clock import Clock
    from porter.bench.device import find_device
    from porter.bench.providers.table import choose_providers
    from porter.bench.run import Bench, Hooks, runnable, start_run

    providers, device = choose_providers(provider_names), find_device()
    cases = runnable(cases, device)
    earlier = read_run(resume) if resume is not None and resume.exists() else None
    run, changed = start_run(cases, commit=commit, earlier=earlier)
    for line in changed:
        _say(f"cannot go on with {resume}: {line}")
    path = resume if resume is not None and not changed else out / f"{_file_name(run)}.json"
    bench = Bench(run, providers, Clock(device) if device else None, Hooks(lambda each: save(each, path), _say))
    left = bench.measure(cases, stop_after_s)
    if left:
        _say(f"time is up, {left} cases left: go on with --resume {path}")
    return path, bench.run


def save(run: BenchRun, path: Path) -> None:
    """Writes the JSON, and the CSV beside it between two cases."""
    write_whole(path, to_text(run))
    if run.running is None:
        write_whole(path.with_suffix(".csv"), to_csv(run))


def show(run: BenchRun, path: Path) -> bool:
    """Prints the run, and says whether porter is anywhere wrong or worse than eager."""
    render_bench(run, Console(highlight=False))
    click.echo(f"results: {path}", err=True)
    return bool(regressions(run))


def _file_name(run: BenchRun) -> str:
    gpu = re.sub(r"[^a-z0-9]+", "-", run.environment["gpu"].lower()).strip("-")
    return f"kernels-{gpu}-{run.created[:19].replace(':', '')}Z"


def _say(line: str) -> None:
    click.echo(line, err=True)
