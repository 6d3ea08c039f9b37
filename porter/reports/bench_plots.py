"""The pictures of a benchmark: a dot with its whiskers for each provider at each case, and the card's roofline.

A provider keeps its colour and its shape everywhere, so that the shape alone tells it; the colours are Okabe and
Ito's, which most colour-blind readers can tell apart, on a light page and on a dark one.
"""

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go  # type: ignore[import-untyped]

from porter.bench.cases import SHORT
from porter.bench.providers.table import PORTER, PROVIDERS
from porter.bench.ranking import TIMES, Board, boards
from porter.bench.results import BenchRun, Metric, Record
from porter.reports.bench_rows import format_megabytes, format_ms
from porter.reports.canvas import AXIS, GRID, INK, blank_figure

MARKS: dict[str, tuple[str, str]] = {  # colour and shape
    "eager": ("#8b96a3", "circle-open"),
    "compile": ("#56b4e9", "diamond"),
    "torch": ("#cc79a7", "square"),
    "liger": ("#e69f00", "triangle-up"),
    "liger-chunk8": ("#e69f00", "triangle-up-open"),
    "cce": ("#a07be0", "x"),
    "quack": ("#009e73", "triangle-down"),
    "quack-base": ("#009e73", "triangle-down-open"),
    "porter": ("#e0561c", "circle"),
    "porter-lean": ("#e0561c", "circle-open"),
}
ROW_HEIGHT, HEAD, LANES = 52, 104, 0.68  # pixels; the share of a row that its dots spread over
KINDS = {"read": ("#56b4e9", "triangle-up"), "triad": ("#009e73", "square"), "copy": ("#e69f00", "circle")}
ONE_TWO_FIVE = [step * 10.0**power for power in range(-5, 7) for step in (1, 2, 5)]
LOG_TICKS = {"tickvals": ONE_TWO_FIVE, "ticktext": [f"{each:,.10g}" for each in ONE_TWO_FIVE]}
MULTIPLES = (1, 1.2, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100)
OVER_FLOOR = {"tickvals": MULTIPLES, "ticktext": ["floor", *(f"{each:g}×" for each in MULTIPLES[1:])]}
UNITS: dict[Metric, str] = {
    "forward_backward_ms": "forward + backward, times what the card allows (log)",
    "forward_ms": "forward, times what the card allows (log)",
    "host_ms": "host, forward + backward, ms (log)",
    "peak_bytes": "peak memory above the inputs, MB (log)",
}


def has_points(run: BenchRun, op: str, metric: Metric) -> bool:
    """Whether there is anything to draw."""
    return any(record for board in _group(run, op) for record in board.ranked(metric))


def dots(run: BenchRun, op: str, metric: Metric) -> go.Figure:
    """Every right provider at every case of an op: a time over its floor where it has one, else the number itself."""
    group = [board for board in _group(run, op) if board.ranked(metric)]
    names = [
        name for name in PROVIDERS if any(name == each.provider for board in group for each in board.ranked(metric))
    ]
    floors = {floor.case: getattr(floor, metric, None) for floor in run.floors}
    figure = blank_figure(HEAD + ROW_HEIGHT * len(group))
    for lane, name in enumerate(names):
        offset = LANES * ((lane + 0.5) / len(names) - 0.5)
        points = [
            (row + offset, board, board.records[name, metric], floors.get(board.case.name))
            for row, board in enumerate(group)
            if board.is_right(name) and (name, metric) in board.records
        ]
        _add_dots(figure, name, points)
    labels = [f"{board.case.size} {SHORT[board.case.dtype]}" for board in group]
    over_floor = metric in ("forward_ms", "forward_backward_ms")
    figure.update_layout(
        xaxis={**AXIS, "type": "log", "title": UNITS[metric], **(OVER_FLOOR if over_floor else LOG_TICKS)},
        yaxis={
            **AXIS, "range": [len(group) - 0.5, -0.5], "tickvals": list(range(len(group))), "ticktext": labels,
            "showgrid": False,
        },
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "itemsizing": "constant"},
        hovermode="closest",
    )  # fmt: skip
    if over_floor:
        line = {"color": INK, "width": 1.5, "dash": "dash"}
        figure.add_shape(type="line", x0=1, x1=1, yref="paper", y0=0, y1=1, line=line, layer="below")
    for row in range(1, len(group)):
        line = {"color": GRID, "width": 1}
        figure.add_shape(type="line", xref="paper", x0=0, x1=1, y0=row - 0.5, y1=row - 0.5, line=line, layer="below")
    return figure


