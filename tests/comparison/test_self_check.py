"""The self-check: known faults are caught as a whole diff catches them, and one that is missed is said to be."""

from collections import Counter

import pytest
import torch

from porter.comparison import measure
from porter.comparison.diff import diff
from porter.comparison.faults import Fault, weight_faults
from porter.comparison.observed import Injected
from porter.comparison.report import DiffReport
from porter.errors import UsageError
from tests.models.tiny import tiny

NODES = ("semantics", "precision")


def check(family: str, *overrides: str, tokens: int = 140, dtype: str = "bfloat16", **given) -> DiffReport:
    return diff(tiny(family, *overrides, dtype=dtype, tokens=tokens), **{"stages": NODES, "self_check": True, **given})


@pytest.fixture(scope="module")
def gemma3() -> DiffReport:
    return check("gemma3")


def fault(report: DiffReport, path: str, tried: str | None = None) -> Injected:
    return next(each for each in report.self_check if each.path == path and tried in (None, each.tried))


def test_every_observable_fault_is_caught_at_the_node_it_moves_first(gemma3: DiffReport) -> None:
    assert Counter(each.outcome for each in gemma3.self_check) == {"caught": 46, "unobservable": 1}
    assert [each.path for each in gemma3.self_check if each.node != each.expected] == []
    assert (gemma3.verdict, gemma3.exit_code, gemma3.missed) == ("PASS", 0, ())


def test_what_the_ledger_calls_unobservable_is_not_missed(gemma3: DiffReport) -> None:
    hidden = fault(gemma3, "block.rope.pos_dtype")
    assert (hidden.outcome, hidden.stage, hidden.expected) == ("unobservable", None, None)
    assert hidden.reason == "positions up to 139 are exact in bfloat16"


@pytest.mark.parametrize(
    ("path", "tried", "stage", "node"),
    [
        ("embed.weight", "× 1.01", "semantics", "embed.out"),
        ("layers.0.attn.norm.weight", "× 1.01", "semantics", "layers.0.attn.norm"),
        ("layers.0.attn.v.weight", "× 1.01", "semantics", "layers.0.attn.ctx"),
        ("layers.0.attn.q.weight", "× 1.01", "exact", "layers.0.attn.q"),  # the norm of q takes a factor out again
        ("layers.0.attn.o.weight", "× 1.01", "semantics", "layers.0.attn.out"),
        ("layers.0.mlp.down.weight", "layer 1’s", "semantics", "layers.0.mlp.out"),
        ("layers.0.mlp.gate, up", "each other’s", "semantics", "layers.0.mlp.act"),
        ("layers.0.attn.k, v", "each other’s", "semantics", "layers.0.attn.ctx"),
        ("final_norm.weight", "× 1.01", "semantics", "final.norm"),
        ("norm.math", "cast_then_scale", "exact", "layers.0.attn.norm"),
        ("block.rope.theta", "1.02e+06", "semantics", "layers.5.attn.ctx"),
    ],
)
def test_where_a_fault_is_caught(gemma3: DiffReport, path: str, tried: str, stage: str, node: str) -> None:
    found = fault(gemma3, path, tried)
    assert (found.outcome, found.stage, found.node) == ("caught", stage, node)
    assert (found.rho is None) == (stage == "exact") and found.reason == ""


@pytest.mark.parametrize(
    ("override", "path", "tokens"),
    [
        ("norm.offset=0", "norm.offset", 140),
        ("block.mlp.act=gelu", "block.mlp.act", 140),
        ("patterns.window.cases.sliding_attention.attn.window=129", "block.attn.window", 140),
        ("block.rope.pos_dtype=act", "block.rope.pos_dtype", 300),
    ],
)
def test_a_whole_diff_of_the_fault_says_the_same(override: str, path: str, tokens: int) -> None:
    found = fault(check("gemma3", tokens=tokens, layers="0"), path)
    whole = diff(tiny("gemma3", override, dtype="bfloat16", tokens=tokens), layers="0", stages=NODES).first_fail
    assert whole is not None and (whole.stage, whole.name) == (found.stage, found.node)
    assert found.rho == pytest.approx(whole.local.rho, rel=0.05)  # bfloat16 is fed the float32 stage's stream


