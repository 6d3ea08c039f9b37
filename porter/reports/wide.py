"""The console of a table that must not be cut: as wide as the terminal, and wide where there is none."""

import sys

from rich.console import Console

_WIDTH = 200  # where stdout is no terminal


def wide_console() -> Console:
    """Where tables are printed."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
