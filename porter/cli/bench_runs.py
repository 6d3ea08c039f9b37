"""What porter bench does between reading its options and showing the result."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import click

from porter.bench import curves
from porter.bench.cases import Case
from porter.bench.files import read_document, write_whole
from porter.bench.ranking import regressions
from porter.bench.results import BenchRun, from_document, to_csv, to_text
from porter.bench.training import results as training
from porter.reports.bench_terminal import render_bench
from porter.reports.memory_table import render_memory
from porter.reports.train_table import render_training
from porter.reports.wide import wide_console


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
        cases: asked for; on a CPU shrunken ones take their place.
        provider_names: asked for; all if empty.
        out: folder for a new file.
        resume: a file to go on with, or to begin; a file of another machine or of other code is left alone.
        stop_after_s: begin no case later than that; 0 for never.
        commit: to record where there is no git.
    """
    from porter_kernels import use_interpreter_on_cpu

    use_interpreter_on_cpu()
    from porter.bench.clock import Clock
    from porter.bench.device import find_device
    from porter.bench.providers.table import choose_providers
    from porter.bench.run import Bench, Hooks, runnable, start_run

    providers, device = choose_providers(provider_names), find_device()
    cases = runnable(cases, device)
    earlier = from_document(read_document(resume), str(resume)) if resume is not None and resume.exists() else None
    run, changed = start_run(cases, commit=commit, earlier=earlier)
    for line in changed:
        say(f"cannot go on with {resume}: {line}")
    path = resume if resume is not None and not changed else new_file(out, "kernels", run.environment, run.created)
    bench = Bench(run, providers, Clock(device) if device else None, Hooks(lambda each: _save(each, path), say))
    left = bench.measure(cases, stop_after_s)
    if left:
        say(f"time is up, {left} cases left: go on with --resume {path}")
    return path, bench.run


def _save(run: BenchRun, path: Path) -> None:
    """Writes the JSON, and the CSV beside it between two cases."""
    write_whole(path, to_text(run))
    if run.running is None:
        write_whole(path.with_suffix(".csv"), to_csv(run))


def measure_memory(out: Path, *, commit: str | None) -> Path | None:
    """The file of the curves, saved after every number of tokens; None where there is no GPU."""
    from porter.bench.clock import Clock
    from porter.bench.device import find_device
    from porter.bench.environment import describe_environment
    from porter.bench.memory import measure_curves

    device = find_device()
    if device is None:
        say("No GPU here: peak memory and device times cannot be measured, and nothing was.")
        return None
    created = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S+00:00}"
    run = curves.MemoryRun(created, describe_environment((), commit), ())
    path = new_file(out, "memory", run.environment, created)
    for points in measure_curves(Clock(device, least_runs=5)):
        run = curves.MemoryRun(created, run.environment, (*run.points, *points))
        write_whole(path, curves.to_text(run))
        write_whole(path.with_suffix(".csv"), curves.to_csv(run))
        say(", ".join(f"{point.method} {point.status}" for point in points) + f" at {points[0].tokens} tokens")
    return path


def show_file(path: Path) -> None:
    """Prints what is in a file of porter bench, and draws its page."""
    document = read_document(path)
    if document.get("schema") == training.SCHEMA:
        _show_training(training.from_document(document, str(path)), path)
        return
    if document.get("schema") != curves.SCHEMA:
        show(from_document(document, str(path)), path)
        return
    run = curves.from_document(document, str(path))
    render_memory(run, wide_console())
    if _can_draw(path):
        from porter.reports.memory_report import memory_to_html

        write_whole(path.with_suffix(".html"), memory_to_html(run))


def _show_training(run: training.TrainRun, path: Path) -> None:
    render_training(run, wide_console())
    if _can_draw(path):
        from porter.reports.train_report import training_to_html

        write_whole(path.with_suffix(".html"), training_to_html(run))


def show(run: BenchRun, path: Path) -> bool:
    """Prints the run, draws its page, and says whether porter is anywhere wrong or worse than eager."""
    render_bench(run, wide_console())
    if _can_draw(path):
        from porter.reports.bench_html import bench_to_html

        write_whole(path.with_suffix(".html"), bench_to_html(run))
    return bool(regressions(run))


def _can_draw(path: Path) -> bool:
    """Says where the results are; whether plotly is here to draw them."""
    if find_spec("plotly") is None:
        say(f"results: {path}; no page without plotly, porter bench report draws it elsewhere")
        return False
    say(f"results: {path}, and beside it .csv and .html")
    return True


def new_file(out: Path, what: str, environment: Mapping[str, str], created: str) -> Path:
    """A name for a new file of results."""
    gpu = re.sub(r"[^a-z0-9]+", "-", environment["gpu"].lower()).strip("-")
    return out / f"{what}-{gpu}-{created[:19].replace(':', '')}Z.json"


def say(line: str) -> None:
    """A line for people, to stderr."""
    click.echo(line, err=True)
