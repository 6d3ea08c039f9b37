"""Gradients of clean ports pass in every family; what is compared, and how it is called."""

from dataclasses import replace

import pytest
import torch

from porter.comparison.gradients.measure import measure_node, measure_parameter
from porter.comparison.report import NodeDiff
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