def _group(run: BenchRun, op: str) -> list[Board]:
    return [board for board in boards(run) if board.case.op == op]


def _add_dots(figure: go.Figure, name: str, points: Sequence[tuple[float, Board, Record, float | None]]) -> None:
    colour, symbol = MARKS.get(name, (INK, "star"))
    units = [_unit(record, floor) for _, _, record, floor in points]
    values = [record.value or 0.0 for _, _, record, _ in points]
    spread = [
        (record.low or value, record.high or value) for (_, _, record, _), value in zip(points, values, strict=True)
    ]
    figure.add_scatter(
        x=[value / unit for value, unit in zip(values, units, strict=True)],
        y=[place for place, *_ in points],
        error_x={
            "array": [(high - value) / unit for (_, high), value, unit in zip(spread, values, units, strict=True)],
            "arrayminus": [(value - low) / unit for (low, _), value, unit in zip(spread, values, units, strict=True)],
            "visible": any(record.runs for _, _, record, _ in points),  # memory has no spread
            "thickness": 1.2,
            "width": 3,
        },
        text=[_hover(board, record, floor) for _, board, record, floor in points],
        hovertemplate="%{text}<extra></extra>",
        name=name,
        mode="markers",
        marker={
            "color": colour,
            "symbol": symbol,
            "size": 13 if name == PORTER else 10,
            "opacity": 1,
            "line": {"width": 2 if symbol.endswith("-open") else 0, "color": colour},
        },
    )


def _unit(record: Record, floor: float | None) -> float:
    """What a dot's number is divided by."""
    return floor or (1e6 if record.metric == "peak_bytes" else 1.0)


def _hover(board: Board, record: Record, floor: float | None) -> str:
    value = record.value or 0.0
    if record.metric == "peak_bytes":
        said = [f"{format_megabytes(value)} MB above the inputs"]
    else:
        spread = f"{format_ms(record.low)} to {format_ms(record.high)}"
        said = [f"{format_ms(value)} ms, 20 to 80 % of {record.runs} runs: {spread}"]
    if floor:
        said.append(f"{floor / value:.0%} of what the card allows, {format_ms(floor)} ms")
    error = board.records.get((record.provider, "error"))
    if error is not None and error.value is not None:
        said.append(f"worst relative error {error.value:.1e}: {error.note}")
    return "<br>".join([f"<b>{escape(record.provider)}</b>", escape(board.case.name), *map(escape, said)])


def roofline(run: BenchRun) -> go.Figure:
    """Bandwidth of the card against the size of the traffic."""
    figure = blank_figure(360)
    for kind, (colour, symbol) in KINDS.items():
        rates = [rate for rate in run.rates if rate.kind == kind]
        figure.add_scatter(
            x=[rate.size / 1e6 for rate in rates],
            y=[rate.per_second / 1e12 for rate in rates],
            text=[f"<b>{kind}</b><br>{rate.size / 1e6:,.0f} MB in {format_ms(rate.time_ms)} ms" for rate in rates],
            hovertemplate="%{text}<br>%{y:.2f} TB/s<extra></extra>",
            name=kind,
            mode="lines+markers",
            line={"color": colour, "width": 2.2},
            marker={"color": colour, "symbol": symbol, "size": 8},
        )
    figure.update_layout(
        xaxis={**AXIS, "type": "log", "title": "read and written together, MB (log)", "dtick": 1},
        yaxis={**AXIS, "title": "TB/s", "rangemode": "tozero"},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        hovermode="closest",
    )
    return figure


TABS: dict[Metric, str] = {**TIMES, "peak_bytes": "memory"}
