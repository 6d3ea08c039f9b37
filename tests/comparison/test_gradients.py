"""Gradients of clean ports pass in every family; what is compared, and how it is called."""

import gc
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from porter.comparison.diff import diff
from porter.comparison.gradients.measure import measure_node, measure_parameter, square_errors
from porter.comparison.gradients.stage import _Unit, rounded_otherwise
from porter.comparison.report import DiffReport, NodeDiff
from porter.models.backward import Gradients, differentiate
from porter.models.layers import Layer
from porter.reports.html import to_html
from porter.reports.json_report import to_json
from porter.reports.read_json import from_json
from porter.reports.recheck import recheck
from porter.specs.blueprint import Blueprint
from tests.comparison.gradient_runs import failing, run
from tests.models.tiny import FAMILIES, random_ids, tiny

CLEAN = 1.75  # largest of clean ports of 20 to 40 tokens: 1.56, of a bias of 64 elements


def expected(blueprint: Blueprint) -> set[str]:
    """A gradient for every parameter; two for a tied embedding."""
    found = {f"grad:{name}" for name in blueprint.parameters()}
    if blueprint.head.tied:
        found = found - {"grad:embed.weight"} | {"grad:embed.weight#lookup", "grad:embed.weight#head"}
    return found


def check_clean(family: str, nodes: list[NodeDiff]) -> None:
    assert {node.status for node in nodes} == {"PASS"}, [n for n in nodes if n.status != "PASS"]
    assert max(node.local.rho for node in nodes if node.local) <= CLEAN
    blueprint = tiny(family).blueprint
    assert {node.name for node in nodes if node.is_parameter} == expected(blueprint)
    for i in range(blueprint.dims.layers):
        own = {node.node for node in nodes if node.layer == i and not node.is_parameter}
        assert own >= {"attn.ctx", "attn.out", "mlp.act", "mlp.out", "resid_pre"} and "resid_post" not in own


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_clean_port_passes(family: str, dtype: str) -> None:
    check_clean(family, run(family, dtype=dtype))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_clean_port_with_fused_ops_passes(family: str) -> None:
    check_clean(family, run(family, ops="triton", tokens=20))


def test_float16_loses_no_gradient_at_the_bottom() -> None:
    nodes = run("gemma3", dtype="float16")
    assert {node.status for node in nodes} == {"PASS"}
    assert max(node.local.e_ref for node in nodes if node.local) < 0.01


def test_nodes_come_in_the_order_of_the_backward_pass() -> None:
    names = [node.name.removeprefix("grad:") for node in run("mistral")]
    assert names[:5] == ["logits", "head.weight", "final.norm", "final_norm.weight", "final.resid_pre"]
    layer = [name.removeprefix("layers.2.") for name in names if name.startswith("layers.2.")]
    assert layer == [
        "mlp.out", "mlp.down.weight", "mlp.act", "mlp.up", "mlp.up.weight", "mlp.gate", "mlp.gate.weight", "mlp.norm",
        "mlp.norm.weight", "resid_mid", "attn.out", "attn.o.weight", "attn.ctx", "attn.k_rope", "attn.q_rope",
        "attn.v", "attn.v.weight", "attn.k", "attn.k.weight", "attn.q", "attn.q.weight", "attn.norm",
        "attn.norm.weight", "resid_pre",
    ]  # fmt: skip
    assert names[-1] == "embed.weight"


def test_shapes_and_rows_are_those_of_the_parameter() -> None:
    nodes = {node.name: node for node in run("gemma3", ops="triton")}
    dims, ids = tiny("gemma3").blueprint.dims, set(random_ids(tiny("gemma3"), 24).flatten().tolist())
    assert nodes["grad:embed.weight#head"].shape == (dims.vocab, dims.hidden)
    lookup = nodes["grad:embed.weight#lookup"]
    assert lookup.shape == (len(ids), dims.hidden) and lookup.local.token in ids - {*range(24)}
    norm = nodes["grad:layers.0.mlp.norm.weight"]
    assert norm.shape == (dims.hidden,) and len(norm.worst.at) == 1
    down = nodes["grad:layers.0.mlp.down.weight"]
    assert down.shape == (dims.hidden, dims.ffn) and len(down.worst.at) == 2
    assert nodes["grad:layers.0.attn.ctx"].kind == nodes["grad:layers.0.attn.q.weight"].kind == "observable"
    assert nodes["grad:layers.0.attn.q"].kind == "gauge" and nodes["grad:layers.0.attn.q"].layer == 0


