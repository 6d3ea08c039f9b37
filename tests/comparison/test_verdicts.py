"""Thresholds at their edges, stages, and the exit code of a run."""

import math

import pytest

from porter.comparison.report import Check, Local, NodeDiff, Stage
from porter.comparison.verdicts import FLOORS, THRESHOLDS, conclude, judge, summarize, summarize_exact, suspects

NAN, INF = math.nan, math.inf


def local(rho: float = 1.0, rho_tok: float = 1.0, e_ref: float = 1e-3) -> Local:
    return Local(e_port=rho * e_ref, e_ref=e_ref, rho=rho, rho_tok=rho_tok, token=0, tokens=())


def node(status: str, name: str = "layers.0.attn.ctx", exact: bool | None = True, rho: float = 1.0) -> NodeDiff:
    return NodeDiff(name=name, kind="observable", stage="semantics", dtype="float32", shape=(1,), status=status,
                    reason=f"reason of {status}", exact=exact, local=local(rho))  # fmt: skip


def stage(status: str, name: str = "semantics", compared: int = 5) -> Stage:
    return Stage(name, "float32", status, compared, "embed.out", "")


EDGES = [
    ("semantics", "float32", {"rho": 4.0}, "PASS"),
    ("semantics", "float32", {"rho": math.nextafter(4.0, 5)}, "WARN"),
    ("semantics", "float32", {"rho": 10.0}, "WARN"),
    ("semantics", "float32", {"rho": math.nextafter(10.0, 11)}, "FAIL"),
    ("semantics", "float32", {"rho_tok": 100.0}, "PASS"),  # float32 has no limit of single tokens
    ("precision", "bfloat16", {"rho": 1.5, "rho_tok": 2.0}, "PASS"),
    ("precision", "bfloat16", {"rho": 1.51}, "WARN"),
    ("precision", "bfloat16", {"rho": 3.0}, "WARN"),
    ("precision", "bfloat16", {"rho": 3.01}, "FAIL"),
    ("precision", "bfloat16", {"rho_tok": 2.01}, "WARN"),
    ("precision", "bfloat16", {"rho_tok": 3.01}, "FAIL"),
    ("precision", "bfloat16", {"rho": 2.0, "rho_tok": 3.01}, "FAIL"),
    ("precision", "float16", {"rho": 3.01}, "FAIL"),
    ("precision", "bfloat16", {"rho": NAN}, "FAIL"),
    ("precision", "bfloat16", {"rho_tok": NAN}, "FAIL"),
    ("semantics", "float32", {"rho": NAN}, "FAIL"),
    ("semantics", "float32", {"rho": INF}, "FAIL"),
]


@pytest.mark.parametrize(("stage_name", "dtype", "values", "wanted"), EDGES, ids=str)
def test_a_node_passes_up_to_the_first_limit_and_fails_past_the_second(stage_name, dtype, values, wanted) -> None:
    status, reason = judge(stage_name, dtype, "observable", local(**values), (0, 0))
    assert status == wanted
    assert bool(reason) == (wanted != "PASS")
    gauge = judge(stage_name, dtype, "gauge", local(**values), (0, 0))[0]
    assert gauge == {"FAIL": "WARN"}.get(wanted, wanted)


def test_a_reason_names_the_number_and_its_limit() -> None:
    assert judge("precision", "bfloat16", "observable", local(4.5), (0, 0)) == ("FAIL", "ρ 4.5 > 3")
    assert judge("precision", "bfloat16", "gauge", local(4.5), (0, 0)) == ("WARN", "ρ 4.5 > 3 (gauge)")


@pytest.mark.parametrize(
    ("nonfinite", "wanted"), [((1, 0), "FAIL"), ((3, 2), "FAIL"), ((2, 2), "INCONCLUSIVE"), ((0, 1), "INCONCLUSIVE")]
)
def test_values_that_are_not_finite(nonfinite: tuple[int, int], wanted: str) -> None:
    assert judge("precision", "float16", "observable", local(NAN), nonfinite)[0] == wanted


def test_a_new_infinity_fails_a_gauge_too() -> None:
    assert judge("precision", "float16", "gauge", local(), (1, 0))[0] == "FAIL"


def test_a_reference_far_from_golden_judges_nothing() -> None:
    assert judge("precision", "bfloat16", "observable", local(99.0, e_ref=0.1), (0, 0))[0] == "FAIL"
    status, reason = judge("precision", "bfloat16", "observable", local(99.0, e_ref=0.11), (0, 0))
    assert (status, reason) == ("INCONCLUSIVE", "the reference itself is 11% from golden")


def test_every_dtype_with_limits_has_a_floor() -> None:
    assert {dtype for limits in THRESHOLDS.values() for dtype in limits} == FLOORS.keys()
    assert pytest.approx(2.4e-7, rel=0.01) == FLOORS["float32"]


