"""Shares of layers and nodes sum to 1, and are those of models that are the port up to a layer."""

from pathlib import Path

import pytest
import torch

from porter.comparison.diff import diff
from porter.comparison.observed import Share
from porter.comparison.progress import Silent
from porter.comparison.prompts import read_prompts
from porter.errors import UsageError
from porter.explanation.attribution import attribute, attribute_report
from tests.models.tiny import tiny

MODULES = Path(__file__).resolve().parents[1] / "user_modules"


def of(shares: tuple[Share, ...], kind: str) -> dict[str, float]:
    return {each.unit: each.share for each in shares if each.kind == kind}


def unit_of(node: str) -> str:
    parts = node.split(".")
    return ".".join(parts[:2]) if parts[0] == "layers" else "embed" if parts[0] == "embed" else "head"


def attributed(family: str, *overrides: str, at: str = "float32", **changes) -> tuple[Share, ...]:
    return attribute(tiny(family, *overrides, tokens=24, **changes), at=at)


CASES = [  # family, faults, dtype, nodes that have a share
    ("gemma", ["embed.scale=1.0"], "float32", {"embed.out"}),
    ("gemma2", ["head.softcap=null"], "float32", {"logits"}),
    ("gemma3", ["block.mlp.act=gelu"], "float32", {f"layers.{i}.mlp.act" for i in range(6)}),
    ("llama", ["layers[1].attn.scale=0.3"], "float32", {"layers.1.attn.ctx"}),
    ("llama", ["norm.math=scale_then_cast"], "bfloat16",
     {"final.norm", *(f"layers.{i}.{node}.norm" for i in range(3) for node in ("attn", "mlp"))}),
    ("gpt_neox", ["block.mlp.act=relu2", "norm.eps=1e-3"], "float32",
     {"final.norm", *(f"layers.{i}.{node}" for i in range(3) for node in ("attn.norm", "mlp.norm", "mlp.act"))}),
    ("phi3", ["block.rope.theta=20000"], "float32",
     {f"layers.{i}.attn.{node}" for i in range(3) for node in ("q_rope", "k_rope")}),
    ("mixtral", ["layers[0].attn.scale=0.3"], "float32", {"layers.0.attn.ctx"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("family", "faults", "at", "nodes"),
    CASES,
    ids=lambda each: str(sorted(each) if isinstance(each, set) else each)[:40],
)
def test_shares_sum_to_one_and_are_those_of_the_nodes_that_are_wrong(
    family: str, faults: list[str], at: str, nodes: set[str]
) -> None:
    shares = attributed(family, *faults, at=at)
    assert sum(of(shares, "layer").values()) == pytest.approx(1, abs=1e-9)
    assert sum(of(shares, "node").values()) == pytest.approx(1, abs=1e-9)
    assert of(shares, "node").keys() == nodes and {each.dtype for each in shares} == {at}
    for unit, share in of(shares, "layer").items():
        inside = [part for node, part in of(shares, "node").items() if unit_of(node) == unit]
        assert sum(inside) == pytest.approx(share, abs=1e-9)


def test_a_large_fault_of_one_layer_has_most_of_the_difference_and_a_right_layer_nothing() -> None:
    small, large, right = "block.mlp.act=gelu", "layers[2].mlp.act=relu2", "layers[4].mlp.act=gelu_tanh"
    shares = of(attributed("gemma3", small, large, right), "layer")
    assert shares["layers.2"] > 0.9 and shares.keys() == {f"layers.{i}" for i in (0, 1, 2, 3, 5)}


def test_shares_are_those_of_models_that_are_the_port_up_to_a_layer() -> None:
    faults = [f"layers[{i}].mlp.act=gelu" for i in range(3)]
    port = tiny("llama", *faults, tokens=24)
    ids_BT = torch.tensor([read_prompts(port.blueprint, None, None, None, 24)[0].ids])
    at = (23 - (torch.arange(16) * 24) // 16).flip(0)
    with torch.no_grad():
        logits = [tiny("llama", *faults[:i]).model("float32")(ids_BT)[0, at].double() for i in range(4)]
    d = logits[3] - logits[0]
    wanted = {f"layers.{i}": float(((logits[i + 1] - logits[i]) * d).sum() / d.square().sum()) for i in range(3)}
    assert of(attribute(port, at="float32"), "layer") == pytest.approx(wanted, rel=1e-4)
    assert max(wanted.values()) < 0.9  # else any measure would do


def test_a_right_port_has_nothing_to_attribute() -> None:
    assert attributed("gemma3") == () and attributed("qwen3", at="bfloat16", dtype="bfloat16") == ()


def test_fused_ops_round_otherwise_at_their_own_nodes() -> None:
    shares = attributed("llama", ops="triton")
    assert sum(of(shares, "layer").values()) == pytest.approx(1, abs=1e-9)
    assert sum(of(shares, "node").values()) == pytest.approx(1, abs=1e-9)


def test_a_module_is_attributed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(MODULES)
    shares = attribute(
        tiny("llama", tokens=24), port="module:my_llama:load_swapped", map=MODULES / "my_llama.map.yaml", at="float32"
    )
    assert sum(of(shares, "layer").values()) == pytest.approx(1, abs=1e-9)
    nodes = of(shares, "node")
    assert sum(nodes.values()) == pytest.approx(1, abs=1e-9)
    assert sum(share for node, share in nodes.items() if node.endswith(".mlp.act")) > 0.99


def test_a_report_is_attributed_in_the_dtype_in_which_it_first_differs() -> None:
    port = tiny("llama", "norm.math=scale_then_cast", dtype="bfloat16", tokens=24)
    report = diff(port, stages=["semantics", "precision"])
    found = attribute_report(report, port, Silent(), reference="hf", layers="all")
    assert {each.dtype for each in found.attribution} == {"bfloat16"} and found.timings_s["attribution"] > 0
    failing = diff(tiny("llama", "norm.eps=1e-3", dtype="bfloat16", tokens=24), stages=["semantics"])
    assert failing.first_fail is not None
    found = attribute_report(failing, tiny("llama", "norm.eps=1e-3", dtype="bfloat16", tokens=24), Silent())
    assert {each.dtype for each in found.attribution} == {"float32"}


def test_a_dump_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--attribution with --port dump:x\n  expected: two sides that run"):
        attribute(tiny("llama"), port="dump:x", at="float32")