def test_a_list_of_layers_measures_those_alone() -> None:
    nodes = run("llama", layers=(1,))
    assert {node.layer for node in nodes} == {1}
    assert nodes == [node for node in run("llama") if node.layer == 1]


def test_first_bad_stops_after_the_unit_that_fails() -> None:
    nodes = run("llama", "layers[1].mlp.act=gelu", first_bad=True)
    assert {node.layer for node in nodes} == {None, 2, 1} and failing(nodes)


def test_more_tokens_than_the_head_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("porter.comparison.stages._LOGIT_ELEMENTS", 5 * 512)
    nodes = {node.name: node for node in run("llama")}
    assert nodes["grad:logits"].shape == (1, 5, 512) and nodes["grad:layers.2.attn.ctx"].shape[1] == 24
    assert {node.status for node in nodes.values()} == {"PASS"}


def test_a_vocabulary_in_chunks_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {node.name: node for node in run("gemma2")}
    monkeypatch.setattr("porter.weights.reader._CHUNK_ELEMENTS", 96 * 100)
    chunks = {node.name: node for node in run("gemma2")}
    assert {node.status for node in chunks.values()} == {"PASS"} and chunks.keys() == whole.keys()
    head = "grad:embed.weight#head"
    assert chunks[head].shape == whole[head].shape
    assert chunks[head].local.e_ref == pytest.approx(whole[head].local.e_ref, rel=0.05)


GOLDEN = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)


def test_no_gradient_is_as_good_as_zeros_and_a_fault_on_one_side_alone() -> None:
    zeros, some = torch.zeros(2, 2), GOLDEN.float()
    for port, reference in ((None, None), (None, zeros), (zeros, None)):
        found = measure_parameter("mlp.up.weight", "float32", port, reference, reference)
        assert (found.status, found.reason) == ("PASS", "no gradient on either side")
    lost = measure_parameter("mlp.up.weight", "float32", None, some, GOLDEN)
    assert (lost.status, lost.reason) == ("FAIL", "no gradient in the port, one in the reference")
    made = measure_node("attn.ctx", "float32", some[None], None, None)
    assert (made.status, made.reason) == ("FAIL", "no gradient in the reference, one in the port")
    assert measure_node("layers.1.attn.q", "float32", some[None], None, None).status == "WARN"


def test_rows_without_gradient_do_not_count_as_infinitely_wrong() -> None:
    port = GOLDEN.float() + torch.tensor([[0.0, 0.0], [0.0, 1e-12]])
    found = measure_parameter("mlp.up.weight", "float32", port, GOLDEN.float(), GOLDEN)
    assert found.status == "PASS" and found.local.rho_tok < 1


def test_a_bias_whose_terms_cancel_is_judged_by_the_terms() -> None:
    nothing, port = torch.full((4,), 1e-18, dtype=torch.float64), torch.full((4,), 1e-9)
    alone = measure_parameter("attn.k.bias", "float32", port, port * 0.5, nothing)
    assert alone.status == "INCONCLUSIVE"
    assert measure_parameter("attn.k.bias", "float32", port, port * 0.5, nothing, least=1.0).status == "PASS"
    assert measure_parameter("attn.k.bias", "float32", port * 1e4, port, nothing, least=1.0).status == "FAIL"


def test_a_scaled_gradient_fails() -> None:
    golden = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)).double()
    found = measure_parameter("mlp.up.weight", "float32", golden.float() * 1.01, golden.float(), golden)
    assert found.status == "FAIL" and found.local.e_port == pytest.approx(0.01, rel=1e-3)
    assert replace(found, name="x").is_parameter is False


def statuses(report: DiffReport) -> list[tuple[str, str, str]]:
    return [(stage.name, stage.dtype, stage.status) for stage in report.stages]


