"""The pages of benchmarks: whole, offline, and true to their numbers."""

import json
import re
from dataclasses import replace

import pytest

from porter.bench.cases import Case
from porter.bench.results import Record
from porter.reports.bench_html import bench_to_html
from porter.reports.bench_plots import MARKS, dots, has_points, roofline
from porter.reports.memory_report import memory_curves, memory_to_html
from porter.reports.memory_table import points_of
from tests.bench.synthetic import synthetic_memory, synthetic_run, with_value

RUN, MEMORY = synthetic_run(), synthetic_memory()
PAGES = {"kernels": bench_to_html(RUN), "memory": memory_to_html(MEMORY)}


def without_plotly(page: str) -> str:
    """The page without the library's script, which mentions many an address."""
    return re.sub(r"<script>\s*/\*\*.*?</script>", "", page, count=1, flags=re.DOTALL)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_and_asks_for_nothing(name: str) -> None:
    page = without_plotly(PAGES[name])
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page
    assert "$" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    places = set(re.findall(r'<div id="([^"]+)" class="figure', page))
    assert places == set(figures)
    assert set(re.findall(r'data-shows="([^"]+)"', page)) <= places
    assert "default-src 'none'" in page.replace("&#x27;", "'")


def test_a_dot_is_a_time_over_its_floor_with_its_whiskers() -> None:
    figure = dots(RUN, "rms_norm", "forward_backward_ms")
    trace = next(trace for trace in figure.data if trace.name == "porter")
    record = next(r for r in RUN.records if (r.provider, r.metric) == ("porter", "forward_backward_ms"))
    floor = RUN.floors[0].forward_backward_ms
    assert trace.x[0] == pytest.approx(record.value / floor)
    assert trace.x[0] + trace.error_x.array[0] == pytest.approx(record.high / floor)
    assert trace.x[0] - trace.error_x.arrayminus[0] == pytest.approx(record.low / floor)
    assert "of what the card allows" in trace.text[0] and "worst relative error 3.1e-03" in trace.text[0]
    assert [shape.x0 for shape in figure.layout.shapes if shape.type == "line" and shape.x0 == shape.x1] == [1]


def test_the_wrong_are_not_drawn() -> None:
    figure = dots(RUN, "cross_entropy", "forward_backward_ms")
    counts = {trace.name: len(trace.x) for trace in figure.data}
    assert counts["liger"] == counts["porter"] - 1


def test_memory_is_in_megabytes_and_has_no_whiskers() -> None:
    trace = next(trace for trace in dots(RUN, "glu", "peak_bytes").data if trace.name == "porter")
    record = next(
        r for r in RUN.records if r.case.startswith("glu") and r.provider == "porter" and r.metric == "peak_bytes"
    )
    assert trace.x[0] == pytest.approx(record.value / 1e6) and trace.error_x.array[0] == 0


def test_shapes_alone_tell_providers_apart() -> None:
    symbols = [symbol for _, symbol in MARKS.values()]
    assert len(set(symbols) - {"circle-open"}) == len(symbols) - 2  # eager and porter-lean differ in colour and place
    assert not has_points(RUN, "rope", "host_ms") or dots(RUN, "rope", "host_ms").data


def test_the_banner_counts_and_names_what_is_worse() -> None:
    assert "porter is ahead at" in PAGES["kernels"] and "Nowhere is porter worse than eager" in PAGES["kernels"]
    page = bench_to_html(with_value(RUN, RUN.cases[0].name, "porter", "forward_ms", 99.0))
    assert "regressions: 1" in page and 'class="verdict warn"' in page
    assert "forward 99 ms, eager" in page and "holds the host longer" not in page
    small = next(case.name for case in RUN.cases if case.small and case.op == "rms_norm")
    page = bench_to_html(with_value(RUN, small, "porter", "host_ms", 5.0))
    assert "porter holds the host longer than eager in 1 small cases" in page and "host 5 ms, eager" in page


def test_text_of_a_peer_cannot_break_the_page() -> None:
    note = "<script>alert(1)</script>$title"
    records = (*RUN.records, Record(RUN.cases[0].name, "cce", "error", status="failed", note=note))
    assert note not in bench_to_html(replace(RUN, records=records))


def test_without_a_gpu_the_page_has_errors_alone() -> None:
    records = tuple(record for record in RUN.records if record.metric == "error")
    page = without_plotly(bench_to_html(replace(RUN, records=records, floors=(), rates=(), notes=("No GPU here",))))
    assert "No GPU here" in page and "Nothing was timed" in page and "3.1e-03" in page
    assert 'class="figure' not in page


def test_roofline_has_a_line_for_each_kind() -> None:
    figure = roofline(synthetic_run([Case("rms_norm", (8192, 2048))]))
    assert {trace.name for trace in figure.data} == {"copy", "triad", "read"}
    assert max(figure.data[0].y) == pytest.approx(4.69, rel=0.02)


def test_a_curve_marks_out_of_memory_above_all_else() -> None:
    points = points_of(MEMORY, (3072, 256000))
    naive = next(trace for trace in memory_curves(points, "peak").data if trace.name == "naive")
    assert naive.marker.symbol[-1] == "x" and naive.y[-1] == max(naive.y) and "out of memory" in naive.text[-1]
    time = memory_curves(points, "time")
    assert {trace.name for trace in time.data} == {"naive", "chunked", "fused", "fused, lean"}
