"""The terminal: 80 columns, no colour, and the sentence last."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from porter.reports import render
from porter.reports.html import to_html
from porter.reports.terminal import MOST_OFFENDERS, render_timings
from porter.reports.terminal_tables import render_axes, render_self_check
from tests.reports import synthetic

REPORTS = pytest.mark.parametrize("name", list(synthetic.ALL))


def shown(report, width: int = 80, **options) -> str:
    console = Console(file=io.StringIO(), width=width, **options)
    render(report, console)
    return console.file.getvalue()


@REPORTS
def test_last_line_is_the_sentence(name: str) -> None:
    report = synthetic.ALL[name]()
    text = shown(report)
    assert text.endswith("\n") and text.splitlines()[-1] == report.sentence


@REPORTS
def test_fits_80_columns_but_for_the_sentence(name: str) -> None:
    lines = shown(synthetic.ALL[name]()).splitlines()
    assert [line for line in lines[:-1] if len(line) > 80] == []


def test_piped_output_has_no_escapes() -> None:
    assert "\x1b" not in shown(synthetic.failing())


def test_no_color_keeps_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(synthetic.failing(), force_terminal=True)
    assert "\x1b[3" not in text and "FAIL" in text


def test_colour_leaves_the_sentence_readable_when_stripped() -> None:
    report = synthetic.failing()
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard", no_color=False)
    render(report, console)
    assert "\x1b[1;31mFAIL\x1b[0m" in console.file.getvalue().splitlines()[-1]


def test_markup_in_a_report_is_text() -> None:
    text = shown(synthetic.hostile())
    assert "[bold]not markup[/bold]" in text and "[red]" in text.splitlines()[-1]


def test_strip_tells_status_by_shape() -> None:
    lines = shown(synthetic.undecided()).splitlines()
    (strip,) = (line for line in lines if line.startswith("precision bf16") and "▁" in line)
    assert strip == "precision bf16      ▁ ▁▁▁▁??▁▁▁█▁▁▁▁▁▁▁▁ ▁▁"


@pytest.mark.parametrize("num_layers", [1, 18, 80, 126])
def test_strip_of_any_depth_fits(num_layers: int) -> None:
    text = shown(replace(synthetic.failing(), num_layers=num_layers))
    assert max(map(len, text.splitlines()[:-1])) <= 80
    assert ("layers a bar" in text) == (num_layers > 40)


def test_offenders_are_few_and_counted() -> None:
    text = shown(synthetic.failing())
    assert text.count("semantics fp32  ") - text.count("semantics fp32   FAIL") >= MOST_OFFENDERS
    assert "and 208 more" in text
    assert "layers.0.mlp.act" in text and "port " in text


def test_columns_stand_under_their_names() -> None:
    lines = shown(replace_dtypes(synthetic.failing())).splitlines()
    head = next(line for line in lines if line.startswith("node "))
    row = next(line for line in lines if line.startswith("layers.0.mlp.act ") and "semantics" in line)
    assert row.index("semantics") == head.index("stage")
    assert len(row) == len(head) and row.endswith("956") and row[: head.index("e_ref") + 5].endswith("1.0e-6")


def replace_dtypes(report):
    """With the names that real runs have, which are longer."""
    long = {"fp32": "float32", "bf16": "bfloat16"}
    nodes = tuple(replace(node, dtype=long[node.dtype]) for node in report.nodes)
    stages = tuple(replace(stage, dtype=long.get(stage.dtype, "")) for stage in report.stages)
    logits = tuple(replace(each, dtype=long[each.dtype]) for each in report.logits)
    return replace(report, nodes=nodes, stages=stages, logits=logits)


def test_long_names_of_dtypes_fit_too() -> None:
    for make in synthetic.ALL.values():
        lines = shown(replace_dtypes(make())).splitlines()
        assert [line for line in lines[:-1] if len(line) > 80] == []


def test_the_first_bad_node_says_where_and_a_wide_console_says_it_of_all() -> None:
    narrow, wide = shown(synthetic.failing()), shown(synthetic.failing(), width=130)
    assert narrow.count("worst element [0, ") == 1 and "worst token 392 '.'" in narrow
    assert wide.count("[0, ") == MOST_OFFENDERS and max(map(len, wide.splitlines()[:-1])) <= 150


def test_logits_are_a_line_each() -> None:
    row = next(line for line in shown(synthetic.failing()).splitlines() if line.startswith("bf16 "))
    assert row.split() == ["bf16", "8.1e-4", "9.0e-4", "98.1%", "0", "of", "64"]


def test_a_fail_ends_in_node_ratio_and_next_command() -> None:
    last = shown(synthetic.failing()).splitlines()[-1]
    assert "layers.0.mlp.act" in last and "ρ 912" in last and "next: porter " in last


def test_pass_lists_no_offenders() -> None:
    assert "e_port" not in shown(synthetic.passing())


def test_says_where_the_report_is(tmp_path) -> None:
    console = Console(file=io.StringIO(), width=40)
    render(synthetic.passing(), console, page=tmp_path / "report.html")
    assert f"report: {tmp_path / 'report.html'}" in console.file.getvalue().splitlines()


def test_nothing_compared_is_not_silent() -> None:
    text = shown(synthetic.inconclusive())
    assert "NOT_COMPARED" in text and "nodes compared 0 of 237" in text and "another prompt length" in text


def test_timings_add_up() -> None:
    console = Console(file=io.StringIO(), width=80)
    render_timings(synthetic.passing(), console)
    text = console.file.getvalue()
    assert "golden" in text and "36%" in text
    assert text.splitlines()[-1].split() == ["total", "49.8"]


def axes_printed(report, width: int = 120) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    render_axes(report, console)
    return console.file.getvalue().splitlines()


def test_the_table_of_axes_has_the_blind_ones_first_with_the_reason() -> None:
    lines = axes_printed(synthetic.passing())
    assert re.split(r" {2,}", lines[0].strip()) == ["axis", "value → tried instead", "shows in, or why not"]
    assert re.search(r"^final.softcap +null → 30 +not seen: no logit passes 30", lines[1]), lines[1]
    act = next(line for line in lines if line.startswith("block.mlp.act"))
    assert re.split(r" {2,}", act.strip()) == [
        "block.mlp.act",
        "gelu_tanh → gelu",
        "semantics at layers.0.mlp.act",
    ]
    shown = [line.split()[0] for line in lines[1:] if line and line[0] != " "]
    assert sorted(shown) == sorted(axis.path for axis in synthetic.passing().axes)


def test_no_axes_are_said_to_be_none() -> None:
    assert (
        axes_printed(synthetic.inconclusive())[0] == "No axis was tried: this run cannot say what it could have seen."
    )


def test_lines_that_a_map_might_have_are_shown_to_be_copied() -> None:
    line = 'fits attn.q_rope: {at: "attn@scaled_dot_product_attention:input", axes: BHTK}'
    assert line in shown(synthetic.warning(), width=40).splitlines()
    page = to_html(synthetic.warning())
    assert (
        "Fits: <code>attn.q_rope: {at: &quot;attn@scaled_dot_product_attention:input&quot;, axes: BHTK}</code>" in page
    )


def test_the_self_check_is_a_line_and_a_table_with_what_was_missed_first() -> None:
    report = synthetic.failing()
    line = "self-check: 3 of 4 observable faults caught, 1 unobservable; 1 caught at another node than they move first"
    assert line in shown(report, width=160) and "self-check" not in shown(synthetic.passing())
    console = Console(file=io.StringIO(), width=160, color_system=None)
    render_self_check(report, console)
    rows = [re.split(r" {2,}", line.strip()) for line in console.file.getvalue().splitlines() if line.strip()]
    assert rows[0] == ["fault", "value → tried instead", "caught by, or why not"]
    assert rows[1][:2] == ["layers.0.mlp.gate, up", "each other’s"] and rows[1][2].startswith("missed: no node passed")
    assert rows[2] == ["final.softcap", "null → 30", "unobservable: no logit passes 30"]
    assert rows[3][2] == "semantics at layers.0.mlp.act, ρ 912"
    assert rows[4][2] == "semantics at layers.0.resid_mid, ρ 41.0; moves layers.0.attn.out first"
    assert rows[5][2] == "exact at layers.0.attn.norm"