def test_a_diff_compares_gradients_where_it_is_asked_to() -> None:
    build = tiny("gemma3", dtype="bfloat16", tokens=12)
    report = diff(build, stages=["semantics"], grad=True)
    assert statuses(report) == [
        ("exact", "float32", "PASS"), ("semantics", "float32", "PASS"), ("gradients", "float32", "PASS"),
        ("gradients", "bfloat16", "PASS"),
    ]  # fmt: skip
    assert report.compared == report.declared == 117 + 198 and report.verdict == "PASS"
    assert {"semantics", "gradients"} <= report.timings_s.keys()
    alone = diff(build, stages=["gradients"], layers="1")
    assert statuses(alone) == [("gradients", "float32", "PASS"), ("gradients", "bfloat16", "PASS")]
    assert {node.layer for node in alone.nodes} == {1}
    both = [{node.name: node for node in each.nodes if node.dtype == "bfloat16"} for each in (alone, report)]
    assert both[0] == {name: both[1][name] for name in both[0]}
    assert not any(node.stage == "gradients" for node in diff(build, stages=["semantics"]).nodes)


def test_tied_embeddings_say_which_share_is_meant() -> None:
    nodes = {node.name: node for node in run("gemma3")}
    said = nodes["grad:embed.weight#head"].reason
    assert said == "(tied: the share of the head; that of the lookup is compared apart)"
    assert "share" not in "".join(node.reason for node in run("llama"))


def test_one_token_has_no_next_token() -> None:
    report = diff(tiny("llama", tokens=1), stages=["gradients"])
    assert (report.verdict, report.exit_code) == ("INCONCLUSIVE", 4)
    assert report.stages[0].detail == "a prompt of one token has no next token"


def test_several_prompts_keep_the_worst(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"ids": [5]}\n{"ids": [5, 6, 7, 8]}\n{"ids": [9, 8, 7, 6, 5, 4]}\n')
    report = diff(tiny("llama"), stages=["gradients"], prompts=path)
    assert {node.prompt for node in report.nodes} == {1, 2} and report.verdict == "PASS"


def test_first_bad_goes_backwards_only_where_the_forward_pass_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = diff(tiny("llama", "block.mlp.act=gelu", tokens=8), layers="first-bad", grad=True)
    assert [stage.name for stage in wrong.stages] == ["exact", "semantics"]
    original = Layer.forward
    monkeypatch.setattr(Layer, "forward", lambda self, x, *args: original(self, x, *args) + 0.1 * (x - x.detach()))
    report = diff(tiny("llama", tokens=8), layers="first-bad", grad=True)
    assert statuses(report)[-1] == ("gradients", "float32", "FAIL")
    assert report.first_fail.name == "grad:layers.2.resid_pre"
    assert {node.layer for node in report.of_stage("gradients")} == {2, None}
    assert "look at the backward pass of attention's norm" in report.sentence
    assert report.sentence.endswith("next: porter diff llama-tiny --stage gradients")


def test_a_report_with_gradients_is_read_back_and_judged_again() -> None:
    report = diff(tiny("gemma3", tokens=8, ops="triton"), stages=["gradients"])
    assert from_json(to_json(report)) == report
    again = recheck(report, ["f32.rho_grad.warn=1.0001", "f32.rho_grad.fail=1.0002"])
    assert again.verdict == "FAIL" and again.stages[0].first.startswith("grad:")
    assert recheck(report, ["f32.rho.warn=0.001", "f32.rho.fail=0.002"]).verdict == "PASS"
    assert "grad:layers.0.attn.q.weight" in to_html(again)


def test_memory_is_flat_in_the_number_of_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert most_bytes(4, monkeypatch) <= most_bytes(2, monkeypatch)


def tensors() -> list[Tensor]:
    """What holds memory on the CPU; tensors of other kinds, a compiler's say, have no bytes to count."""
    alive = [each for each in gc.get_objects() if type(each) in (Tensor, torch.nn.Parameter)]
    return [each for each in alive if each.device.type == "cpu"]


