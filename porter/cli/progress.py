"""The progress bar of long commands, on stderr; silent when stderr is no terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def stage_progress() -> Iterator[Callable[[str, str], None]]:
    """A function (stage, unit) that moves the bar."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"), BarColumn(pulse_style="cyan"), TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task("reading weights", total=None)
        yield lambda stage, unit: bar.update(task, description=f"{stage} {unit}")
