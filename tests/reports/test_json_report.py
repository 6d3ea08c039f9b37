"""The JSON of a report: strict, in schema porter.diff/1, and read back without loss."""

import json
import math
from dataclasses import replace

import pytest

from porter.errors import ArtifactError
from porter.reports import from_json, to_json
from porter.reports.json_report import to_text
from tests.reports import synthetic

REPORTS = pytest.mark.parametrize("report", [make() for make in synthetic.ALL.values()], ids=list(synthetic.ALL))


def strict(text: str):
    def refuse(constant: str):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@REPORTS
def test_round_trip_through_text(report) -> None:
    read = from_json(strict(to_text(report)))
    assert repr(read) == repr(report)  # equality would fail on NaN
    assert to_text(read) == to_text(report)


def test_round_trip_is_equal_where_all_is_finite() -> None:
    report = synthetic.failing()
    assert from_json(to_json(report)) == report


def test_keys_and_their_order() -> None:
    document = to_json(synthetic.failing())
    assert list(document) == [
        "schema", "verdict", "exit", "summary", "run", "thresholds", "stages", "preflight", "nodes", "logits",
        "behaviour", "axes", "self_check", "proposals", "attribution", "explanations", "artifacts", "timings",
        "warnings",
    ]  # fmt: skip
    assert document["schema"] == "porter.diff/1"
    assert document["summary"] == {
        "first_fail": "layers.0.mlp.act",
        "stage": "semantics",
        "compared": 237,
        "declared": 237,
        "inconclusive": 0,
        "axes_tried": 11,
        "axes_observable": 9,
        "sentence": synthetic.failing().sentence,
        "explanation": "block.mlp.act is gelu, and gelu_tanh in the reference",
    }
    node = next(node for node in document["nodes"] if node["status"] == "FAIL")
    assert node["name"] == "layers.0.mlp.act" and node["class"] == "observable"
    assert set(node["local"]) == {"e_port", "e_ref", "rho", "rho_tok"}
    assert set(node["max_abs"]) == {"v", "at", "port", "ref"}


def test_no_fail_is_null() -> None:
    summary = to_json(synthetic.passing())["summary"]
    assert summary["first_fail"] is None and summary["stage"] is None


def test_numbers_that_json_lacks() -> None:
    document = to_json(synthetic.undecided())
    node = next(node for node in document["nodes"] if node["nonfinite"] != [0, 0])
    assert node["local"]["rho"] == "nan" and node["local"]["rho_tok"]["max"] == "inf"
    assert node["propagated"]["log10_l2"] == "inf"


def test_bit_equal_is_null() -> None:
    report = synthetic.passing()
    assert {node["propagated"]["log10_l2"] for node in to_json(report)["nodes"] if node["propagated"]} == {None}
    node = next(node for node in report.nodes if node.propagated)
    equal = replace(node, propagated=replace(node.propagated, log10_l2=-math.inf))
    (written,) = to_json(replace(report, nodes=(equal,)))["nodes"]
    assert written["propagated"]["log10_l2"] is None


def test_a_node_is_a_line() -> None:
    report = synthetic.failing()
    lines = to_text(report).splitlines()
    assert sum('"name": "layers.0.mlp.act"' in line for line in lines) == 4
    assert json.loads(lines[-2].strip().removesuffix(",")) if lines[-2].strip().startswith("{") else lines[-1] == "}"


def test_keys_of_a_later_porter_are_left_alone() -> None:
    document = to_json(synthetic.failing())
    for key in ("stages", "axes", "logits", "nodes"):
        document[key][0]["later"] = 1
    assert from_json({**document, "later": {}}) == synthetic.failing()


def test_a_report_of_an_earlier_porter_is_read() -> None:
    document = to_json(synthetic.failing())
    del document["run"]["fail_on"]
    for each in document["logits"]:
        del each["at"], each["tokens"]
    for check in document["preflight"]:
        del check["head"], check["rows"]
    read = from_json(document)
    assert read.fail_on == () and {each.at for each in read.logits} == {()}
    assert {check.rows for check in read.preflight} == {()} and {each.tokens for each in read.logits} == {0}


@pytest.mark.parametrize("document", [{}, {"schema": "porter.diff/2"}, [], None], ids=str)
def test_another_schema_is_refused(document) -> None:
    with pytest.raises(ArtifactError, match=r"schema is .*\n  expected: 'porter.diff/1'"):
        from_json(document)


@pytest.mark.parametrize("key", ["run", "nodes", "thresholds", "summary"])
def test_a_damaged_report_is_refused(key: str) -> None:
    document = to_json(synthetic.failing())
    del document[key]
    with pytest.raises(ArtifactError, match=f"the report is damaged: KeyError '{key}'"):
        from_json(document)
