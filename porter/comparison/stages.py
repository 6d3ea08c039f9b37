"""Runs the lanes of one stage in lock-step, unit by unit, and measures every node.

Local: each side, golden too, is fed golden's input of the unit, rounded to the stage's dtype; verdicts are made from
these nodes. Propagated: port and reference run on their own hidden states; the curve over layers is made from these.
So golden is one float64 run whose residual stream is rounded between layers, as every run in that dtype must round it:
the best that an implementation in the dtype could do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from porter.comparison.lanes import Lane, Nodes
from porter.comparison.logits import measure_logits
from porter.comparison.logits_record import Logits
from porter.comparison.measure import Tally, measure_propagated
from porter.comparison.names import StageName, kind_of
from porter.comparison.report import NodeDiff
from porter.comparison.routing import judge_routing
from porter.errors import UsageError
from porter.models.matmul import widened_once
from porter.specs.schema import Dims

_LOGIT_ELEMENTS = 2**24  # logits that are compared, at evenly spaced tokens: 64 tokens of Gemma's 262,144
_HEAD_TOKENS = 16  # tokens of the head that are measured at once
CURVE = ("resid_post", "embed.out", "final.norm")  # nodes that are measured propagated too


@dataclass(frozen=True)
class Lanes:
    """The sides of one stage.

    Attributes:
        executor: the port's spec in plain torch, or the port itself when it has those ops; None: no bits are compared.
        why: says why a port that shows some nodes alone does not show one.
        looks: told of each node of a layer once it is measured, with golden's tensor.
    """

    dims: Dims
    golden: Lane
    reference: Lane
    port: Lane
    executor: Lane | None
    why: Callable[[str], str] | None = None
    looks: Callable[[NodeDiff, Tensor], None] | None = None


@dataclass(frozen=True)
class Selection:
    """Which layers are compared; others are only passed through."""

    layers: frozenset[int]
    whole: bool  # embedding and head too
    first_bad: bool  # stop at the first FAIL

    @property
    def last(self) -> int:
        return max(self.layers, default=-1)


def select_layers(text: str, num_layers: int) -> Selection:
    """The selection that --layers means.

    Raises:
        UsageError: it is no list of layers, or names one the model lacks.
    """
    everything = frozenset(range(num_layers))
    if text in {"all", "first-bad"}:
        return Selection(everything, whole=True, first_bad=text == "first-bad")
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"--layers {text!r}", "all, first-bad, or a list such as 0-3,7", "Correct it.")
        if int(last if dash else first) >= num_layers:
            wrong = f"--layers {text}: there is no layer {last if dash else first}"
            raise UsageError(wrong, f"layers 0 to {num_layers - 1}", "Name layers it has.")
        chosen.update(range(int(first), int(last if dash else first) + 1))
    if not chosen:
        raise UsageError(f"--layers {text}: it names no layer", f"layers 0 to {num_layers - 1}", "Put the lower first.")
    return Selection(frozenset(chosen), whole=False, first_bad=False)


@dataclass
class StageRun:
    """What one stage found for one prompt."""

    nodes: list[NodeDiff] = field(default_factory=list)
    logits: Logits | None = None
    inputs: dict[int, Tensor] = field(default_factory=dict)  # layer -> its input, for the layers asked for
    declared: set[str] = field(default_factory=set)

    @property
    def failed(self) -> bool:
        return any(node.status == "FAIL" for node in self.nodes)


def run_stage(
    stage: StageName,
    dtype: str,
    lanes: Lanes,
    ids_BT: Tensor,
    selection: Selection,
    *,
    keep_inputs: frozenset[int] = frozenset(),
    advance: Callable[[str], None] = lambda unit: None,
) -> StageRun:
    """Compares one prompt in one dtype.

    Args:
        ids_BT: [1, T].
        keep_inputs: layers (or the number of layers, for the head) whose inputs are kept in the result.
        advance: called after each unit.
    """
    run = StageRun()
    for lane in _distinct(lanes):
        lane.start(ids_BT)
    states = _compare_embedding(stage, dtype, lanes, selection, run)
    _release(lanes)
    advance("embed")
    num_layers = lanes.dims.layers
    for index in range(num_layers):
        if (selection.first_bad and run.failed) or (not selection.whole and index > selection.last):
            return run
        if index in keep_inputs:
            run.inputs[index] = states.golden.to(lanes.port.dtype)
        with widened_once():
            states = _compare_layer(stage, dtype, lanes, index, states, selection, run)
        _release(lanes)
        advance(f"layers.{index}")
    if selection.whole and not (selection.first_bad and run.failed):
        run.inputs[num_layers] = states.golden.to(lanes.port.dtype)
        _compare_head(stage, dtype, lanes, states, run)
        _release(lanes)
        advance("head")
    return run


@dataclass(frozen=True)
class _States:
    """The residual stream of each side on its own way."""

    golden: Tensor
    reference: Tensor
    port: Tensor


def _distinct(lanes: Lanes) -> list[Lane]:
    sides = [lanes.golden, lanes.reference, lanes.port]
    return sides if lanes.executor is None or lanes.executor is lanes.port else [*sides, lanes.executor]


def _release(lanes: Lanes) -> None:
    """Between units no side holds weights, so that two units never lie in memory."""
    for lane in _distinct(lanes):
        lane.release()


def _compare_embedding(stage: StageName, dtype: str, lanes: Lanes, selection: Selection, run: StageRun) -> _States:
    sides = [lane.embed() for lane in (lanes.golden, lanes.reference, lanes.port)]
    executor = _executed(lanes, sides[2], lambda lane: lane.embed())
    states = _States(*(side["embed.out"] for side in sides))
    if selection.whole or 0 in selection.layers:
        run.declared.add("embed.out")
        run.nodes.append(_measure("embed.out", stage, dtype, sides, executor, "embed.out", states))
    return states


def _compare_layer(
    stage: StageName, dtype: str, lanes: Lanes, index: int, states: _States, selection: Selection, run: StageRun
) -> _States:
    given = states.golden.to(lanes.port.dtype)
    golden = lanes.golden.layer(index, given.to(lanes.golden.dtype))
    reference = lanes.reference.output(index, states.reference)
    port = lanes.port.output(index, states.port)
    after = _States(golden["resid_post"], reference, port)
    if index not in selection.layers:
        return after
    routed, taken = lanes.golden.routing, None if lanes.golden.routing is None else lanes.golden.routing.taken
    sides = [golden, lanes.reference.layer(index, given), lanes.port.layer(index, given, taken)]
    routings = (routed, lanes.reference.routing, lanes.port.routing)
    executor = _executed(lanes, sides[2], lambda lane: lane.layer(index, given, taken))
    for node in merged_names(sides[1], sides[2]):
        name = f"layers.{index}.{node}"
        run.declared.add(name)
        if all(node in side for side in sides):
            measured = _measure(name, stage, dtype, sides, executor, node, after)
            run.nodes.append(judge_routing(measured, *routings) if node == "moe.topk" else measured)
            if lanes.looks is not None:
                lanes.looks(run.nodes[-1], sides[0][node])
        else:
            run.nodes.append(not_compared(name, stage, dtype, sides[1:], node, lanes.why))
        if run.nodes[-1].status == "FAIL" and selection.first_bad:
            break
    return after


def _compare_head(stage: StageName, dtype: str, lanes: Lanes, states: _States, run: StageRun) -> None:
    """final.norm and logits at evenly spaced tokens; no token of the head sees another."""
    given = states.golden.to(lanes.port.dtype)
    at = looked_at(lanes.dims, given.shape[1])
    golden = lanes.golden.head(given[:, at].to(lanes.golden.dtype))
    # Both inputs at once, as a batch: the head is read once for the two.
    reference_sides = _halves(lanes.reference.head(torch.cat((given, states.reference))[:, at]))
    port_sides = _halves(lanes.port.head(torch.cat((given, states.port))[:, at]))
    sides, reference, port = [golden, reference_sides[0], port_sides[0]], reference_sides[1], port_sides[1]
    executor = _executed(lanes, sides[2], lambda lane: _halves(lane.head(torch.cat((given, states.port))[:, at]))[0])
    for node in merged_names(sides[1], sides[2]):
        run.declared.add(node)
        if not all(node in side for side in sides):
            run.nodes.append(not_compared(node, stage, dtype, sides[1:], node, lanes.why))
            continue
        for side in sides[2], port:
            side[node] = fitted(node, side[node], sides[1][node])
        tally = Tally(node, stage, dtype, sampled=True)
        for part in range(0, len(at), _HEAD_TOKENS):
            tokens = slice(part, part + _HEAD_TOKENS)
            golden_value, reference_value, port_value = (side[node][:, tokens] for side in sides)
            bits = executor[node][:, tokens] if node in executor else None
            tally.add(port_value, reference_value, golden_value, bits, at[tokens])
        curve = node in CURVE and measure_propagated(port[node], reference[node], sides[0][node])
        run.nodes.append(tally.finish(curve or None))
    run.logits = measure_logits(stage, dtype, at, port["logits"][0], reference["logits"][0], sides[0]["logits"][0])


def _executed(lanes: Lanes, port: Nodes, run: Callable[[Lane], Nodes]) -> Nodes:
    """The executor's nodes of a unit: the port's own where it is the executor, none where there is none."""
    if lanes.executor is None:
        return {}
    return port if lanes.executor is lanes.port else run(lanes.executor)


def _halves(nodes: Nodes) -> tuple[Nodes, Nodes]:
    """The nodes of the first and of the second sample of a batch of two."""
    return {name: value[:1] for name, value in nodes.items()}, {name: value[1:] for name, value in nodes.items()}


def looked_at(dims: Dims, length: int) -> Tensor:
    """Token indices, evenly spaced over the prompt, the last token among them."""
    count = min(length, max(1, _LOGIT_ELEMENTS // dims.vocab))
    return (length - 1 - (torch.arange(count) * length) // count).flip(0)


def _measure(
    name: str, stage: StageName, dtype: str, sides: list[Nodes], executor: Nodes, node: str, after: _States
) -> NodeDiff:
    tally = Tally(name, stage, dtype, sampled=True)
    golden, reference, port = (side[node] for side in sides)
    tally.add(fitted(name, port, reference), reference, golden, executor.get(node))
    propagated = measure_propagated(after.port, after.reference, after.golden) if node in CURVE else None
    return tally.finish(propagated)


def merged_names(reference: Nodes, port: Nodes) -> list[str]:
    """The nodes of either side in order: the port's, or where it shows only some, the reference's."""
    if all(node in port for node in reference):
        return list(port)
    return list(dict.fromkeys((*reference, *port)))


def fitted(name: str, port: Tensor, reference: Tensor) -> Tensor:
    """The port's node with the reference's axes; heads may be flat on one side.

    Raises:
        UsageError: it has another number of elements.
    """
    if port.shape == reference.shape:
        return port
    if port.shape[:2] == reference.shape[:2] and port.numel() == reference.numel():
        return port.reshape(reference.shape)
    raise UsageError(
        f"{name} is {list(port.shape)} in the port, and {list(reference.shape)} in the reference",
        "the same tensor on both sides",
        "Correct its line in the map: another place, or its axes, slice or groups.",
    )


def not_compared(
    name: str, stage: StageName, dtype: str, sides: Sequence[Nodes], node: str, why: Callable[[str], str] | None
) -> NodeDiff:
    """The record of a node that one of the sides, reference and port, does not show."""
    reference, port = sides
    reason = "the reference does not show it" if node in port or why is None else why(node)
    value = port[node] if node in port else reference[node]
    return NodeDiff(
        name=name, kind=kind_of(name), stage=stage, dtype=dtype, shape=tuple(value.shape), status="NOT_COMPARED",
        reason=reason,
    )  # fmt: skip
