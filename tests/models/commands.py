"""The porter command in this process, and what a refusal looks like."""

import os
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from porter.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
# For a porter in a process of its own: it imports this repository, installed or not.
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels"), *filter(None, sys.path)])}


def porter(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(each) for each in arguments])


def refused(result: Result, exit_code: int, wrong: str, *more: str) -> None:
    """Three lines on stderr in order, the exit code, nothing on stdout, no traceback."""
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == exit_code, result.stderr
    lines = result.stderr.strip().splitlines()
    starts = ("Error: ", "  expected: ", "  fix: ")
    at = [next((i for i, line in enumerate(lines) if line.startswith(start)), -1) for start in starts]
    assert -1 not in at and at == sorted(at), result.stderr
    assert "Traceback" not in result.output and result.stdout == ""
    for each in (wrong, *more):
        assert each in result.stderr, result.stderr
