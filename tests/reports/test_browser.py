"""The pages as people meet them: opened from a disk in Chromium, by mouse and by keyboard, wide and narrow."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from porter.comparison.report import Stage
from porter.reports.bench_html import bench_to_html
from porter.reports.html import to_html
from tests.bench.synthetic import synthetic_run
from tests.reports import synthetic
from tests.reports.browser import Opened, browser, until

SIZES = [(1280, "light"), (390, "dark")]
NODES = "#nodes .figure:not(.hidden)"


def few_layers():
    """First-bad mode: the run ended at layer 1."""
    report = synthetic.failing()
    nodes = tuple(node for node in report.nodes if node.layer in (0, 1) or node.name == "embed.out")
    return replace(report, nodes=nodes, axes=(), logits=())


def several_prompts():
    """Two prompts of other lengths; each layer shows the one that it is worst for."""
    report = synthetic.failing()
    second = replace(report.prompts[0], label="code", length=5, ids=(1, 2, 3, 4, 5), tokens=("a", "b", "c", "d", "e"))
    nodes = tuple(
        replace(node, prompt=1, local=replace(node.local, token=2, tokens=node.local.tokens[:5]))
        if node.layer in (3, 4) and node.local
        else node
        for node in report.nodes
    )
    return replace(report, prompts=(report.prompts[0], second), nodes=nodes, logits=report.logits * 2)


def behaving():
    """Every check of the behaviour stage passed, and its row says which those are."""
    report = synthetic.passing()
    detail = "as in one forward pass: cache, decode, chunks, window, padding.left, padding.right, batch, packed, logits"
    return replace(report, stages=(*report.stages, Stage("behaviour", "float32", "PASS", 9, None, detail)))


REPORTS = {**synthetic.ALL, "behaving": behaving, "few": few_layers, "prompts": several_prompts}


@pytest.fixture(scope="module")
def running() -> Iterator:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    written = {}
    for name, make in REPORTS.items():
        written[name] = folder / f"{name}.html"
        written[name].write_bytes(to_html(make()).encode("utf-8", "replace"))
    written["bench"] = folder / "bench.html"
    written["bench"].write_text(bench_to_html(synthetic_run()), encoding="utf-8")
    return written


@pytest.fixture
def opened(running, pages) -> Iterator:
    windows = []

    def open_page(name: str, **options) -> Opened:
        windows.append(Opened(running, pages[name], **options))
        return windows[-1]

    yield open_page
    for window in windows:
        window.close()


@pytest.mark.parametrize("name", [*REPORTS, "bench"])
def test_a_page_asks_for_nothing_and_complains_of_nothing(opened, name: str) -> None:
    window = opened(name)
    asked = [url for url in window.asked if not url.startswith(("data:", "blob:"))]
    assert len(asked) == 1 and asked[0].startswith("file:") and asked[0].endswith(f"{name}.html")
    assert window.complaints == []


def test_a_network_request_would_be_noticed_and_is_refused(running, tmp_path: Path) -> None:
    page = tmp_path / "asking.html"
    script = "<script>fetch('http://127.0.0.1:9/x').catch(() => {})</script>"
    page.write_text(to_html(synthetic.inconclusive()).replace("</body>", f"{script}</body>"), encoding="utf-8")
    window = Opened(running, page)
    window.page.wait_for_timeout(200)
    assert any("Content Security Policy" in each for each in window.complaints)
    window.close()


@pytest.mark.parametrize("name", ["passing", "failing", "undecided", "inconclusive", "few"])
def test_verdict_and_worst_node_are_text_without_javascript(opened, name: str) -> None:
    report = REPORTS[name]()
    text = opened(name, script=False).page.locator("body").inner_text()
    said = report.sentence.removeprefix(report.verdict).lstrip(": ").partition("; next: ")[0]
    assert report.verdict in text and said in text
    assert f"odes compared {report.compared} of {report.declared}" in text
    bad = report.first_fail
    if bad is not None:
        assert bad.name in text and bad.reason in text


@pytest.mark.parametrize(("width", "scheme"), SIZES)
@pytest.mark.parametrize("name", ["passing", "failing", "few", "prompts", "undecided"])
def test_nothing_is_cut_off_and_nothing_overlaps(opened, name: str, width: int, scheme: str) -> None:
    page = opened(name, width=width, scheme=scheme).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = page.evaluate("""w => [...document.querySelectorAll('main *, header *')]
        .filter(e => !e.closest('.scroll') && !e.closest('svg') && e.getClientRects().length)
        .filter(e => e.getBoundingClientRect().right > w + 1 || e.getBoundingClientRect().left < -1)
        .map(e => e.tagName + '.' + e.className)""", width)  # fmt: skip
    assert wide == []
    assert page.evaluate(OVERLAPS) == []


@pytest.mark.parametrize("name", ["behaving", "failing"])
def test_on_a_wide_screen_the_table_of_stages_shows_all_its_columns(opened, name: str) -> None:
    page = opened(name).page
    hidden = page.evaluate("(() => { const e = document.querySelector('#stages .scroll');"
                           " return e.scrollWidth - e.clientWidth })()")  # fmt: skip
    assert hidden <= 1


# Words of one axis that lie on each other, and sections that do.
OVERLAPS = """() => {
  const found = [];
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  const check = (all, what) => all.forEach((one, i) => all.slice(i + 1).forEach(two => {
    if (meet(one.getBoundingClientRect(), two.getBoundingClientRect()))
      found.push(what + ': ' + one.textContent.trim().slice(0, 30) + ' | ' + two.textContent.trim().slice(0, 30));
  }));
  document.querySelectorAll('.figure:not(.hidden)').forEach(place => {
    for (const axis of ['xtick', 'ytick', 'y2tick', 'cbtick'])
      check([...place.querySelectorAll('.' + axis + ' text')], place.id + ' ' + axis);
    check([...place.querySelectorAll('.legendtext')], place.id + ' legend');
    check([...place.querySelectorAll('.annotation-text')], place.id + ' notes');
  });
  check([...document.querySelectorAll('main > section')], 'sections');
  const parts = 'main h2, main h3, .caption, .hint, .pinned, .figure:not(.hidden), .tabs';
  check([...document.querySelectorAll(parts)].filter(e => e.getClientRects().length), 'parts');
  return found;
}"""


def centre(page, column: str, row: str) -> list[float]:
    """Where a cell of the heatmap lies, by the names on its axes."""
    return page.evaluate(
        """([s, column, row]) => { const place = document.querySelector(s), at = (tick, name) =>
            [...place.querySelectorAll(tick + ' text')].find(e => e.textContent === name).getBoundingClientRect();
            const x = at('.xtick', column), y = at('.ytick', row);
            return [x.left + x.width / 2, y.top + y.height / 2] }""",
        [NODES, column, row],
    )


def test_hover_says_what_was_measured(opened) -> None:
    page = opened("failing").page
    place = page.locator(NODES)
    place.scroll_into_view_if_needed()
    box = centre(page, "4", "mlp.act")
    page.mouse.move(*box)
    page.wait_for_selector(f"{NODES} .hovertext")
    said = page.locator(f"{NODES} .hovertext").text_content() or ""
    node = next(n for n in synthetic.failing().of_stage("semantics") if n.name == "layers.4.mlp.act")
    assert "layers.4.mlp.act" in said and node.reason in said
    page.mouse.click(*box)
    assert page.locator("#nodes .pinned b").inner_text() == "layers.4.mlp.act"


def test_a_click_on_the_curve_goes_to_its_node(opened) -> None:
    page = opened("failing").page
    page.locator("#curves").scroll_into_view_if_needed()
    box = page.evaluate("""() => { const p = document.querySelector('#curves'), l = p._fullLayout;
        const trace = p._fullData.find(t => t.name === 'bf16 difference'), at = p.getBoundingClientRect();
        return [at.left + l.xaxis._offset + l.xaxis.l2p(7), at.top + l.yaxis._offset + l.yaxis.d2p(trace.y[7])] }""")
    page.mouse.move(*box)
    page.wait_for_selector("#curves .hovertext")
    page.mouse.click(*box)
    until(page, "document.querySelector('#nodes .pinned').dataset.at === 'layers.6.resid_post'")
    assert page.locator("#nodes [aria-selected=true]").inner_text().startswith("precision bf16")
    assert page.evaluate("document.activeElement.id") == "nodes-3"
    until(page, "Math.abs(document.querySelector('#nodes').getBoundingClientRect().top) < 5")


def pressed(page, *keys: str) -> str:
    for key in keys:
        page.keyboard.press(key)
    return page.evaluate("document.activeElement.closest('section').querySelector('.pinned').dataset.at || ''")


def test_tab_and_arrows_reach_every_kind_of_node(opened) -> None:
    page = opened("failing").page
    reached: list[str] = []
    for _ in range(150):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
        if page.evaluate("document.activeElement === document.body"):
            break  # past the last one
        seen = page.evaluate("""() => { const s = getComputedStyle(document.activeElement);
            return s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2 }""")
        assert seen, f"focus is not seen on {reached[-1]}"
    assert {"node", "curves", "nodes-2", "tokens-0"} <= set(reached)
    page.locator(NODES).focus()
    assert pressed(page, "ArrowRight") == "embed.out"
    page.locator("#nodes .cursor").wait_for(state="visible")
    assert pressed(page, "ArrowDown") == "embed.out"  # there is nothing below it
    page.locator("#stages a.node", has_text="layers.0.mlp.act").first.focus()
    page.keyboard.press("Enter")
    until(page, "document.querySelector('#nodes .pinned').dataset.at === 'layers.0.mlp.act'")


def test_arrows_walk_the_cells_of_the_heatmap(opened) -> None:
    page = opened("failing").page
    page.locator("#offenders a.node", has_text="layers.1.mlp.out").first.focus()
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.textContent") == "layers.1.mlp.act"
    page.keyboard.press("Enter")
    until(page, "document.activeElement.id === 'nodes-2'")
    assert pressed(page, "ArrowRight", "ArrowRight") == "layers.3.mlp.act"
    assert pressed(page, "ArrowDown") == "layers.3.mlp.out"
    assert pressed(page, "End") == "layers.17.mlp.out"
    assert pressed(page, "ArrowRight") == "layers.17.mlp.out"
    assert pressed(page, "Home") == "layers.0.mlp.out"
    assert pressed(page, "ArrowUp", "ArrowLeft") == "layers.0.mlp.act"
    page.keyboard.press("Escape")
    assert page.locator("#nodes .cursor").count() == 0


def wait_until_it_stands(page) -> None:
    """Until the page has scrolled to where it goes."""
    before = None
    while (now := page.evaluate("scrollY")) != before:
        before = now
        page.wait_for_timeout(300)


def test_the_cursor_lies_on_its_cell(opened) -> None:
    page = opened("failing").page
    page.locator("#offenders a.node", has_text="layers.2.mlp.act").first.press("Enter")
    page.locator("#nodes .cursor").wait_for(state="visible")
    wait_until_it_stands(page)
    x, y = centre(page, "2", "mlp.act")
    ring = page.locator("#nodes .cursor").bounding_box()
    far = math.hypot(ring["x"] + ring["width"] / 2 - x, ring["y"] + ring["height"] / 2 - y)
    assert far < 3


def test_tokens_by_keyboard_say_their_word(opened) -> None:
    page = opened("failing").page
    page.locator("#tokens-0").focus()
    assert pressed(page, "ArrowDown", "ArrowDown", "ArrowRight").startswith("token 1")
    assert pressed(page, "PageDown").startswith("token 11")
    said = page.locator("#tokens .pinned").inner_text()
    assert "layer 1" in said and "ρ_tok" in said
    word = synthetic.failing().prompts[0].tokens[11]
    assert repr(word)[1:-1].strip() in said


def test_a_token_of_several_prompts_says_which(opened) -> None:
    page = opened("prompts").page
    page.locator("#tokens-0").focus()
    assert pressed(page, "ArrowDown") == "token 0 &lt;bos&gt; of prompt 1"
    assert pressed(page, "ArrowDown", "ArrowDown", "ArrowDown") == "token 0 a of prompt 2"


def test_tabs_by_keyboard(opened) -> None:
    page = opened("failing").page
    page.locator("#nodes [aria-selected=true]").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.shows") == "nodes-3"
    assert page.locator("#nodes-3").is_visible() and not page.locator("#nodes-2").is_visible()
    until(page, "document.querySelector('#nodes-3')._fullLayout")


def test_pictures_fit_again_when_the_window_changes(opened) -> None:
    window = opened("failing", width=1280)
    window.page.set_viewport_size({"width": 390, "height": 800})
    until(window.page, "document.querySelector('#curves')._fullLayout.width < 390")
    assert window.page.evaluate("document.documentElement.scrollWidth") <= 390
    signs = window.page.evaluate("s => [...new Set(document.querySelector(s).data.at(-2).text)]", NODES)
    assert signs in ([], ["✕"]) and window.complaints == []


def test_ink_follows_the_colour_scheme(opened) -> None:
    page = opened("passing", scheme="light").page
    ink = "document.querySelector('#curves')._fullLayout.font.color"
    light = page.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    until(page, f"{ink} !== '{light}'")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 29)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(opened, scheme: str) -> None:
    page = opened("failing", scheme=scheme).page
    low = page.evaluate("""() => {
      const channel = c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
      const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
      const parts = (colour, under) => { canvas.fillStyle = under; canvas.fillRect(0, 0, 1, 1);
        canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
      const light = p => 0.2126 * channel(p[0]) + 0.7152 * channel(p[1]) + 0.0722 * channel(p[2]);
      const ground = e => {
        const all = [];
        for (let a = e; a; a = a.parentElement) all.unshift(getComputedStyle(a).backgroundColor);
        return all.reduce((under, over) => `rgb(${parts(over, under).slice(0, 3)})`, 'white');
      };
      const ratio = e => {
        const g = ground(e), a = light(parts(getComputedStyle(e).color, g)), b = light(parts(g, 'white'));
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      };
      const words = 'h1, h2, h3, p, td, th, dd, dt, .card code, .badge, button, a, .pinned span';
      return [...document.querySelectorAll(words)].filter(e => e.getClientRects().length && e.textContent.trim())
        .filter(e => ratio(e) < 4.5).map(e => `${e.tagName}.${e.className} ${ratio(e).toFixed(2)}`);
    }""")  # fmt: skip
    assert low == []
