"""Reports in one picture, as a page, as a PNG and in a notebook, each opened in Chromium."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from porter.errors import UsageError
from porter.reports import photograph
from porter.reports.overlay import overlay, report_labels
from porter.reports.photograph import find_browser
from porter.reports.poster import to_poster
from tests.reports import synthetic
from tests.reports.browser import Opened, browser, until


def three():
    failing = synthetic.failing()
    return [synthetic.passing(), failing, replace(failing, overrides=("block.mlp.act=gelu",))]


def test_each_report_has_its_curves_in_a_colour_of_its_own() -> None:
    reports = three()
    figure = overlay(reports)
    curves = [trace for trace in figure.data if trace.yaxis != "y2"]
    stages = [stage for report in reports for stage in report.stages if stage.name in ("semantics", "precision")]
    assert [trace.name.rpartition(", ")[2] for trace in curves] == [stage.dtype for stage in stages]
    colours = {
        label: {t.line.color for t in curves if t.name.startswith(f"{label}, ")} for label in report_labels(reports)
    }
    assert all(len(found) == 1 for found in colours.values())
    assert len({next(iter(found)) for found in colours.values()}) == 3


def test_labels_tell_reports_apart() -> None:
    labels = report_labels([*three(), synthetic.passing()])
    assert len(set(labels)) == 4


def test_layers_are_those_of_all_reports() -> None:
    shallow = replace(synthetic.failing(), nodes=tuple(n for n in synthetic.failing().nodes if n.layer in (0, 1)))
    figure = overlay([shallow, synthetic.passing()])
    assert list(figure.layout.xaxis.categoryarray) == ["embed", *map(str, range(synthetic.NUM_LAYERS)), "final"]


@pytest.mark.parametrize("count", [1, 3])
def test_the_page_draws_all_its_figures_offline(tmp_path: Path, count: int) -> None:
    path = tmp_path / "page.html"
    path.write_text(to_poster(three()[:count], interactive=True), encoding="utf-8")
    with browser() as running:
        opened = Opened(running, path)
        places = opened.page.locator(".figure").count()
        assert places == {1: 2, 3: 1}[count]
        assert opened.complaints == [] and [url for url in opened.asked if not url.startswith(("file:", "data:"))] == []
        if count == 3:
            assert opened.page.locator("#stages tbody tr").count() == 3
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 1280
        opened.close()


def test_a_photograph_is_the_whole_page_and_no_more(tmp_path: Path) -> None:
    picture = photograph.photograph(to_poster(three(), interactive=False))
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", picture[16:24])
    assert width == photograph.WIDTH * 3 // 2 and 1200 < height < 4000


def test_without_a_browser_the_error_says_which_and_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(photograph, "PLACES", ())
    with pytest.raises(UsageError, match=r"there is no chromium.* on PATH\n.*\n.*apt-get install chromium.*--html"):
        find_browser()


def test_a_browser_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photograph, "find_browser", lambda: "/bin/false")
    with pytest.raises(UsageError, match="/bin/false could not draw the page"):
        photograph.photograph("<body></body>")


def test_a_report_shows_itself_in_a_notebook(tmp_path: Path) -> None:
    report = synthetic.failing()
    shown = report._repr_html_()
    assert shown.partition("<iframe")[0].count(report.first_fail.name) >= 1  # where frames are not shown
    path = tmp_path / "cell.html"
    path.write_text(f"<!doctype html><meta charset='utf-8'><title>cell</title><div>{shown}</div>", encoding="utf-8")
    with browser() as running:
        page = running.new_context().new_page()
        complaints = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(path.as_uri())
        inner = "document.querySelector('iframe').contentDocument"
        until(page, f"{inner} && [...{inner}.querySelectorAll('.figure:not(.hidden)')].every(e => e._fullLayout)"
                    f" && {inner}.querySelectorAll('.figure').length > 3")  # fmt: skip
        assert complaints == [] and report.verdict in page.frames[1].locator("h1").inner_text()
