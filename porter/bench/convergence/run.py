"""A family's trainings, each side in a process of its own, and what comes of them."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from porter.bench.convergence.judge import Row, judge
from porter.bench.convergence.training import Course
from porter.bench.convergence.worker import read
from porter.errors import ComparisonError
from porter.models.build import plan_build

_PLAIN, _PATCHED = ("golden", "plain"), ("patched",)
_SAID = 200  # letters of an error


def compare_trainings(
    family: str, dtypes: Sequence[str], device: str, course: Course, *, fault: str | None = None
) -> list[Row]:
    """The rows of a family's tiny size, on weights that leave no part of its spec unused.

    Args:
        fault: a mistake to make in the patched side's kernels.

    Raises:
        ComparisonError: a training did not end.
    """
    checkpoint = checkpoint_of(family)
    with tempfile.TemporaryDirectory(prefix="porter-convergence-") as folder:
        out = Path(folder)
        for sides in (_PLAIN, _PATCHED):
            _train(checkpoint, out, sides, dtypes, device, course, fault if sides is _PATCHED else None)
        return [
            row
            for dtype in dtypes
            for row in judge(family, dtype, *(read(out, side, dtype) for side in (*_PLAIN, *_PATCHED)))
        ]


def checkpoint_of(family: str) -> Path:
    """The folder of a family's tiny size; written the first time."""
    return plan_build(
        family, size="tiny", weights="random:stress", overrides=(), dtype="float32", ops="reference", device="cpu",
        prompt=None, tokens=None,
    ).checkpoint()  # fmt: skip


def _train(
    checkpoint: Path, out: Path, sides: Sequence[str], dtypes: Sequence[str], device: str, course: Course,
    fault: str | None,
) -> None:  # fmt: skip
    command = [sys.executable, "-m", "porter.bench.convergence.worker", str(checkpoint), str(out), "--device", device]
    command += [word for side in sides for word in ("--side", side)]
    command += [word for dtype in dtypes for word in ("--dtype", dtype)]
    command += [word for name, value in vars(course).items() for word in (f"--{name}", str(value))]
    command += ["--fault", fault] if fault else []
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        said = [line for line in ended.stderr.splitlines() if re.match(r"[\w.]+(Error|Exception)\b", line)]
        last = (said or ended.stderr.strip().splitlines() or ["no message"])[-1][:_SAID]
        raise ComparisonError(
            f"training {', '.join(sides)} of {checkpoint.name} ended with {ended.returncode}: {last}",
            "a trajectory", f"Run it by hand: {' '.join(command)}",
        )  # fmt: skip
