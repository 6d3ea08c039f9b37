"""Diffs in process: clean ports pass, and a changed axis fails first where it acts, in the stage that can see it."""

import math
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

import porter
from porter.comparison.diff import diff
from porter.comparison.merge import badness, merge_nodes
from porter.comparison.report import DiffReport, Local, NodeDiff
from porter.comparison.request import find_build
from porter.comparison.stages import StageRun, select_layers
from porter.errors import PorterError, SpecError, UsageError
from porter.models.records import record
from tests.models.tiny import FAMILIES, tiny

LOCAL = "patterns.window.cases.sliding_attention."


def run(*overrides: str, tokens: int = 320, **given) -> DiffReport:
    return diff(tiny("gemma3", *overrides, dtype="bfloat16", tokens=tokens), **given)


@pytest.fixture(scope="module")
def clean() -> DiffReport:
    return run()


def statuses(report: DiffReport) -> dict[tuple[str, str], str]:
    return {(stage.name, stage.dtype): stage.status for stage in report.stages}


def first_unequal(report: DiffReport, dtype: str) -> str | None:
    return next(stage.first for stage in report.stages if (stage.name, stage.dtype) == ("exact", dtype))


def test_a_clean_run_passes_with_every_node_compared_and_exact(clean: DiffReport) -> None:
    assert (clean.verdict, clean.exit_code) == ("PASS", 0)
    assert clean.compared == clean.declared == 6 * 19 + 3
    assert set(statuses(clean).values()) == {"PASS"} and len(clean.stages) == 6
    assert all(node.exact and node.status == "PASS" and node.local.rho <= 1.0 for node in clean.nodes)
    assert clean.sentence == "PASS: 117 nodes of 6 layers agree with the reference in float32 and bfloat16."


def test_a_clean_run_has_a_curve_logits_and_axes(clean: DiffReport) -> None:
    curve = [node for node in clean.of_stage("precision") if node.propagated is not None]
    assert [node.layer for node in curve if node.node == "resid_post"] == list(range(6))
    assert all(node.propagated.l2 == 0 and node.propagated.log10_l2 is None for node in curve)
    assert all(node.propagated.floor_l2 > 0 for node in curve)
    assert [(each.stage, each.agreement, each.kl) for each in clean.logits] == [
        ("semantics", 1.0, 0.0),
        ("precision", 1.0, 0.0),
    ]
    assert all(axis.seen for axis in clean.axes) and len(clean.axes) == 17


def test_the_reference_errs_as_its_dtype_rounds(clean: DiffReport) -> None:
    for stage, unit in (("semantics", 2**-24), ("precision", 2**-8)):
        errors = [node.local.e_ref for node in clean.of_stage(stage) if node.name != "embed.out"]
        assert unit / 10 < min(errors) and max(errors) < 30 * unit


def test_layers_are_fed_what_golden_saw_not_what_came_before() -> None:
    report = run("layers[1].attn.scale=0.2", tokens=40)
    failed = {node.layer for node in report.nodes if node.status == "FAIL"}
    assert failed == {1}  # later layers are fed golden's input, so they pass
    curve = {n.layer: n.propagated.l2 for n in report.of_stage("semantics") if n.node == "resid_post"}
    assert curve[0] == 0 and all(curve[i] > 0 for i in range(1, 6))


@pytest.mark.parametrize(
    ("override", "first"),
    [
        ("block.mlp.act=gelu", r"layers\.0\.mlp\.act"),
        ("norm.offset=0", r"layers\.0\.attn\.norm"),
        ("norm.eps=1e-5", r"layers\.0\.attn\.norm"),
        ("embed.scale=1.0", r"embed\.out"),
        (LOCAL + "rope.theta=10200", r"layers\.\d\.attn\.ctx"),
        ("qk_norm.when=after_rope", r"layers\.\d\.attn\.ctx"),
        (LOCAL + "attn.window=129", r"layers\.\d\.attn\.ctx"),
    ],
)
def test_a_wrong_axis_fails_first_where_it_acts(override: str, first: str) -> None:
    report = run(override, layers="first-bad")  # semantics is the first stage, and stops at the first FAIL
    assert (report.verdict, report.exit_code) == ("FAIL", 1)
    assert re.fullmatch(first, report.first_fail.name), report.first_fail
    assert report.first_fail.stage == "semantics"
    assert report.sentence.startswith(f"FAIL at {report.first_fail.name} (semantics, float32): ")


def test_exact_gelu_is_seen_by_semantics_alone() -> None:
    report = run("block.mlp.act=gelu")
    assert statuses(report)["semantics", "float32"] == "FAIL"
    assert statuses(report)["precision", "bfloat16"] == "PASS"
    assert report.first_fail.name == "layers.0.mlp.act" and report.exit_code == 1