def test_fused_projections_are_taken_in_another_order() -> None:
    phi3 = check("phi3", layers="0")
    for part, node in (("mlp.gate_up", "layers.0.mlp.act"), ("attn.qkv", "layers.0.attn.ctx")):
        assert fault(phi3, f"weights.block.{part}.order").node == node
    neox = check("gpt_neox", layers="0", dtype="float32")
    assert fault(neox, "weights.block.attn.qkv.groups").node == "layers.0.attn.ctx"
    for report in (phi3, neox):
        assert report.missed == () and report.exit_code == 0


def test_the_faults_of_weights_that_a_family_has() -> None:
    def paths(family: str) -> list[str]:
        return [each.path for each in weight_faults(tiny(family).blueprint, [0])]

    assert {"layers.0.attn.k, v", "layers.0.mlp.gate, up", "head.weight", "embed.weight"} <= set(paths("llama"))
    assert paths("gpt2").count("layers.0.mlp.up.weight") == 2  # scaled, and the next layer's
    assert not any("gate" in path or path == "head.weight" for path in paths("gpt2"))  # not gated, tied


def test_a_wrong_reader_gives_what_it_says() -> None:
    build = tiny("llama", dtype="float32")
    right, by_path = build.reader(), {(each.path, each.tried): each for each in weight_faults(build.blueprint, [1])}

    def read(each: Fault, name: str):
        return each.reader(right).read(name, dtype, cpu)

    dtype, cpu = torch.float32, torch.device("cpu")
    name, other = "layers.1.attn.o.weight", "layers.2.attn.o.weight"
    assert torch.equal(read(by_path[name, "× 1.01"], name), right.read(name, dtype, cpu) * 1.01)
    assert torch.equal(read(by_path[name, "× 1.01"], other), right.read(other, dtype, cpu))
    assert torch.equal(read(by_path[name, "layer 2’s"], name), right.read(other, dtype, cpu))


def blind(*_given: object) -> tuple[str, str]:
    return "PASS", ""


def test_a_diff_that_cannot_fail_misses_its_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "judge", blind)
    report = check("gemma3", layers="0", stages=("semantics",))
    assert len(report.missed) > 30 and all(axis.seen for axis in report.axes if axis.path == "norm.offset")
    assert (report.verdict, report.exit_code) == ("FAIL", 1)
    first = report.missed[0]
    assert first.reason == "no node passed a threshold or moved a bit" and first.expected == "embed.out"
    assert report.sentence.startswith(f"FAIL: the self-check missed {len(report.missed)} of {len(report.missed)} ")
    assert "first embed.scale (9.79796 → 1): no node passed" in report.sentence
    by_bits = check("gemma3", layers="0")  # bits are compared still
    assert by_bits.missed == () and {each.stage for each in by_bits.self_check} == {"exact", None}


def test_what_a_wrong_port_hides_is_told() -> None:
    report = check("gemma3", "block.mlp.act=gelu", layers="0", stages=("semantics",))
    hidden = fault(report, "layers.0.mlp.up.weight", "× 1.01")
    assert hidden.outcome == "missed" and hidden.reason == "the port as it is has FAIL at layers.0.mlp.act"
    assert fault(report, "norm.offset").outcome == "caught"
    assert report.sentence.startswith("FAIL at layers.0.mlp.act (semantics")


def test_units_that_were_not_compared_are_not_checked() -> None:
    report = check("gemma3", layers="3")
    assert fault(report, "embed.scale").reason == "the embedding was not compared"
    assert fault(report, "final_norm.weight").reason == "the head was not compared"
    assert {each.node.split(".")[1] for each in report.self_check if each.node} == {"3"} and report.missed == ()


@pytest.mark.parametrize("given", [{"layers": "first-bad"}, {"stages": ["behaviour"]}], ids=str)
def test_what_has_no_nodes_to_check_is_refused(given: dict) -> None:
    with pytest.raises(UsageError, match=r"--self-check with --(layers first-bad|stage behaviour)"):
        check("gemma3", **given)


def test_no_self_check_unless_asked_for() -> None:
    assert check("llama", layers="0", self_check=False).self_check == ()
