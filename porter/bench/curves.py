"""Memory and time of a head's loss against tokens, as frozen values, and as JSON in schema porter.bench.memory/1."""

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from porter.errors import ArtifactError

SCHEMA = "porter.bench.memory/1"
HEADS = ((4096, 128256), (3072, 256000))  # features and vocabulary: Llama 3 8B, Gemma 7B
TOKENS = (512, 1024, 2048, 4096, 8192, 16384)
METHODS = {
    "naive": "all logits, in float32",
    "chunked": "2048 rows of logits at a time, computed again in backward",
    "fused": "porter's linear_cross_entropy",
    "fused, lean": "the same, the weight's gradient summed in its own dtype",
}


@dataclass(frozen=True)
class Point:
    """One method at one number of tokens.

    Attributes:
        features: of a hidden state.
        vocabulary: classes.
        method: one of METHODS.
        tokens: rows.
        status: out of memory is a result as well; failed has its reason in the note.
        peak_bytes: above the inputs, forward and backward.
        time_ms: of both, a median.
        low_ms: the 20th percentile.
        high_ms: the 80th.
        note: why there is no number.
    """

    features: int
    vocabulary: int
    method: str
    tokens: int
    status: Literal["ok", "out of memory", "failed"] = "ok"
    peak_bytes: int | None = None
    time_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    note: str = ""


@dataclass(frozen=True)
class MemoryRun:
    """All points of a run, and where it ran."""

    created: str
    environment: Mapping[str, str]
    points: tuple[Point, ...]


def gradient_bytes(point: Point) -> int:
    """What the gradients of hidden states and weight take in 16 bits: nothing that returns both can use less."""
    return 2 * point.features * (point.tokens + point.vocabulary)


def to_text(run: MemoryRun) -> str:
    """The run as a JSON document, a line for each point."""
    points = ",\n".join(f"  {json.dumps(asdict(point), allow_nan=False)}" for point in run.points)
    head = json.dumps({"schema": SCHEMA, "created": run.created, "environment": dict(run.environment)}, indent=1)
    return f'{head[:-2]},\n "points": [\n{points}\n ]\n}}\n'


def from_document(document: Mapping[str, Any], where: str) -> MemoryRun:
    """The run that to_text wrote. Raises: ArtifactError: it is damaged."""
    try:
        points = (Point(**{each.name: line[each.name] for each in fields(Point)}) for line in document["points"])
        return MemoryRun(document["created"], dict(document["environment"]), tuple(points))
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{where} is damaged: {type(error).__name__} {error}", f"every key of {SCHEMA}", "measure it again"
        ) from error


def to_csv(run: MemoryRun) -> str:
    """A line for each point."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([each.name for each in fields(Point)])
    for point in run.points:
        values = (getattr(point, each.name) for each in fields(Point))
        writer.writerow(["" if value is None else value for value in values])
    return out.getvalue()
