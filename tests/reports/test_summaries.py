"""What CI services read: JUnit whose counts are its cases', and markdown that says what the report says."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from porter.comparison.report import Check
from porter.errors import UsageError
from porter.reports.github import to_markdown
from porter.reports.junit import to_junit
from porter.reports.summaries import write_summaries
from tests.reports import synthetic


def suites(report) -> dict[str, ElementTree.Element]:
    root = ElementTree.fromstring(to_junit(report))
    return {str(suite.get("name")).removeprefix(f"{report.name} "): suite for suite in root}


@pytest.mark.parametrize("name", list(synthetic.ALL))
def test_counts_are_those_of_the_cases(name: str) -> None:
    root = ElementTree.fromstring(to_junit(synthetic.ALL[name]()))
    for element in (root, *root):
        found = {"tests": len(list(element.iter("testcase")))}
        found |= {f"{end}s": len(list(element.iter(end))) for end in ("failure", "error")}
        found["skipped"] = len(list(element.iter("skipped")))
        assert {key: int(str(element.get(key))) for key in found} == found


def test_every_node_is_a_case_that_ends_as_its_verdict() -> None:
    report = synthetic.failing()
    found = suites(report)
    for stage in report.stages:
        if stage.name in ("semantics", "precision"):
            cases = {case.get("name"): case for case in found[f"{stage.name} {stage.dtype}"]}
            nodes = [node for node in report.nodes if (node.stage, node.dtype) == (stage.name, stage.dtype)]
            assert set(cases) == {node.name for node in nodes} and nodes
            for node in nodes:
                ends = [end.tag for end in cases[node.name]]
                assert ends == {"FAIL": ["failure"], "WARN": ["system-out"], "NOT_COMPARED": ["skipped"],
                                "INCONCLUSIVE": ["error"]}.get(node.status, [])  # fmt: skip


@pytest.mark.parametrize(("exit_code", "end"), [(0, []), (1, ["failure"]), (4, ["error"]), (5, ["failure"])])
def test_the_verdict_is_a_case_of_its_own(exit_code: int, end: list[str]) -> None:
    """A WARN that --fail-on made exit 1 has no failing node, and must fail the job all the same."""
    case = suites(replace(synthetic.passing(), exit_code=exit_code))["verdict"][0]
    assert [each.tag for each in case] == end


def test_what_xml_cannot_hold_is_replaced() -> None:
    check = Check("tokenizer", "FAIL", "puts \x00\ud800 <b> & 'first'")
    case = suites(replace(synthetic.passing(), preflight=(check,)))["preflight"][0]
    assert case[0].get("message") == "puts �� <b> & 'first'"


def test_markdown_says_verdict_stages_and_first_nodes() -> None:
    report = synthetic.failing()
    text = to_markdown(report)
    assert text.startswith(f"### ❌ FAIL: `{report.name}`")
    assert all(f"| {stage.name} | {stage.dtype} | " in text for stage in report.stages)
    assert f"`{report.first_fail.name}`" in text and report.command in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    widths = {line.replace("\\|", "").count("|") for line in rows}
    assert widths == {7, 8}  # six columns of stages, seven of nodes


def test_markdown_is_not_broken_by_what_it_shows() -> None:
    port = replace(synthetic.passing().port, what="a | b <script> `x` *y* @someone")
    text = to_markdown(replace(synthetic.passing(), port=port, name="a`b|c"))
    assert "a \\| b \\<script\\> \\`x\\` \\*y\\* @\u200bsomeone" in text
    assert "`a'b\\|c`" in text


def test_the_summary_is_appended_and_junit_replaced(tmp_path: Path) -> None:
    junit, summary = tmp_path / "new" / "junit.xml", tmp_path / "summary.md"
    summary.write_text("before\n")
    for _ in range(2):
        write_summaries(synthetic.passing(), junit_path=junit, github_path=summary)
    assert summary.read_text().startswith("before\n") and summary.read_text().count("### ✅ PASS") == 2
    assert ElementTree.parse(junit).getroot().get("name") == f"porter diff {synthetic.passing().name}"


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the summary cannot be written to"):
        write_summaries(synthetic.passing(), junit_path=None, github_path=tmp_path)
