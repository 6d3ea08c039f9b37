"""The behaviour stage in the page, the terminal, the JSON and the sentence."""

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from porter.comparison.report import Behaviour, DiffReport, Stage
from porter.comparison.sentence import _PATHS, sentence
from porter.comparison.verdicts import all_limits, conclude
from porter.reports import from_json, to_json
from porter.reports.behaviour_table import behaviour_table
from porter.reports.html import to_html
from porter.reports.json_report import to_text
from porter.reports.terminal import render
from tests.reports import synthetic

CHECKS = (
    Behaviour("decode", "float32", "PASS", 0.98, 4.0, "45 at once, then 3 one at a time", "layers.1.keys"),
    Behaviour(
        "packed", "float32", "FAIL", 48_000.0, 4.0, "documents <of> 23 and 23 tokens", "layers.0.resid_post, token 30"
    ),
    Behaviour("greedy", "bfloat16", "NOT_COMPARED", 0.0, 4.0, "7,000,000,000 parameters are more"),
)  # fmt: skip


def with_behaviour(*checks: Behaviour) -> DiffReport:
    return replace(synthetic.passing(), behaviour=checks)


def terminal(report: DiffReport) -> str:
    stream = io.StringIO()
    render(report, Console(file=stream, width=120))
    return stream.getvalue()


def test_the_table_has_a_row_a_check_and_no_numbers_where_nothing_was_compared() -> None:
    html = behaviour_table(with_behaviour(*CHECKS))
    assert html.count("<tr>") == 4 and html.count("≤ 4") == 2
    assert "documents &lt;of&gt; 23" in html and "4.8e4" in html and "NOT COMPARED" in html
    assert behaviour_table(with_behaviour()).startswith("<p")


def test_the_page_shows_it() -> None:
    page = to_html(with_behaviour(*CHECKS))
    assert "Behaviour: the tokens fed in other ways" in page and "then 3 one at a time" in page


def test_the_terminal_names_what_did_not_pass() -> None:
    text = terminal(with_behaviour(*CHECKS))
    assert "FAIL packed float32: documents <of> 23 and 23 tokens (layers.0.resid_post, token 30)" in text
    assert "NOT COMPARED greedy bfloat16: 7,000,000,000 parameters are more" in text and "decode" not in text
    assert terminal(with_behaviour(CHECKS[0])) == terminal(with_behaviour())


def test_json_keeps_it_and_older_reports_have_none() -> None:
    report = with_behaviour(*CHECKS, replace(CHECKS[1], measured=math.inf))
    assert from_json(to_json(report)) == report and '"measured": "inf"' in to_text(report)
    older = to_json(report)
    del older["behaviour"]
    assert from_json(older).behaviour == ()


def test_a_failing_check_is_the_sentence_where_no_node_fails() -> None:
    said = sentence(with_behaviour(*CHECKS))
    assert said.startswith(
        "FAIL at packed (behaviour, float32): documents <of> 23 and 23 tokens; look at positions and"
    )
    assert said.endswith(f"; next: porter diff {synthetic.passing().name} --stage behaviour")
    nodes_first = replace(synthetic.failing(), behaviour=CHECKS)
    assert sentence(nodes_first) == sentence(synthetic.failing())


@pytest.mark.parametrize(
    ("status", "wanted"), [("FAIL", ("FAIL", 1)), ("WARN", ("WARN", 0)), ("NOT_COMPARED", ("PASS", 0))]
)
def test_the_stage_counts_for_the_verdict(status: str, wanted: tuple[str, int]) -> None:
    stages = [
        Stage("semantics", "float32", "PASS", 9, None, ""),
        Stage("behaviour", "float32", status, 8, "packed", ""),
    ]
    assert conclude(stages, [], 0, ()) == wanted


def test_every_check_says_where_to_look() -> None:
    documented = Behaviour.__doc__.partition("name: ")[2].partition(".\n")[0]
    assert [name.strip() for name in documented.split(",")] == list(_PATHS)


def test_limits_of_all_stages_stand_side_by_side() -> None:
    assert all_limits()["float32"].keys() == {"rho", "rho_grad", "route", "kl"}
    assert all_limits()["bfloat16"].keys() == {"rho", "rho_tok", "rho_grad", "route", "kl"}
