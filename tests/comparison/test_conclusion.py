"""The one sentence: verdict, node, number, and where to look."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from porter.comparison.conclusion import Findings, make_report
from porter.comparison.observed import Axis
from porter.comparison.report import Check, DiffReport, Local, NodeDiff, Stage
from porter.comparison.sentence import sentence
from porter.comparison.verdicts import all_limits
from tests.models.tiny import tiny

SEEN = Axis("norm.eps", "1e-06", "1e-05", "semantics", "layers.0.attn.norm", "")
STAGE = Stage("semantics", "float32", "PASS", 1, None, "")


def node(status: str, name: str = "layers.0.attn.ctx", reason: str = "rho 12 > 10") -> NodeDiff:
    local = None if status == "NOT_COMPARED" else Local(1.0, 1.0, 1.0, 1.0, 0, ())
    return NodeDiff(name, "observable", "semantics", "float32", (1,), status, reason, local=local)


def report(*, nodes=(), stages=(STAGE,), checks=(), axes=(), fail_on=(), command: str = "") -> DiffReport:
    found = Findings(
        nodes=list(nodes), stages=list(stages), checks=list(checks), axes=list(axes),
        declared={each.name for each in nodes},
    )  # fmt: skip
    return make_report(tiny("gemma"), found, ops="reference", device=torch.device("cpu"), fail_on=fail_on,
                       command=command, timings_s={"weights": 0.12345})  # fmt: skip


def stage(status: str, name: str = "semantics", detail: str = "rho 5 > 4") -> Stage:
    return Stage(name, "float32", status, 3, "layers.0.attn.norm", detail)


EVERY_LAYER = [node("PASS", f"layers.{index}.attn.ctx") for index in range(3)]
CASES = [
    ({"nodes": EVERY_LAYER}, 0, "PASS: 3 nodes of 3 layers agree with the reference in float32."),
    ({"nodes": [node("PASS")]}, 0, "PASS: 1 nodes of 1 of 3 layers agree with the reference in float32."),
    ({"nodes": [node("PASS")], "axes": [Axis("block.attn.window", "8", "9", None, None, "why"), SEEN]}, 0,
     "PASS: 1 nodes of 1 of 3 layers agree with the reference in float32; it was blind to 1 of 2 axes."),
    ({"nodes": [node("FAIL")], "stages": [stage("FAIL")]}, 1,
     "FAIL at layers.0.attn.ctx (semantics, float32): rho 12 > 10; look at block.rope.*"),
    ({"nodes": [node("INCONCLUSIVE")], "stages": [stage("INCONCLUSIVE")]}, 4, "INCONCLUSIVE at layers.0.attn.n"),
    ({"stages": ()}, 4, "INCONCLUSIVE: no node was compared."),
    ({"stages": [stage("WARN")]}, 0, "WARN at layers.0.attn.norm (semantics, float32): rho 5 > 4."),
    ({"stages": [stage("WARN")], "fail_on": ["warn"]}, 1, "FAIL at layers.0.attn.norm (semantics, float32): rho 5"),
    ({"stages": [stage("WARN", "exact", "1 of 3 nodes differ"), STAGE]}, 0,
     "WARN at layers.0.attn.norm (exact, float32): 1 of 3 nodes differ; same function, other rounding: look at norm.*"),
    ({"nodes": [node("PASS")], "stages": [Stage("exact", "float32", "PASS", 1, None, "")]}, 0,
     "PASS: 1 nodes of 1 of 3 layers are the reference’s bit for bit in float32."),
    ({"stages": [stage("WARN", "exact", "1 of 3 nodes differ")]}, 0,
     "WARN at layers.0.attn.norm (exact, float32): 1 of 3 nodes differ; --stage semantics says whether it is another"),
    ({"stages": [stage("WARN", "exact", "d")], "fail_on": ["exact"]}, 1, "FAIL at layers.0.attn.norm (exact, float32)"),
    ({"stages": [stage("WARN", "exact", "d"), STAGE], "fail_on": ["exact"]}, 1, "FAIL at layers.0.attn.norm (exact"),
    ({"stages": [stage("WARN", "exact", "d"), stage("WARN")], "fail_on": ["exact"]}, 1,
     "FAIL at layers.0.attn.norm (exact"),
    ({"checks": [Check("config", "WARN", "differs")]}, 0, "WARN: config differs."),
    ({"nodes": [node("PASS"), node("NOT_COMPARED", "logits")], "fail_on": ["missing"]}, 1, "FAIL: 1 nodes were not"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "exit_code", "said"), CASES, ids=lambda each: str(each)[:40])
def test_the_sentence_says_what_happened(given: dict, exit_code: int, said: str) -> None:
    found = report(**given)
    assert found.sentence.startswith(said) and found.exit_code == exit_code
    assert "\n" not in found.sentence and found.sentence.startswith(found.verdict)


@pytest.mark.parametrize(
    ("name", "spec", "overrides", "command"),
    [
        ("gemma-3-270m", "gemma3", (), "gemma3 --size gemma-3-270m --weights random:stress --dtype float32"),
        ("gemma3-tiny", "gemma3", ("a=b c",),
         "gemma3 --size tiny --weights random:stress --dtype float32 --set 'a=b c'"),
        ("olmo2-tiny", "./olmo2.yaml", (), "./olmo2.yaml --size tiny --weights random:stress --dtype float32"),
        ("llama", "llama", (), "llama --weights random:stress --dtype float32"),
    ],
)  # fmt: skip
def test_a_failure_ends_in_a_command_that_can_be_run(name: str, spec: str, overrides: tuple, command: str) -> None:
    found = report(nodes=[node("FAIL")], stages=[stage("FAIL")])
    found = replace(found, name=name, overrides=overrides, port=replace(found.port, details={"spec": spec}))
    assert sentence(found).endswith(f"; next: porter explain {command}")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("", ""),
        ("--reference hf --layers all", ""),
        ("gemma --size tiny --set 'act = relu' --tokens 9", "gemma --size tiny --set 'act = relu' --tokens 9"),
        ("--grad --timings --set=a=b --json - gemma --self-check", "--set=a=b gemma"),
        ("--fail-on=exact --dtype float16 --stage exact --axes --prompts p.jsonl", "--dtype float16 --prompts p.jsonl"),
    ],
)
def test_the_next_command_has_the_flags_of_the_diff(given: str, kept: str) -> None:
    found = report(nodes=[node("FAIL")], stages=[stage("FAIL")], command=f"porter diff {given}".strip())
    assert found.sentence.endswith(f"; next: porter explain {kept}".rstrip())


def test_every_flag_of_diff_is_kept_or_left_out() -> None:
    from porter.cli.diff import diff
    from porter.cli.explain import explain
    from porter.comparison.sentence import _DIFF_FLAGS, _DIFF_SWITCHES

    def flags(command) -> dict[str, bool]:
        return {each.opts[0]: each.is_flag for each in command.params if each.opts[0].startswith("-")}

    left = {name: is_flag for name, is_flag in flags(diff).items() if name in {*_DIFF_FLAGS, *_DIFF_SWITCHES}}
    assert {name for name, is_flag in left.items() if is_flag} == set(_DIFF_SWITCHES)
    assert flags(diff).keys() - left.keys() <= flags(explain).keys()


def test_a_report_says_where_it_ran(tmp_path: Path) -> None:
    found = report(nodes=[node("PASS")], command="porter diff gemma")
    assert {"porter", "python", "torch", "transformers", "threads", "TF32", "TRITON_DEFAULT_FP_FUSION"} <= set(
        found.environment
    )
    assert found.environment["torch"] == torch.__version__ and found.command == "porter diff gemma"
    assert found.timings_s == {"weights": 0.123} and found.created.endswith("+00:00")
    assert found.thresholds == all_limits() and found.thresholds["bfloat16"]["rho_tok"] == (2.0, 3.0)
    assert (found.port.what, found.weights, found.num_layers) == ("gemma-tiny, plain torch", "random:stress", 3)
    assert report().command == "porter.diff('gemma-tiny')"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("layers.2.resid_pre", "attention's norm, and its sum with the residual stream"), ("logits", "the loss"),
        ("layers.0.mlp.gate.weight", "the activation"), ("layers.0.mlp.norm.weight", "that norm"),
        ("layers.0.attn.qkv.bias", "the product it is in"), ("embed.weight#head", "the head"),
        ("layers.0.attn.q_norm.weight", "that norm"), ("layers.0.attn.k.weight", "rotary, scores and softmax"),
    ],
)  # fmt: skip
def test_a_gradient_that_fails_names_the_backward_pass_it_comes_from(name: str, what: str) -> None:
    bad = replace(node("FAIL", f"grad:{name}", "ρ 9 > 4"), stage="gradients")
    found = report(nodes=[bad], stages=[replace(stage("FAIL"), name="gradients")]).sentence
    where = f"FAIL at grad:{name} (gradients, float32): ρ 9 > 4; look at the backward pass of {what}; "
    assert found == f"{where}next: porter diff gemma-tiny --stage gradients"
