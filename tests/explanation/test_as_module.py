"""A port as a module of another make: the same numbers, its nodes where the map says, and no spec to be seen."""

import pytest
import torch

from porter.comparison.capture import capture
from porter.comparison.diff import diff
from porter.comparison.prompts import read_prompts
from porter.explanation.as_module import make_module, node_map
from porter.explanation.explain import explain
from tests.models.tiny import tiny


@pytest.mark.parametrize("family", ["gemma3", "gpt_neox", "mixtral"])
def test_it_computes_what_the_port_does_and_shows_its_nodes(family: str) -> None:
    port = tiny(family, tokens=24)
    ids_BT = torch.tensor([read_prompts(port.blueprint, None, None, None, 24)[0].ids])
    with torch.no_grad():
        assert torch.equal(make_module(port)(ids_BT), port.model("float32")(ids_BT))
    report = diff(port, port=make_module(port), map=node_map(), stages=["semantics"])
    assert report.verdict in ("PASS", "WARN") and report.first_fail is None
    shown = {node.node for node in report.nodes if node.status != "NOT_COMPARED"}
    assert {"attn.norm", "attn.q_rope", "attn.ctx", "attn.out", "resid_post", "final.norm", "logits"} <= shown


def test_faults_of_the_function_and_of_rounding_are_found_in_their_dtypes() -> None:
    port = tiny("llama", "block.mlp.act=gelu", "norm.math=scale_then_cast", dtype="bfloat16", tokens=24)
    right = tiny("llama", dtype="bfloat16", tokens=24)
    found = explain(right, port=make_module(port), map=node_map())
    assert found.kept == ("block.mlp.act=gelu", "norm.math=scale_then_cast")
    assert [step.by for step in found.steps] == ["semantics", "exact"]
    assert {each.partition(" ")[0] for each in found.looked_at} == {"float32", "bfloat16"}
    assert "in float32 and bfloat16" in found.record.conclusion


def test_a_number_that_a_dump_holds_wider_than_it_was_has_its_bits(tmp_path) -> None:
    port = tiny("mixtral", dtype="bfloat16", tokens=24)
    capture(port, out=tmp_path / "dump")
    found = explain(port, port=f"dump:{tmp_path / 'dump'}")
    assert (found.outcome, found.steps) == ("nothing", ())
