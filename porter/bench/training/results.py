"""What training steps measured, as frozen values, and as JSON in schema porter.bench.train/1 and back."""

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from porter.bench.training.cases import OURS, TrainCase
from porter.errors import ArtifactError

SCHEMA = "porter.bench.train/1"
Status = Literal["ok", "wrong", "out of memory", "missing", "failed"]


@dataclass(frozen=True)
class TrainRow:
    """One trainer at one case.

    Attributes:
        case: its name.
        trainer: its name.
        status: wrong is measured and not ranked; the last three have no times.
        note: the reason.
        tokens_per_s: median over steps, of all turns.
        low: the 20th percentile.
        high: the 80th.
        steps: that were timed.
        peak_bytes: most that was allocated in a step; None without a GPU.
        load_s: making HF's model with random weights.
        patch_s: making it ready.
        first_step_s: compiling and tuning included.
        losses: of the first steps, from the same weights, on the same batch.
        gradient_norm: of the first step, over all parameters.
    """

    case: str
    trainer: str
    status: Status = "ok"
    note: str = ""
    tokens_per_s: float | None = None
    low: float | None = None
    high: float | None = None
    steps: int = 0
    peak_bytes: int | None = None
    load_s: float | None = None
    patch_s: float | None = None
    first_step_s: float | None = None
    losses: tuple[float, ...] = ()
    gradient_norm: float | None = None


@dataclass(frozen=True)
class TrainRun:
    """All rows, and where they were measured.

    Attributes:
        created: UTC, ISO 8601.
        environment: GPU, driver, versions, commit, flags.
        cases: those asked for, in order.
        rows: in the order in which they were measured.
        running: case and trainer at work.
        died: those at work when a process ended; who is there twice is left out of the case.
    """

    created: str
    environment: Mapping[str, str]
    cases: tuple[TrainCase, ...]
    rows: tuple[TrainRow, ...] = ()
    running: tuple[str, str] | None = None
    died: tuple[tuple[str, str], ...] = ()

    def rows_of(self, case: str) -> list[TrainRow]:
        return [row for row in self.rows if row.case == case]


def best_peer(rows: list[TrainRow]) -> TrainRow | None:
    """The right trainer that is not porter and has the most tokens a second."""
    peers = [row for row in rows if row.trainer not in OURS and row.status == "ok" and row.tokens_per_s is not None]
    return max(peers, key=lambda row: row.tokens_per_s or 0.0, default=None)


def best_own(rows: list[TrainRow]) -> TrainRow | None:
    """The fastest of porter's own that is right."""
    own = [row for row in rows if row.trainer in OURS and row.status == "ok" and row.tokens_per_s is not None]
    return max(own, key=lambda row: row.tokens_per_s or 0.0, default=None)


def verdict(own: TrainRow, peer: TrainRow) -> str:
    """ahead, a tie (the ranges of the 20th to the 80th percentile overlap), or behind."""
    assert own.low is not None and own.high is not None and peer.low is not None and peer.high is not None
    if own.low > peer.high:
        return "ahead"
    return "behind" if own.high < peer.low else "a tie"


def judge_losses(row: TrainRow, reference: TrainRow) -> str:
    """What is wrong with a trainer's first steps beside another's, HF's own where it ran; empty if nothing is.

    The first loss comes from the same weights, later ones from steps that round otherwise.
    """
    for step, (mine, theirs) in enumerate(zip(row.losses, reference.losses, strict=True)):
        limit = (FIRST if step == 0 else LATER) * abs(theirs)
        if not abs(mine - theirs) <= limit:
            return f"the loss of step {step + 1} is {mine:.5g}, {reference.trainer}'s {theirs:.5g}"
    mine, theirs = row.gradient_norm or 0.0, reference.gradient_norm or 0.0
    if not abs(mine - theirs) <= NORM * theirs:
        return f"the gradients' norm is {mine:.4g}, {reference.trainer}'s {theirs:.4g}"
    return ""


FIRST, LATER, NORM = 2e-3, 3e-2, 2e-2  # relative; bfloat16's own noise is a tenth of each (kernels.md: 8e-4 of 12.6)


def to_text(run: TrainRun) -> str:
    """The run as a JSON document, a line for each case and row."""
    document = {"schema": SCHEMA, **{each.name: getattr(run, each.name) for each in fields(run)}}
    lines = []
    for key, value in document.items():
        if key in ("cases", "rows") and value:
            entries = ",\n".join(f"  {json.dumps(asdict(each), allow_nan=False)}" for each in value)
            lines.append(f" {json.dumps(key)}: [\n{entries}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, allow_nan=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def from_document(document: Mapping[str, Any], where: str) -> TrainRun:
    """The run that to_text wrote. Raises: ArtifactError: it is damaged."""
    try:
        running = document["running"]
        rows = (TrainRow(**{each.name: line[each.name] for each in fields(TrainRow)}) for line in document["rows"])
        return TrainRun(
            document["created"],
            dict(document["environment"]),
            tuple(
                TrainCase(**{each.name: line[each.name] for each in fields(TrainCase)}) for line in document["cases"]
            ),
            tuple(replace(row, losses=tuple(row.losses)) for row in rows),
            None if running is None else (running[0], running[1]),
            tuple((case, trainer) for case, trainer in document["died"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(
            f"{where} is damaged: {type(error).__name__} {error}", f"every key of {SCHEMA}", "measure it again"
        ) from error


def to_csv(run: TrainRun) -> str:
    """A line for each row, with the sizes of its case."""
    cases = {case.name: case for case in run.cases}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    sizes = ("model", "layers", "batch", "tokens", "heads")
    writer.writerow((*sizes, *(each.name for each in fields(TrainRow)[1:])))
    for row in run.rows:
        case = cases[row.case]
        values = (getattr(row, each.name) for each in fields(TrainRow)[1:])
        shown = (" ".join(f"{each:.6g}" for each in value) if isinstance(value, tuple) else value for value in values)
        writer.writerow(
            (*(getattr(case, name) for name in sizes), *("" if value is None else value for value in shown))
        )
    return out.getvalue()
