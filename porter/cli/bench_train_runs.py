"""What porter bench train does between reading its options and showing the result."""

from collections.abc import Sequence
from pathlib import Path

from porter.bench.files import read_document, write_whole
from porter.bench.training.cases import TrainCase
from porter.bench.training.results import TrainRun, from_document, to_csv, to_text
from porter.cli.bench_runs import new_file, say
from porter.errors import UsageError

_MOST_ON_A_CPU = 400_000_000  # a step of the interpreter takes seconds


def measure_training(
    cases: Sequence[TrainCase],
    trainer_names: Sequence[str],
    out: Path,
    *,
    turns: int,
    steps: int,
    resume: Path | None,
    stop_after_s: float,
    commit: str | None,
) -> Path:
    """The file that the run was saved to after every case.

    Args:
        cases: asked for.
        trainer_names: asked for; all if empty.
        out: folder for a new file.
        turns: of each trainer at a case.
        steps: timed in a turn.
        resume: a file to go on with, or to begin; one of another machine or of other code is left alone.
        stop_after_s: begin no case later than that; 0 for never.
        commit: to record where there is no git.
    """
    from porter_kernels import use_interpreter_on_cpu

    use_interpreter_on_cpu()
    from porter.bench.training.clock import find_step_clock
    from porter.bench.training.run import Effort, TrainBench, start_train_run
    from porter.bench.training.trainers import choose_trainers

    trainers, clock = choose_trainers(trainer_names), find_step_clock()
    if clock.place.type == "cpu":
        _refuse_large(cases)
        say("no GPU: these are times of a CPU, and porter's and Liger's those of Triton's interpreter")
    earlier = from_document(read_document(resume), str(resume)) if resume is not None and resume.exists() else None
    run, changed = start_train_run(cases, commit=commit, earlier=earlier)
    for line in changed:
        say(f"cannot go on with {resume}: {line}")
    path = resume if resume is not None and not changed else new_file(out, "train", run.environment, run.created)
    bench = TrainBench(
        run, trainers, clock, save=lambda each: _save(each, path), say=say,
        effort=Effort(turns=turns, steps=steps),
    )  # fmt: skip
    left = bench.measure(cases, stop_after_s)
    if left:
        say(f"time is up, {left} cases left: go on with --resume {path}")
    return path


def _refuse_large(cases: Sequence[TrainCase]) -> None:
    for case in cases:
        parameters = case.shape.blueprint.num_parameters
        if parameters > _MOST_ON_A_CPU:
            raise UsageError(
                f"no GPU, and {case.name} has {parameters:,} parameters", f"a GPU, or at most {_MOST_ON_A_CPU:,}",
                "On a CPU name a small model: --model gemma3 --layers 1 --grid 1x8 --no-medusa.",
            )  # fmt: skip


def _save(run: TrainRun, path: Path) -> None:
    """Writes the JSON, and the CSV beside it between two cases."""
    write_whole(path, to_text(run))
    if run.running is None:
        write_whole(path.with_suffix(".csv"), to_csv(run))
