"""Routing in a diff: taken from the reference on every side, and looked at by itself."""

import pytest
import torch

from porter.comparison.diff import diff
from porter.comparison.report import NodeDiff
from porter.comparison.routing import judge_routing
from porter.models.moe import Routed
from tests.models.tiny import tiny

NODE = NodeDiff("layers.0.moe.topk", "observable", "semantics", "float32", (1, 4, 2), "PASS", "")
SCORES = torch.tensor([[[0.9, 0.6, 0.5999999, 0.1]] * 4], dtype=torch.float64)
RIGHT = torch.tensor([[[0, 1]] * 4])


def judged(port: torch.Tensor, scores: torch.Tensor = SCORES) -> NodeDiff:
    return judge_routing(NODE, Routed(RIGHT, RIGHT, scores), Routed(RIGHT, RIGHT), Routed(port, RIGHT))


def test_the_order_of_a_choice_is_no_other_choice() -> None:
    assert judged(RIGHT.flip(-1)) == NODE


def test_a_tie_that_rounding_decides_is_inconclusive_and_a_clear_one_fails() -> None:
    near, clear = RIGHT.clone(), RIGHT.clone()
    near[0, 2, 1], clear[0, 3, 1] = 2, 3
    found = judged(near)
    assert found.status == "INCONCLUSIVE" and found.reason.startswith("1 of 4 tokens go to other experts")
    found = judged(clear)
    assert found.status == "FAIL" and found.reason.endswith("rounding does not explain it at tokens 3")
    assert judged(RIGHT[..., :1]).reason == "a token goes to 1 experts, the reference's to 2"


def test_another_group_is_inconclusive_for_few_tokens_alone() -> None:
    scores = SCORES.clone().repeat(1, 5, 1)
    scores[..., 2:] = -torch.inf
    right, port = RIGHT.repeat(1, 5, 1), RIGHT.repeat(1, 5, 1)
    port[0, :2] = torch.tensor([2, 3])
    golden, reference = Routed(right, right, scores), Routed(right, right)
    assert judge_routing(NODE, golden, reference, Routed(port, right)).status == "INCONCLUSIVE"
    port[0, :3] = torch.tensor([2, 3])
    assert judge_routing(NODE, golden, reference, Routed(port, right)).status == "FAIL"


def test_a_right_mixture_passes_and_a_wrong_router_fails_at_its_node() -> None:
    right = diff(tiny("mixtral", tokens=160, dtype="bfloat16"), stages=("semantics", "precision", "exact"))
    assert right.verdict == "PASS" and {"moe.router", "moe.topk", "moe.out"} <= {node.node for node in right.nodes}
    for override, node in (
        ("moe.router.renorm=false", "moe.topk"), ("moe.top_k=1", "moe.topk"), ("moe.act=gelu", "moe.out"),
    ):  # fmt: skip
        wrong = diff(tiny("mixtral", f"block.{override}", tokens=40), stages=("semantics",))
        first = next(each for each in wrong.nodes if each.status == "FAIL")
        assert (wrong.verdict, first.name) == ("FAIL", f"layers.0.{node}"), override


@pytest.mark.parametrize("planted", [0, 7])
def test_golden_and_the_port_take_the_references_experts(planted: int) -> None:
    """A reference whose router is made to choose otherwise has both follow: its weights and outputs are compared."""
    from porter.comparison.cached_lane import Models
    from porter.references.hf import HfReference
    from porter.weights.reader import SharedTensors

    build = tiny("mixtral")
    folder, kind, cpu = build.checkpoint(), torch.float32, torch.device("cpu")
    tensors = SharedTensors(build.reader().checkpoint)
    models = Models(build.blueprint, folder, kind, cpu, tensors)
    reference, golden = models.reference, models.golden
    assert isinstance(reference, HfReference)
    ids_BT = torch.arange(12)[None]
    for lane in (reference, golden):
        lane.start(ids_BT)
    x_BTD = reference.embed()["embed.out"]
    reference.layer(0, x_BTD)
    assert reference.routing is not None
    forced = reference.routing.own.clone()
    forced[0, 3] = torch.tensor([planted, (planted + 1) % 8])
    route = reference.route
    reference.route = lambda index, x: [forced[0]]  # type: ignore[method-assign]
    try:
        nodes = golden.layer(0, x_BTD.double())
    finally:
        reference.route = route  # type: ignore[method-assign]
    assert golden.routing is not None and torch.equal(golden.routing.taken, forced)
    assert torch.equal(golden.routing.own.sort(-1).values, reference.routing.own.sort(-1).values)
    weights_BTK = nodes["moe.topk"]
    assert weights_BTK.dtype == torch.float64 and torch.allclose(weights_BTK.sum(-1), torch.ones(1, 12).double())