def test_a_stage_is_its_worst_node_and_names_the_first_of_them() -> None:
    nodes = [node("PASS"), node("WARN", "layers.0.attn.q"), node("FAIL", "layers.1.mlp.act"), node("FAIL", "logits")]
    found = summarize("semantics", "float32", nodes)
    assert (found.status, found.first, found.compared) == ("FAIL", "layers.1.mlp.act", 4)
    assert summarize("semantics", "float32", nodes[:2]).first == "layers.0.attn.q"
    passed = summarize("semantics", "float32", [node("PASS", rho=1.25), node("NOT_COMPARED")])
    assert (passed.status, passed.compared, passed.first) == ("PASS", 1, None)
    assert passed.detail == "largest ρ 1.25 at layers.0.attn.ctx"


@pytest.mark.parametrize(("nodes", "compared"), [([], 0), ([node("NOT_COMPARED")], 0), ([node("INCONCLUSIVE")], 1)])
def test_a_stage_without_a_judged_node_is_inconclusive(nodes: list[NodeDiff], compared: int) -> None:
    found = summarize("precision", "bfloat16", nodes)
    assert (found.status, found.compared) == ("INCONCLUSIVE", compared)


def test_the_exact_stage_names_the_first_unequal_node() -> None:
    nodes = [node("PASS"), node("PASS", "layers.0.mlp.act", exact=False), node("PASS", "logits", exact=False)]
    found = summarize_exact("float32", [*nodes, node("NOT_COMPARED", exact=None)])
    assert (found.status, found.first, found.compared) == ("WARN", "layers.0.mlp.act", 3)
    assert found.detail == "2 of 3 nodes differ in their bits"
    assert summarize_exact("float32", nodes[:1]).status == "PASS"
    assert summarize_exact("float32", [node("PASS", exact=None)]).status == "NOT_COMPARED"


RUNS = [
    ([stage("PASS")], [], 0, (), ("PASS", 0)),
    ([stage("WARN")], [], 0, (), ("WARN", 0)),
    ([stage("WARN")], [], 0, ("warn",), ("FAIL", 1)),
    ([stage("PASS"), stage("FAIL")], [], 0, (), ("FAIL", 1)),
    ([stage("INCONCLUSIVE"), stage("FAIL")], [], 0, (), ("FAIL", 1)),
    ([stage("WARN", "exact"), stage("PASS")], [], 0, (), ("WARN", 0)),
    ([stage("WARN", "exact"), stage("PASS")], [], 0, ("exact",), ("FAIL", 1)),
    ([stage("WARN", "exact"), stage("PASS")], [], 0, ("missing",), ("WARN", 0)),
    ([stage("PASS")], [], 3, (), ("PASS", 0)),
    ([stage("PASS")], [], 3, ("missing",), ("FAIL", 1)),
    ([stage("PASS")], [Check("config", "WARN", "")], 0, (), ("WARN", 0)),
    ([stage("PASS")], [Check("config", "WARN", "")], 0, ("warn",), ("FAIL", 1)),
    ([stage("PASS")], [Check("tokenizer.ids", "FAIL", "")], 0, (), ("FAIL", 5)),
    ([stage("PASS"), stage("INCONCLUSIVE")], [], 0, (), ("INCONCLUSIVE", 4)),
    ([stage("INCONCLUSIVE")], [], 0, (), ("INCONCLUSIVE", 4)),
    ([stage("PASS", "exact"), stage("INCONCLUSIVE")], [], 0, (), ("INCONCLUSIVE", 4)),
    ([stage("PASS", compared=0)], [], 0, (), ("INCONCLUSIVE", 4)),  # never 0 when nothing was compared
    ([], [], 0, (), ("INCONCLUSIVE", 4)),
    ([stage("FAIL", compared=0)], [], 7, ("missing", "warn", "exact"), ("INCONCLUSIVE", 4)),
]


@pytest.mark.parametrize(("stages", "checks", "missing", "fail_on", "wanted"), RUNS)
def test_the_verdict_and_exit_code_of_a_run(stages, checks, missing, fail_on, wanted) -> None:
    assert conclude(stages, checks, missing, fail_on) == wanted


@pytest.mark.parametrize(
    ("name", "axes"),
    [("layers.3.attn.ctx", "window"), ("layers.0.mlp.act", "block.mlp.act"), ("embed.out", "embed.scale"),
     ("layers.0.attn.norm", "norm"), ("final.norm", "norm"), ("logits", "head"), ("layers.0.mlp.out", "weights")],
)  # fmt: skip
def test_suspects_are_the_axes_that_act_at_the_node(name: str, axes: str) -> None:
    assert axes in suspects(name)


def test_a_node_that_cannot_be_judged_is_no_pass() -> None:
    # float16 overflows in a reference: the nodes before it are fine, and the stage must not say so of all
    found = summarize("precision", "float16", [node("PASS"), node("INCONCLUSIVE"), node("WARN")])
    assert found.status == "INCONCLUSIVE" and "1 of 3 nodes" in found.detail
    assert summarize("precision", "float16", [node("INCONCLUSIVE"), node("FAIL")]).status == "FAIL"