def most_bytes(num_layers: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """The most bytes of weights and of their gradients at the end of a layer's backward pass, golden's too."""
    build = tiny("llama", tokens=6)
    build.config["num_hidden_layers"] = num_layers  # type: ignore[index]
    peak, before = 0, tensors()
    others = {id(each) for each in before}  # of other tests in this process

    def count(out: Tensor, inputs: Sequence[Tensor], upstream: Tensor) -> list[Tensor | None]:
        nonlocal peak
        found = differentiate(out, inputs, upstream)
        own = [each for each in tensors() if id(each) not in others]
        peak = max(peak, sum(each.nbytes for each in own if each.ndim <= 2 or each.shape[1] != 6))
        return found

    with monkeypatch.context() as patch:
        patch.setattr("porter.references.backward.differentiate", count)
        diff(build, stages=["gradients"])
    assert peak > 0
    return peak


def test_what_the_reference_cannot_show_is_not_compared() -> None:
    port = Gradients({"attn.ctx": GOLDEN}, {"mlp.up.weight": GOLDEN, "mlp.up.bias": None})
    golden, reference = Gradients({}, {}), Gradients({}, {}, {"mlp.up.weight": "made by a step without gradient"})
    found = {node.name: node for node in _Unit("float32", [golden, reference, port], "layers.0.").compare()}
    assert {node.status for node in found.values()} == {"NOT_COMPARED"}
    assert found["grad:layers.0.attn.ctx"].reason == "the reference does not show it"
    assert found["grad:layers.0.mlp.up.weight"].reason == "made by a step without gradient"
    assert found["grad:layers.0.mlp.up.bias"].reason == "the reference has no parameter that is made of its tensor"


def test_an_error_that_is_near_zero_by_chance_is_no_floor() -> None:
    golden = torch.linspace(1, 2, 8, dtype=torch.float64)[None, :, None]
    lucky, port = golden + 1e-7, golden + 1e-3
    chance = [square_errors(golden + 5e-4, golden, of_parameter=False) for _ in range(3)]
    alone, among = (
        measure_node("layers.0.mlp.out", "float32", port, lucky, golden, elsewhere=errors) for errors in ((), chance)
    )
    assert alone.status == "FAIL" and among.status == "PASS"
    assert among.local.rho == pytest.approx(2 / math.sqrt(3 / 4), rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_an_input_is_rounded_otherwise_by_one_step_of_its_dtype(dtype: torch.dtype) -> None:
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[:4] = torch.tensor([0.0, torch.inf, torch.finfo(dtype).max, -torch.finfo(dtype).max], dtype=dtype)
    moved = rounded_otherwise(x, 0)
    steps = (moved.double() - x.double()).abs() / (x.double().abs() * torch.finfo(dtype).eps).clamp_min(1e-300)
    assert moved.dtype == dtype and torch.equal(moved[:2], x[:2]) and moved[2:].isfinite().all()
    assert 0.2 < float((moved != x).float().mean()) < 0.3 and float(steps[2:].max()) <= 1
    assert torch.equal(moved, rounded_otherwise(x, 0)) and not torch.equal(moved, rounded_otherwise(x, 1))


def test_one_number_that_holds_a_narrow_gradient_s_error_decides_nothing_and_in_float32_it_does() -> None:
    golden = torch.linspace(1, 2, 640, dtype=torch.float64)
    golden[163] = 1e4
    reference, port = golden * (1 + 2e-3), golden * (1 + 2e-3)
    reference[163], port[163] = 1e4 * (1 + 1e-6), 1e4 * (1 + 3e-2)
    narrow, wide = (measure_parameter("layers.0.attn.norm.weight", dtype, port, reference, golden)
                    for dtype in ("bfloat16", "float32"))  # fmt: skip
    assert narrow.status == "PASS" and narrow.local.rho == pytest.approx(1.0)
    assert wide.status == "FAIL"
    port[7] *= 1.5  # any other number counts
    assert measure_parameter("layers.0.attn.norm.weight", "bfloat16", port, reference, golden).status == "FAIL"
    scalar = torch.tensor([1.0], dtype=torch.float64)
    assert measure_parameter("layers.0.x", "bfloat16", 2 * scalar, scalar, scalar).status == "FAIL"
