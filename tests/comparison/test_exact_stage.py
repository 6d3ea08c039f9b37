"""The exact stage alone: bits of every node in both dtypes, and no golden."""

import pytest

from porter.comparison.diff import diff
from porter.comparison.report import DiffReport
from porter.references.hf import HfReference
from porter.reports import from_json, to_json
from porter.reports.recheck import recheck
from tests.models.tiny import FAMILIES, tiny


def exact(family: str, *overrides: str, tokens: int = 140, dtype: str = "bfloat16", **given) -> DiffReport:
    return diff(tiny(family, *overrides, dtype=dtype, tokens=tokens), **{"stages": ["exact"], **given})


def told(report: DiffReport) -> list[tuple[str, str, str, int, str | None]]:
    return [(stage.name, stage.dtype, stage.status, stage.compared, stage.first) for stage in report.stages]


@pytest.fixture(autouse=True)
def no_golden(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    def refuse(*_given: object) -> None:
        raise AssertionError("golden was opened")

    if "semantics" not in request.node.name:
        monkeypatch.setattr(HfReference, "golden_of", refuse)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_bit_equal(family: str) -> None:
    report = exact(family, tokens=40)
    assert {status for _, _, status, _, _ in told(report)} == {"PASS"} and len(report.stages) == 2
    assert (report.verdict, report.exit_code) == ("PASS", 0) and report.compared == report.declared > 40


@pytest.mark.parametrize("family", ["bloom", "falcon", "gpt_neox_japanese", "mpt", "opt", "stablelm"])
def test_nodes_are_those_of_code_that_flattens_adds_in_place_or_has_biases_elsewhere(family: str) -> None:
    report = exact(family, tokens=40)
    assert {status for _, _, status, _, _ in told(report)} == {"PASS"}
    missing = {node.name for node in report.nodes if node.exact is None}
    allowed = {"attn.q_rope", "attn.k_rope"} | ({"attn.out"} if family == "gpt_neox_japanese" else set())
    assert {name.split(".", 2)[2] for name in missing} <= allowed


def test_other_rounding_warns_in_its_dtype_and_fails_when_asked_to() -> None:
    report = exact("gemma3", "norm.math=cast_then_scale")
    assert told(report) == [
        ("exact", "float32", "PASS", 117, None),
        ("exact", "bfloat16", "WARN", 117, "layers.0.attn.norm"),
    ]
    assert (report.verdict, report.exit_code) == ("WARN", 0)
    assert "--stage semantics says" in report.sentence
    first = next(node for node in report.nodes if node.status == "WARN")
    assert first.name == "layers.0.attn.norm" and first.reason.startswith("bits differ in ") and first.local is None
    failed = exact("gemma3", "norm.math=cast_then_scale", fail_on=["exact"])
    assert (failed.verdict, failed.exit_code) == ("FAIL", 1)


def test_another_function_differs_in_float32_too() -> None:
    report = exact("gemma3", "block.mlp.act=gelu", layers="0,5")
    assert [first for *_, first in told(report)] == ["layers.0.mlp.act", "layers.0.mlp.act"]
    assert {node.layer for node in report.nodes} == {None, 0, 5}
    assert {node.name for node in report.nodes if node.layer is None} == {"embed.out"}  # the head was not asked for


def test_the_first_bad_node_ends_it() -> None:
    report = exact("llama", "layers[1].attn.scale=0.2", layers="first-bad")
    assert told(report)[0][4] == report.nodes[-1].name == "layers.1.attn.ctx" and len(report.stages) == 1


def test_layers_are_fed_what_the_reference_saw() -> None:
    report = exact("llama", "layers[1].attn.scale=0.2", dtype="float32")
    assert {node.layer for node in report.nodes if node.status == "WARN"} == {1}


def test_it_sees_axes_by_bits_alone() -> None:
    report = exact("gemma3")
    assert {axis.seen for axis in report.axes} == {"exact", None} and len(report.axes) == 17


def test_with_semantics_it_is_alone_in_the_other_dtype() -> None:
    report = exact("gemma3", stages=["exact", "semantics"], layers="0", self_check=True)
    assert [(stage.name, stage.dtype) for stage in report.stages] == [
        ("exact", "float32"), ("exact", "bfloat16"), ("semantics", "float32"),
    ]  # fmt: skip
    assert {axis.path: axis.seen for axis in report.axes}["norm.math"] == "exact"
    assert report.missed == () and {each.stage for each in report.self_check} == {"semantics", "exact", None}


def test_its_report_is_written_read_and_judged_again() -> None:
    report = exact("llama", "norm.math=scale_then_cast", layers="0")
    assert from_json(to_json(report)) == report
    again = recheck(report, ["bf16.rho.fail=9"])
    assert (again.verdict, again.exit_code, again.stages) == (report.verdict, report.exit_code, report.stages)
