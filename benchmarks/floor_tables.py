"""What measure_floors.py makes of its rows: quantiles of ρ and ρ_tok, false alarms, and the worst nodes."""

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLUMNS = (
    "port", "model", "weights", "stage", "dtype", "node", "kind", "e_ref", "e_port", "rho", "rho_tok", "status",
    "device", "versions", "commit",
)  # fmt: skip
METRICS = ("rho", "rho_tok")
QUANTILES = {"median": 0.5, "90 %": 0.9, "99 %": 0.99}
ALARMS = ("FAIL", "WARN", "INCONCLUSIVE")
WORST = 20


@dataclass(frozen=True)
class Row:
    """One node of one port; the fields are COLUMNS, errors relative, as in porter.comparison.report.Local."""

    port: str
    model: str
    weights: str
    stage: str
    dtype: str
    node: str
    kind: str
    e_ref: float
    e_port: float
    rho: float
    rho_tok: float
    status: str
    device: str
    versions: str
    commit: str


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV that measure_floors.py wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        return [Row(*row[:7], *map(float, row[7:11]), *row[11:]) for row in list(csv.reader(file))[1:]]  # type: ignore[arg-type]


def write_summary(rows: Sequence[Row], path: Path) -> str:
    """Writes the summary beside `path`, as .md and .json; returns the Markdown."""
    text = to_markdown(rows)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    path.with_suffix(".json").write_text(to_json(rows), encoding="utf-8")
    return text


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """Quantiles of both metrics over the nodes that could be judged, where the largest is, and the alarms."""
    judged = [row for row in rows if row.status != "INCONCLUSIVE"]
    found: dict[str, Any] = {"nodes": len(rows)}
    for metric in METRICS:
        values = sorted(getattr(row, metric) for row in judged)
        found[metric] = {name: quantile(values, share) for name, share in QUANTILES.items()} if values else {}
        worst = max(judged, key=lambda row: getattr(row, metric), default=None)
        if worst is not None:
            found[metric] |= {"max": getattr(worst, metric), "at": f"{worst.model} {worst.node}"}
    found["alarms"] = {status: sum(row.status == status for row in rows) for status in ALARMS}
    return found


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    return ordered[max(1, math.ceil(share * len(ordered))) - 1]


def grouped(rows: Sequence[Row], key: Callable[[Row], tuple[str, ...]]) -> Mapping[tuple[str, ...], list[Row]]:
    """Rows by key, in the order in which the keys come first."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def to_json(rows: Sequence[Row]) -> str:
    """Quantiles of each port, stage, dtype and model, and the worst nodes."""
    by_model = grouped(rows, lambda row: (row.port, row.stage, row.dtype, row.model))
    names = ("port", "stage", "dtype", "model")
    document = {
        "runs": [list(each) for each in grouped(rows, lambda row: (row.device, row.versions, row.commit))],
        "quantiles": [dict(zip(names, key, strict=True)) | summarize(group) for key, group in by_model.items()],
        "worst": [vars(row) for row in worst_rows(rows)],
    }
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def worst_rows(rows: Sequence[Row]) -> list[Row]:
    """The nodes with the largest ρ or ρ_tok that could be judged."""
    judged = [row for row in rows if row.status != "INCONCLUSIVE"]
    return sorted(judged, key=lambda row: -max(row.rho, row.rho_tok))[:WORST]


def to_markdown(rows: Sequence[Row]) -> str:
    """Two tables: the ports, and the worst nodes."""
    lines = [f"{len(rows)} nodes of {len({row.model for row in rows})} models.", ""]
    for device, versions, commit in grouped(rows, lambda row: (row.device, row.versions, row.commit)):
        lines += [f"Measured on {device} with {versions}, commit {commit}.", ""]
    head = ["port", "stage", "dtype", "nodes"]
    for symbol in ("ρ", "ρ_tok"):
        head += [f"{symbol} {name}" for name in QUANTILES] + [f"{symbol} max", "at"]
    lines += _aligned([[*head, *ALARMS], *_port_rows(rows)])
    lines += ["", f"The {WORST} nodes with the largest ρ or ρ_tok:", ""]
    worst = []
    for row in worst_rows(rows):
        numbers = (f"{row.rho:.2f}", f"{row.rho_tok:.2f}", f"{row.e_ref:.1e}")
        worst.append([row.port, row.dtype, row.model, row.node, row.kind, *numbers, row.status])
    lines += _aligned([["port", "dtype", "model", "node", "kind", "ρ", "ρ_tok", "e_ref", "status"], *worst])
    return "\n".join(lines) + "\n"


def _port_rows(rows: Sequence[Row]) -> Iterator[list[str]]:
    for key, group in grouped(rows, lambda row: (row.port, row.stage, row.dtype)).items():
        found = summarize(group)
        cells = [*key, str(found["nodes"])]
        for metric in METRICS:
            cells += [f"{value:.2f}" if isinstance(value, float) else value for value in found[metric].values()]
        yield [*cells, *map(str, found["alarms"].values())]


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table whose columns are aligned as text too."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in table]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    return [lines[0], f"|{'|'.join('-' * (width + 2) for width in widths)}|", *lines[1:]]
