"""Lanes in lock-step: who is fed what, and nodes that one side does not show."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from porter.comparison.stages import Lanes, Selection, looked_at, run_stage
from tests.models.tiny import tiny

DIMS = tiny("gemma").blueprint.dims  # 3 layers, vocabulary 512
CPU = torch.device("cpu")
IDS = torch.tensor([[2, 7, 9, 4]])


@dataclass
class Steps:
    """A lane whose layer adds `step` to its input; `hidden` are nodes it does not show."""

    step: float
    dtype: torch.dtype = torch.float32
    hidden: frozenset[str] = frozenset()
    device: torch.device = CPU
    given: list[tuple[int, float]] = field(default_factory=list)
    releases: int = 0

    def start(self, ids_BT: Tensor) -> None:
        self.given.clear()

    def embed(self) -> dict[str, Tensor]:
        return {"embed.out": torch.ones(1, 4, 8, dtype=self.dtype)}

    routing = None

    def layer(self, index: int, x_BTD: Tensor, routing_BTK: Tensor | None = None) -> dict[str, Tensor]:
        self.given.append((index, float(x_BTD[0, 0, 0])))
        nodes = {"attn.ctx": x_BTD * 2, "resid_post": x_BTD + self.step}
        return {name: value for name, value in nodes.items() if name not in self.hidden}

    def output(self, index: int, x_BTD: Tensor) -> Tensor:
        return self.layer(index, x_BTD)["resid_post"]

    def head(self, x_BTD: Tensor) -> dict[str, Tensor]:
        return {"final.norm": x_BTD, "logits": x_BTD}

    def release(self) -> None:
        self.releases += 1


def lanes(port: Steps, reference: Steps, golden: Steps | None = None) -> Lanes:
    return Lanes(DIMS, golden or Steps(1.0, torch.float64), reference, port, port)


def run(found: Lanes, selection: Selection | None = None, **given):
    return run_stage("semantics", "float32", found, IDS, selection or select(), **given)


def select(*layers: int, first_bad: bool = False) -> Selection:
    return Selection(frozenset(layers or range(3)), whole=not layers, first_bad=first_bad)


def test_local_nodes_are_fed_golden_s_input_and_the_curve_each_side_s_own() -> None:
    port, reference = Steps(1.5), Steps(1.0)
    found = run(lanes(port, reference))
    assert port.given == [(0, 1.0), (0, 1.0), (1, 2.5), (1, 2.0), (2, 4.0), (2, 3.0)]  # its own input, then golden's
    posts = {node.layer: node for node in found.nodes if node.node == "resid_post"}
    assert [posts[i].worst.difference for i in range(3)] == [0.5, 0.5, 0.5]
    assert [posts[i].propagated.l2 for i in range(3)] == pytest.approx([0.5 * 32**0.5 * k for k in (1, 2, 3)])
    assert [node.name for node in found.nodes if node.propagated] == [
        "embed.out", "layers.0.resid_post", "layers.1.resid_post", "layers.2.resid_post", "final.norm",
    ]  # fmt: skip


def test_golden_s_input_is_rounded_to_the_dtype() -> None:
    golden, port = Steps(1 + 2**-30, torch.float64), Steps(1.0, torch.bfloat16)
    run_stage("precision", "bfloat16", lanes(port, Steps(1.0, torch.bfloat16), golden), IDS, select())
    assert golden.given == [(0, 1.0), (1, 2.0), (2, 3.0)]  # not 2 + 2**-30


def test_nodes_that_the_reference_does_not_show_are_counted_not_compared() -> None:
    found = run(lanes(Steps(1.0), Steps(1.0, hidden=frozenset({"attn.ctx"}))))
    missing = [node for node in found.nodes if node.status == "NOT_COMPARED"]
    assert [node.name for node in missing] == [f"layers.{i}.attn.ctx" for i in range(3)]
    assert missing[0].local is None and missing[0].exact is None and "does not show" in missing[0].reason
    assert found.declared == {node.name for node in found.nodes} and len(found.declared) == 9


def test_a_selection_passes_through_the_others_and_stops_after_the_last() -> None:
    port = Steps(1.0)
    found = run(lanes(port, Steps(1.0)), select(1))
    assert {node.layer for node in found.nodes} == {1} and found.logits is None
    assert [layer for layer, _ in port.given] == [0, 1, 1]


def test_first_bad_stops_at_the_node() -> None:
    units: list[str] = []
    found = run(lanes(Steps(1.5), Steps(1.0)), select(first_bad=True), advance=units.append)
    assert [node.name for node in found.nodes] == ["embed.out", "layers.0.attn.ctx", "layers.0.resid_post"]
    assert found.failed and found.nodes[-1].status == "FAIL" and units == ["embed", "layers.0"]


def test_inputs_are_kept_for_the_layers_asked_for_and_the_head() -> None:
    found = run(lanes(Steps(1.0), Steps(1.0)), keep_inputs=frozenset({1}))
    assert {index: float(x[0, 0, 0]) for index, x in found.inputs.items()} == {1: 2.0, 3: 4.0}


@pytest.mark.parametrize(
    ("vocab", "length", "wanted"),
    [(512, 5, [0, 1, 2, 3, 4]), (2**22, 8, [1, 3, 5, 7]), (2**23, 9, [4, 8]), (2**24, 9, [8]), (2**26, 3, [2])],
)
def test_logits_arelooked_at_evenly_spaced_tokens_the_last_among_them(vocab: int, length: int, wanted: list) -> None:
    assert looked_at(DIMS.model_copy(update={"vocab": vocab}), length).tolist() == wanted