def test_positions_in_the_activations_dtype_are_seen_by_precision_alone() -> None:
    report = run("block.rope.pos_dtype=act")
    assert statuses(report)["semantics", "float32"] == "PASS"
    assert statuses(report)["precision", "bfloat16"] == "FAIL"
    assert report.first_fail.node == "attn.ctx" and report.first_fail.stage == "precision"
    assert report.first_fail.local.token >= 256  # the positions that bfloat16 rounds


@pytest.mark.parametrize(
    ("override", "first"),
    [
        ("norm.math=cast_then_scale", "layers.0.attn.norm"),
        ("embed.scale_rounding=none", "embed.out"),
        ("block.rope.table_dtype=fp32", "layers.0.attn.q_rope"),
    ],
)
def test_other_rounding_is_told_by_bits(override: str, first: str) -> None:
    report = run(override, tokens=48, fail_on=("exact",))
    assert (report.verdict, report.exit_code) == ("FAIL", 1)
    assert first_unequal(report, "bfloat16") == first and first_unequal(report, "float32") is None
    assert statuses(report)["semantics", "float32"] == "PASS"
    assert f"FAIL at {first} (exact, bfloat16)" in report.sentence
    assert "FAIL" not in {status for (name, _), status in statuses(report).items() if name != "precision"}


def test_other_rounding_only_warns_unless_asked() -> None:
    report = run("embed.scale_rounding=none", tokens=16)
    assert (report.verdict, report.exit_code) == ("WARN", 0)
    assert "ame function, other rounding" in report.sentence


@pytest.mark.parametrize("override", ["block.mlp.act=gelu_tanh", "block.rope.theta=10200", "norm.eps=1e-6"])
def test_a_change_without_effect_is_an_error(override: str) -> None:
    with pytest.raises(SpecError, match="changes nothing"):
        run(override, tokens=8)


@pytest.mark.parametrize("family", FAMILIES)
def test_fused_ops_in_the_interpreter_are_within_4_of_the_reference(family: str) -> None:
    report = diff(tiny(family, ops="triton", tokens=24))
    worst = max((node for node in report.nodes if node.local), key=lambda node: node.local.rho)
    assert worst.local.rho <= 4, worst
    assert report.compared == report.declared and report.exit_code == 0
    assert report.port.details["ops"] == "triton" and "fused Triton ops" in report.port.what
    exact = next(stage for stage in report.stages if stage.name == "exact")
    assert exact.status == "PASS"  # exact asks the executor, not the fused ops
    assert any(node.worst is not None for node in report.nodes)  # and the fused ops did run


def test_layers_by_number_are_compared_alone() -> None:
    report = run(tokens=12, layers="0,2")
    assert {node.layer for node in report.nodes} == {None, 0, 2}
    assert {node.name for node in report.nodes if node.layer is None} == {"embed.out"}
    assert report.compared == report.declared == 2 * 19 + 1 and report.exit_code == 0
    assert {node.layer for node in run(tokens=12, layers="3-4").nodes} == {3, 4}


def test_first_bad_stops_at_the_first_fail() -> None:
    report = run("layers[2].mlp.act=relu", tokens=12, layers="first-bad")
    assert report.first_fail.name == "layers.2.mlp.act"
    assert report.nodes[-1] == report.first_fail
    assert {stage.name for stage in report.stages} == {"exact", "semantics"} and report.axes == ()
    assert report.exit_code == 1


def test_first_bad_of_a_clean_port_compares_everything() -> None:
    report = run(tokens=12, layers="first-bad")
    assert report.compared == 117 and report.exit_code == 0


@pytest.mark.parametrize(
    ("text", "layers"),
    [("all", {0, 1, 2, 3, 4, 5}), ("first-bad", {0, 1, 2, 3, 4, 5}), ("0", {0}), ("0-2", {0, 1, 2}),
     ("5, 0-1", {0, 1, 5}), ("2-2,2", {2})],
)  # fmt: skip
def test_select_layers(text: str, layers: set[int]) -> None:
    found = select_layers(text, 6)
    assert found.layers == layers and found.whole == (text in {"all", "first-bad"})
    assert found.first_bad == (text == "first-bad") and found.last == max(layers)


@pytest.mark.parametrize("text", ["banana", "", "-1", "1-", "0..2", "0,,1", "1.5", "²", "6", "0-6", "99", "3-1"])
def test_select_layers_refuses(text: str) -> None:
    with pytest.raises(UsageError, match="--layers"):
        select_layers(text, 6)


def test_several_prompts_are_judged_by_their_worst(tmp_path: Path) -> None:
    prompts = tmp_path / "two.jsonl"
    prompts.write_text('{"ids": [2, 7, 8]}\n\n{"ids": [2, ' + ", ".join(str(i % 500) for i in range(9, 150)) + "]}\n")
    report = run(LOCAL + "attn.window=129", prompts=prompts, tokens=320)
    assert [prompt.length for prompt in report.prompts] == [3, 142]
    assert report.first_fail.node == "attn.ctx" and report.first_fail.prompt == 1  # only the long one passes the window
    assert len(report.logits) == 4


