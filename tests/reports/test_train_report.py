"""Training results in the terminal and as a page."""

import json
import re
from io import StringIO

from rich.console import Console

from porter.reports.train_report import training_bars, training_to_html
from porter.reports.train_table import render_training, sentence
from tests.bench.training.fakes import synthetic_training

RUN = synthetic_training()
FIRST = RUN.rows_of(RUN.cases[0].name)


def test_the_page_is_whole_and_its_texts_are_escaped() -> None:
    page = re.sub(r"<script>\s*/\*\*.*?</script>", "", training_to_html(RUN), count=1, flags=re.DOTALL)
    assert "https://" not in page
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert set(re.findall(r'<div id="([^"]+)" class="figure', page)) == set(figures) == {
        "speed-0", "peak-0", "speed-1", "peak-1",
    }  # fmt: skip
    assert "Unsupported: &lt;a&gt; &amp; b" in page
    assert "porter is ahead: 1.09 × liger, the best peer; peak 27.5 GB beside Liger" in page


def test_bars_are_the_rows_and_who_has_no_number_says_why() -> None:
    speed, peak = (training_bars(FIRST, what) for what in ("speed", "peak"))
    assert [trace.y[0] for trace in speed.data] == [33380, 34367, 36860, 40100, 0]
    assert speed.data[-1].text[0] == "failed"
    assert [round(trace.y[0], 1) for trace in peak.data][:4] == [43.1, 33.6, 27.7, 27.5]


def test_sentences() -> None:
    assert sentence(FIRST).startswith("porter is ahead: 1.09 × liger")
    assert sentence(RUN.rows_of(RUN.cases[1].name)) == "out of memory: hf"
    assert sentence([row for row in FIRST if row.trainer.startswith("porter")]) == "porter runs, and no peer does"
    assert sentence([]) == "nobody ran"


def test_the_terminal_says_what_was_wrong() -> None:
    console = Console(width=200, record=True, file=StringIO())
    render_training(RUN, console)
    text = console.export_text()
    assert "wrong; the loss of step 1 is 3, liger's 4" in text
    assert "40,100" in text
    assert "out of memory" in text
