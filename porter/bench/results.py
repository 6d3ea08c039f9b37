"""What a benchmark measured, as frozen values, and as JSON in schema porter.bench/1 and back.

A file is rewritten after every case, whole or not at all, so a run that is cut short loses one case.
"""

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, Literal, TypeVar

from porter.bench.cases import Case
from porter.errors import ArtifactError

SCHEMA = "porter.bench/1"
Metric = Literal["error", "forward_ms", "forward_backward_ms", "host_ms", "peak_bytes"]
Status = Literal["ok", "wrong", "unsupported", "missing", "failed"]


@dataclass(frozen=True)
class Record:
    """One number about one provider and one case, or why there is none.

    Attributes:
        case: its name.
        provider: its name.
        metric: error is the worst relative error of an element; a time is a median; peak_bytes lies above the inputs.
        value: None where there is none.
        low: the 20th percentile of a time.
        high: the 80th.
        runs: how many were timed.
        status: wrong is measured and not ranked; the last three have no value.
        note: the reason, or what else there is to say.
    """

    case: str
    provider: str
    metric: Metric
    value: float | None = None
    low: float | None = None
    high: float | None = None
    runs: int = 0
    status: Status = "ok"
    note: str = ""


@dataclass(frozen=True)
class Floor:
    """What the card allows for a case, from what it reaches on plain traffic and on a plain matrix product.

    Attributes:
        case: its name.
        forward_ms: at least, for the forward pass.
        forward_backward_ms: at least, for both.
        size_bytes: read and written by both, each tensor once a pass.
        flops: of matrix products in both.
    """

    case: str
    forward_ms: float
    forward_backward_ms: float
    size_bytes: int
    flops: int


@dataclass(frozen=True)
class Rate:
    """What the card reached: kind is copy, read or triad in bytes a second, or matmul in flops a second."""

    kind: str
    size: int
    time_ms: float
    per_second: float


@dataclass(frozen=True)
class BenchRun:
    """All of it.

    Attributes:
        created: UTC, ISO 8601.
        environment: GPU, driver, versions, commit, flags.
        cases: those asked for, in order.
        rates: the roofline.
        floors: of the cases, where there is a GPU.
        records: in the order in which they were measured.
        notes: what could not be measured, and why.
        running: case and provider that are being run.
        died: those that were running when a process ended; whoever is there twice is left out of the case.
    """

    created: str
    environment: Mapping[str, str]
    cases: tuple[Case, ...]
    rates: tuple[Rate, ...] = ()
    floors: tuple[Floor, ...] = ()
    records: tuple[Record, ...] = ()
    notes: tuple[str, ...] = ()
    running: tuple[str, str] | None = None
    died: tuple[tuple[str, str], ...] = ()


Flat = TypeVar("Flat", Record, Floor, Rate)


def to_text(run: BenchRun) -> str:
    """The run as a JSON document, a line for each entry of a list."""
    document = {"schema": SCHEMA, **{each.name: getattr(run, each.name) for each in fields(run)}}
    lines = []
    for key, value in document.items():
        if isinstance(value, tuple) and key != "running" and value:
            entries = ",\n".join(f"  {_strict(each)}" for each in value)
            lines.append(f" {_strict(key)}: [\n{entries}\n ]")
        else:
            lines.append(f" {_strict(key)}: {_strict(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _strict(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> dict[str, Any]:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else dict(value)


def from_document(document: Mapping[str, Any], where: str) -> BenchRun:
    """The run that to_text wrote. Raises: ArtifactError: another schema, or a key that is missing or malformed."""
    if document.get("schema") != SCHEMA:
        wrong = f"the schema of {where} is {document.get('schema')!r}"
        raise ArtifactError(wrong, repr(SCHEMA), "give a JSON that porter bench wrote")
    try:
        return _run(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(
            f"{where} is damaged: {type(error).__name__} {error}", f"every key of {SCHEMA}", "run porter bench again"
        ) from error


def _run(document: Mapping[str, Any]) -> BenchRun:
    running = document["running"]
    return BenchRun(
        created=document["created"],
        environment=dict(document["environment"]),
        cases=tuple(_case(each) for each in document["cases"]),
        rates=tuple(_known(Rate, each) for each in document["rates"]),
        floors=tuple(_known(Floor, each) for each in document["floors"]),
        records=tuple(_known(Record, each) for each in document["records"]),
        notes=tuple(document["notes"]),
        running=None if running is None else (running[0], running[1]),
        died=tuple((case, provider) for case, provider in document["died"]),
    )


def _case(each: Mapping[str, Any]) -> Case:
    options = tuple((name, value) for name, value in each["options"])
    return Case(each["op"], tuple(each["shape"]), each["dtype"], options, each["small"])


def _known(kind: type[Flat], each: Mapping[str, Any]) -> Flat:
    return kind(**{known.name: each[known.name] for known in fields(kind)})


def to_csv(run: BenchRun) -> str:
    """A line for each record, with the sizes of its case and the floor of its metric."""
    cases, floors = {case.name: case for case in run.cases}, {floor.case: floor for floor in run.floors}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("op", "size", "dtype", *(each.name for each in fields(Record)[1:]), "floor_ms"))
    for record in run.records:
        case = cases[record.case]
        floor = getattr(floors.get(record.case), record.metric, "")
        rest = (getattr(record, each.name) for each in fields(Record)[1:])
        writer.writerow((case.op, case.size, case.dtype, *("" if value is None else value for value in rest), floor))
    return out.getvalue()
