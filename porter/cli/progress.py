"""The progress of long commands, on stderr: one live line on a terminal, elsewhere a plain line a stage."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Column

from porter.comparison.progress import Estimate, Progress, Silent, Work

_FRAME_S = 0.25  # the line is drawn as units are done, too: on a busy machine its own thread comes late
_WIDEST = 34  # behaviour bfloat16 layers.17 is 28


@contextmanager
def stage_progress(*, quiet: bool = False) -> Iterator[Progress]:
    """Shows the progress it is told.

    Args:
        quiet: no plain lines: what a terminal does not show might be read by a program.
    """
    console = Console(stderr=True)
    if not sys.stderr.isatty() or console.is_dumb_terminal:
        yield Silent() if quiet else _Lines()
        return
    line = {"no_wrap": True, "overflow": "ellipsis"}
    with Bar(
        TextColumn("{task.description}", table_column=Column(max_width=_WIDEST, **line)),  # type: ignore[arg-type]
        BarColumn(bar_width=None, pulse_style="cyan"), TaskProgressColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", table_column=Column(**line)),  # type: ignore[arg-type]
        console=console, transient=True, refresh_per_second=4, redirect_stdout=False,
    ) as bar:  # fmt: skip
        yield _Live(bar, bar.add_task("reading weights", total=None, left=""))


class _Live:
    """The live line: stage and unit, share of all units, time gone and time left."""

    def __init__(self, bar: Bar, task: TaskID) -> None:
        self.bar, self.task = bar, task
        self.estimate = Estimate((), time.monotonic())
        self._drawn_s = 0.0

    def plan(self, work: Sequence[Work]) -> None:
        self.estimate = Estimate(work, time.monotonic())
        self.bar.update(self.task, total=1.0, completed=0.0, left=describe_left(self.estimate), refresh=True)

    def done(self, stage: str, unit: str) -> None:
        now_s = time.monotonic()
        self.estimate.done(stage, now_s)
        left, late = describe_left(self.estimate), now_s - self._drawn_s >= _FRAME_S
        self._drawn_s = now_s if late else self._drawn_s
        self.bar.update(
            self.task, description=f"{stage} {unit}", completed=self.estimate.share, left=left, refresh=late
        )


class _Lines:
    """A line for each stage, when it is done."""

    def __init__(self) -> None:
        self.estimate = Estimate((), time.monotonic())

    def plan(self, work: Sequence[Work]) -> None:
        self.estimate = Estimate(work, time.monotonic())

    def done(self, stage: str, unit: str) -> None:
        ended_before = self.estimate.finished(stage)
        self.estimate.done(stage, time.monotonic())
        if self.estimate.finished(stage) and not ended_before:
            click.echo(f"{stage}: {self.estimate.seconds(stage):.1f} s, {self.estimate.share:.0%} done", err=True)


def describe_left(estimate: Estimate) -> str:
    """at least 0:21 left: as much as the stages need that were timed, and others are to come."""
    left_s = estimate.left_s
    if left_s is None or (estimate.untimed and left_s < 1):
        return "time left not known yet"
    minutes, seconds = divmod(round(left_s), 60)
    hours, minutes = divmod(minutes, 60)
    clock = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
    return f"{'at least ' if estimate.untimed else ''}{clock} left"
