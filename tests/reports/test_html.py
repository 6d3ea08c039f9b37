"""The page: one file, offline, and nothing in a report can break it."""

import json
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser

import pytest
from plotly.offline import get_plotlyjs

from porter.reports.html import to_html
from tests.reports import synthetic

PANELS = ("stages", "curve", "nodes", "tokens", "offenders", "preflight", "axes", "logits", "environment")


class Page(HTMLParser):
    """What a browser would find: elements with their attributes, and the text of each script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs) -> None:
        self.inside = tag
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def figures(self) -> dict:
        return json.loads(self.scripts[1])


@cache
def page_of(name: str) -> str:
    return to_html(synthetic.ALL[name]())


def own(html: str) -> str:
    """The page without plotly's own script, which is 4.8 MB and not ours."""
    return html.replace(get_plotlyjs(), "")


@pytest.fixture(scope="module", params=list(synthetic.ALL))
def case(request):
    return synthetic.ALL[request.param](), page_of(request.param)


def test_plotly_is_inside_once(case) -> None:
    _, html = case
    assert html.count(get_plotlyjs()) == 1
    assert len(Page(own(html)).scripts) == 3


def test_nothing_is_asked_for_from_the_network(case) -> None:
    _, html = case
    for tag, attributes in Page(own(html)).elements:
        assert tag not in ("iframe", "object", "embed", "img", "base"), tag
        for name in ("src", "href", "action", "srcset", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith("data:"), (tag, name, value)
    style = re.search(r"<style>(.*?)</style>", own(html), re.S)[1]
    assert "url(" not in style and "@import" not in style
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(", own(html))
    assert "default-src 'none'" in html


def test_all_panels_are_present(case) -> None:
    _, html = case
    ids = [attributes.get("id") for _, attributes in Page(own(html)).elements]
    assert [each for each in PANELS if each not in ids] == []


def test_every_figure_has_a_place(case) -> None:
    _, html = case
    page = Page(own(html))
    places = [
        attributes["id"] for _, attributes in page.elements if "figure" in (attributes.get("class") or "").split()
    ]
    assert places == list(page.figures)


def test_verdict_and_coverage_are_said(case) -> None:
    report, html = case
    text = Page(own(html)).text
    assert " ".join(report.sentence.removeprefix(report.verdict).lstrip(":").split()) in text
    assert f"nodes compared {report.compared} of {report.declared}" in text
    assert report.command in text and report.spec_hash in text


def test_no_placeholder_is_left(case) -> None:
    _, html = case
    assert not re.search(r"^\s*\$\w+\s*$", own(html), re.M)


def test_hostile_text_is_text() -> None:
    html = own(page_of("hostile"))
    page = Page(own(html))
    assert "alert(1)" not in "".join(page.scripts[:1]) + page.scripts[2]
    assert "<" not in page.scripts[1]
    assert synthetic.HOSTILE in page.text
    assert not any(tag in ("b", "i", "u") and "x.test" in str(attributes) for tag, attributes in page.elements)
    assert "</script><script>alert" not in html
    assert "\ud800" not in json.dumps(page.figures, ensure_ascii=False)
    html.encode("utf-8", "replace")


def test_the_failing_stage_is_shown_first() -> None:
    page = Page(own(page_of("failing")))
    selected = [
        each["data-shows"] for tag, each in page.elements if tag == "button" and each["aria-selected"] == "true"
    ]
    assert selected == ["nodes-2", "tokens-0"]  # exact, exact, semantics; semantics


def test_offenders_are_listed_and_the_rest_folded() -> None:
    text = Page(own(page_of("failing"))).text
    assert "all 216 nodes" in text and "ρ 924 > 10" in text


def test_axes_not_seen_come_first_with_the_reason() -> None:
    text = Page(own(page_of("passing"))).text
    assert "no logit passes 30 on this prompt" in text
    assert text.index("final.softcap null") < text.index("block.mlp.act gelu_tanh")


def test_torch_is_not_imported() -> None:
    code = (
        "import sys, porter.reports as r; r.to_json, r.render, r.write_report, r.from_json; "
        "print([m for m in ('torch', 'transformers', 'pandas') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_import_alone_is_cheap() -> None:
    code = "import sys, porter.reports; print([m for m in ('plotly', 'rich', 'numpy') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
