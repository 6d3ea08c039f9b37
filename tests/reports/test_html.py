"""The page: one file, offline, and nothing in a report can break it."""

import gzip
import hashlib
import json
import re
import subprocess
import sys
from base64 import b64decode
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pytest
from plotly.offline import get_plotlyjs_version

from porter.reports.html import to_html
from porter.reports.page import plotly_script, plotly_source
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
    """The page without plotly's own script, which is 0.7 MB and not ours."""
    return html.replace(plotly_script(), "")


@pytest.fixture(scope="module", params=list(synthetic.ALL))
def case(request):
    return synthetic.ALL[request.param](), page_of(request.param)


def test_plotly_is_inside_once(case) -> None:
    _, html = case
    assert html.count(plotly_script()) == 1
    assert len(Page(own(html)).scripts) == 3


def test_plotly_is_the_official_bundle_and_of_the_version_that_plotly_py_speaks() -> None:
    # plotly.js-cartesian-dist-min on npm; to take a newer one, replace the file and this hash.
    digest = hashlib.sha256(plotly_source().encode()).hexdigest()
    assert digest == "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
    assert "plotly.js (cartesian - minified) v4.1.1" in plotly_source()[:100]
    (packed,) = re.findall(r'atob\("([^"]+)"\)', plotly_script())
    assert gzip.decompress(b64decode(packed)).decode() == plotly_source() and len(plotly_script()) < 700_000
    assert get_plotlyjs_version().split(".")[0] in ("3", "4")  # of plotly 6 and 7: they write figures alike


def test_a_report_of_28_layers_is_under_4_megabytes() -> None:
    report = synthetic.failing()
    deep = [node for node in report.nodes if node.layer is not None and node.layer < 10]
    more = tuple(replace(node, name=node.name.replace(".", f".{node.layer + 18}.", 1).replace(f".{node.layer}.", ".", 1)) for node in deep)  # fmt: skip  # noqa: E501
    deepened = replace(report, num_layers=28, nodes=report.nodes + more)
    assert {node.layer for node in deepened.nodes if node.layer is not None} == set(range(28))
    assert len(to_html(deepened).encode()) < 4e6


def test_nothing_is_asked_for_from_the_network(case) -> None:
    _, html = case
    for tag, attributes in Page(own(html)).elements:
        assert tag not in ("iframe", "object", "embed", "img", "base"), tag
        for name in ("src", "href", "action", "srcset", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), (tag, name, value)
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
    assert sorted(places) == sorted(page.figures) and len(set(places)) == len(places)


def test_verdict_and_coverage_are_said(case) -> None:
    report, html = case
    text = Page(own(html)).text
    said, _, following = report.sentence.removeprefix(report.verdict).lstrip(":").partition("; next: ")
    following = report.explanations[-1].sentence if report.explanations else following
    assert " ".join(said.split()) in text and following in text
    assert f"nodes compared {report.compared} of {report.declared}" in text
    assert report.command in text and report.spec_hash in text


def test_a_run_that_stopped_early_says_so() -> None:
    report = synthetic.failing()
    few = replace(report, nodes=tuple(node for node in report.nodes if node.layer in (0, 1)))
    assert "2 of 18 layers were compared." in Page(own(to_html(few))).text
    assert "layers were compared" not in Page(own(page_of("failing"))).text


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
    assert selected == ["nodes-2", "elements-9", "tokens-0", "margins-1"]  # of nodes exact, exact, semantics


def test_offenders_are_listed_and_the_rest_folded() -> None:
    text = Page(own(page_of("failing"))).text
    assert "all 216 nodes" in text and "ρ 924 > 10" in text


def test_the_worst_node_is_text_without_a_script() -> None:
    html = own(page_of("failing"))
    cards = re.findall(r'<div class="pinned"[^>]*>(.*?)</div>', html)
    assert "<b>layers.0.mlp.act</b>" in cards[2] and "FAIL: ρ 924 &gt; 10" in cards[2]
    assert "worst token 392 &#x27;.&#x27;" in cards[2] and "<b>token " in cards[3]


def test_most_likely_words_are_listed_with_another_word_first() -> None:
    report = synthetic.failing()
    logits = report.logits[1]
    odd = replace(logits.at[7], port=((424242, 99.0), *logits.at[7].port[1:]))
    changed = replace(logits, at=(*logits.at[:7], odd, *logits.at[8:]))
    text = Page(own(to_html(replace(report, logits=(report.logits[0], changed))))).text
    assert f"reference port {odd.token} ✕" in text and "#424242" in text and "1 of 64" in text


def test_checks_are_listed_with_what_they_compared() -> None:
    text = Page(own(page_of("failing"))).text
    assert "weights.ledger: 237 rows" in text and "model.embed.out.weight" in text and "rope_scaling null –" in text
    assert "ids of the prompt, the same for both sides: prose, 640 tokens" in text


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