def node(status: str, rho: float, exact: bool | None, prompt: int = 0) -> NodeDiff:
    found = NodeDiff("logits", "observable", "semantics", "float32", (1,), status, "", exact=exact, prompt=prompt)
    return replace(found, local=Local(rho, 1.0, rho, rho, 0, ()))


def test_the_worse_prompt_is_kept_and_exact_needs_them_all() -> None:
    merged: dict[str, NodeDiff] = {}
    for index, each in enumerate([node("PASS", 1.0, True), node("WARN", 5.0, False), node("PASS", 3.9, True)]):
        merge_nodes(merged, StageRun(nodes=[each]), index)
    assert (merged["logits"].status, merged["logits"].prompt, merged["logits"].exact) == ("WARN", 1, False)
    assert badness(node("FAIL", 0.1, True)) > badness(node("WARN", 99.0, True)) > badness(node("PASS", math.nan, True))
    assert badness(node("PASS", math.nan, True)) > badness(node("PASS", 1e9, True))


def test_two_runs_give_the_same_report_but_for_the_time(clean: DiffReport) -> None:
    again = run()
    differing = [f.name for f in fields(DiffReport) if repr(getattr(again, f.name)) != repr(getattr(clean, f.name))]
    assert set(differing) <= {"created", "timings_s"}


def test_timings_say_where_the_time_went(clean: DiffReport) -> None:
    assert "total" not in clean.timings_s  # the table adds them up
    assert {"weights", "preflight", "semantics", "precision", "observability"} <= clean.timings_s.keys()
    assert all(seconds >= 0 for seconds in clean.timings_s.values())


def test_a_stage_alone_opens_the_models_of_its_dtype_alone() -> None:
    report = diff(tiny("llama", dtype="bfloat16", tokens=6), stages=["precision"])
    assert {stage.name for stage in report.stages} == {"exact", "precision"}
    assert [step for step in report.timings_s if step.startswith("load")] == ["load bfloat16"]


@pytest.mark.parametrize("layers", ["first-bad", "0-1"])
def test_behaviour_alone_takes_every_layer(layers: str) -> None:
    with pytest.raises(UsageError, match=f"--stage behaviour with --layers {layers}"):
        diff(tiny("llama", tokens=6), stages=["behaviour"], layers=layers)


def test_float32_has_no_precision_stage() -> None:
    report = diff(tiny("llama", tokens=6))
    stages = [(stage.name, stage.dtype) for stage in report.stages]
    assert stages == [("exact", "float32"), ("semantics", "float32"), ("behaviour", "float32")]
    assert report.environment["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"reference": "keras"}, "--reference 'keras'"), ({"fail_on": ("nonsense",)}, "--fail-on 'nonsense'"),
        ({"fail_on": ("exactt",)}, "did you mean exact"), ({"layers": "99"}, "there is no layer 99"),
        ({"tokens": 0}, "--tokens 0"), ({"tokens": -3}, "--tokens -3"), ({"device": "banana"}, "--device 'banana'"),
        ({"dtype": "int8"}, "--dtype 'int8'"), ({"ops": "cuda"}, "--ops 'cuda'"),
        ({"prompt": "Hello"}, "without a tokenizer"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_arguments_are_refused(given: dict, message: str) -> None:
    with pytest.raises(PorterError) as caught:
        run(**{"tokens": 8, **given}) if "tokens" not in given else diff(tiny("gemma3"), **given)
    assert message in str(caught.value) and caught.value.exit_code == 2


def test_flags_go_over_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record(tiny("gemma3", "block.mlp.act=gelu", dtype="bfloat16", tokens=9))
    none = (None, None, (), None, None, None)
    same = find_build("gemma3-tiny", *none)
    assert same.overrides == ("block.mlp.act=gelu",) and same == find_build(None, *none)
    more = find_build(None, None, None, ("norm.offset=0",), "float32", "triton", "cpu")
    assert more.overrides == ("block.mlp.act=gelu", "norm.offset=0")
    assert (more.dtype, more.ops, more.tokens, more.blueprint.norm.offset) == ("float32", "triton", 9, 0)
    assert find_build("gemma3", "tiny", None, (), None, None, None).overrides == ()  # a family is no build


def test_the_python_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    built = porter.build("llama", size="tiny", dtype="float32", tokens=5)
    assert built.name == "llama-tiny" and (tmp_path / "builds/llama-tiny/build.json").is_file()
    assert porter.diff().verdict == porter.diff(built).verdict == porter.diff("llama-tiny").verdict == "PASS"
    assert not (tmp_path / "diff_reports").exists()  # a report is the caller's to write
