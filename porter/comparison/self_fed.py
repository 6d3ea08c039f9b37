"""A comparison with a dump in it, unit by unit. A dump cannot be run on golden's input, so golden is run on the dump's.

Of one dump, all sides are fed its own hidden states. Of two, each has golden on its own: the errors compared are then
those of two inputs, and HuggingFace says whether the reference's dump may be trusted at all. Thresholds are SELF_FED of
verdicts.py. The curve over layers is made as in other runs, each side on its own hidden states.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from porter.comparison.dump_lane import DumpLane, check_embedding, shaped_as
from porter.comparison.lanes import Lane, Nodes
from porter.comparison.logits import measure_logits
from porter.comparison.names import StageName, full_name
from porter.comparison.report import NodeDiff
from porter.comparison.self_fed_unit import Judge, Unit
from porter.comparison.stages import Selection, StageRun, looked_at
from porter.models.matmul import widened_once
from porter.specs.schema import Dims

_NO_INPUT = "the dump does not hold what this was given, resid_post of the layer before"


@dataclass(frozen=True)
class Sides:
    """Port and reference, one of them a dump at least; `hf`, in its dtype, is the reference or judges its dump."""

    dims: Dims
    golden: Lane
    hf: Lane
    reference: Lane
    port: Lane

    @property
    def apart(self) -> bool:
        """Port and reference are each fed their own hidden states."""
        return isinstance(self.port, DumpLane) and isinstance(self.reference, DumpLane)

    def given(self, index: int) -> tuple[Tensor, Tensor] | None:
        """What port and reference are given in a layer, or in the head; None where a dump does not have it."""
        own = [side.entry(index) for side in (self.port, self.reference) if isinstance(side, DumpLane)]
        return None if any(each is None for each in own) else (own[0], own[-1])  # type: ignore[return-value]

    def golden_on(self, x_BTD: Tensor, index: int) -> Nodes:
        return self.golden.layer(index, x_BTD.to(self.golden.dtype))

    def distinct(self) -> Iterator[Lane]:
        yield from {id(lane): lane for lane in (self.golden, self.hf, self.reference, self.port)}.values()


@dataclass(frozen=True)
class _States:
    """The residual stream of each side on its own way; None where a dump does not have it."""

    golden: Tensor
    reference: Tensor | None
    port: Tensor | None

    def curve(self, node: str) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
        if self.port is None or self.reference is None:
            return {}
        return {node: (self.port, self.reference, self.golden)}


def run_self_fed(
    stage: StageName,
    dtype: str,
    sides: Sides,
    ids_BT: Tensor,
    selection: Selection,
    *,
    keep_inputs: frozenset[int] = frozenset(),
    advance: Callable[[str], None] = lambda unit: None,
) -> StageRun:
    """Compares the one prompt of a dump, in the dump's dtype.

    Args:
        ids_BT: [1, T].
        keep_inputs: layers whose inputs are kept in the result; the head's is, where it is compared.
        advance: called after each unit.

    Raises:
        ArtifactError: a dump is not of these tokens and weights, or a node has another shape than golden's.
    """
    run, judge = StageRun(), Judge(stage, dtype, sides.port, sides.reference, sides.apart)
    for lane in sides.distinct():
        lane.start(ids_BT)
    states = _compare_embedding(sides, judge, ids_BT, selection, run)
    _let_go(sides)
    advance("embed")
    for index in range(sides.dims.layers):
        if (selection.first_bad and run.failed) or (not selection.whole and index > selection.last):
            return run
        with widened_once():
            after = _go_on(sides, index, states)
            if index in selection.layers:
                _compare_layer(sides, judge, index, after, run, keep=index in keep_inputs)
        states = after
        _let_go(sides)
        advance(f"layers.{index}")
    if selection.whole and not (selection.first_bad and run.failed):
        _compare_head(sides, judge, states, ids_BT.shape[1], run)
        _let_go(sides)
        advance("head")
    return run


def _let_go(sides: Sides) -> None:
    for lane in sides.distinct():
        lane.release()


def _note(run: StageRun, nodes: Iterator[NodeDiff]) -> None:
    for node in nodes:
        run.declared.add(node.name)
        run.nodes.append(node)


def _compare_embedding(sides: Sides, judge: Judge, ids_BT: Tensor, selection: Selection, run: StageRun) -> _States:
    golden, hf = sides.golden.embed(), sides.hf.embed()
    reference, port = (hf if lane is sides.hf else lane.embed() for lane in (sides.reference, sides.port))
    for lane, nodes in ((sides.reference, reference), (sides.port, port)):
        if isinstance(lane, DumpLane) and "embed.out" in nodes:
            rows = shaped_as(lane, "embed.out", nodes["embed.out"], golden["embed.out"])
            check_embedding(lane, rows, golden["embed.out"], ids_BT)
    states = _States(golden["embed.out"], reference.get("embed.out"), port.get("embed.out"))
    if selection.whole or 0 in selection.layers:
        _note(run, judge.nodes(Unit("embed", port, reference, golden, golden, hf, curve=states.curve("embed.out"))))
    return states


def _go_on(sides: Sides, index: int, states: _States) -> _States:
    """Each side's own residual stream after a layer."""
    given = states.golden.to(sides.hf.dtype).to(sides.golden.dtype)
    others = (_onwards(lane, index, x) for lane, x in ((sides.reference, states.reference), (sides.port, states.port)))
    return _States(sides.golden.output(index, given), *others)


def _onwards(lane: Lane, index: int, x_BTD: Tensor | None) -> Tensor | None:
    if isinstance(lane, DumpLane):
        return lane.after(index)
    return None if x_BTD is None else lane.output(index, x_BTD)


def _compare_layer(sides: Sides, judge: Judge, index: int, after: _States, run: StageRun, *, keep: bool) -> None:
    fed, unit = sides.given(index), f"layers.{index}"
    if fed is None:
        _leave_out(sides, judge, unit, run)
        return
    if keep:
        run.inputs[index] = fed[0].to(sides.hf.dtype)
    golden = sides.golden_on(fed[0], index)
    other = sides.golden_on(fed[1], index) if sides.apart else golden
    hf = sides.hf.layer(index, fed[1].to(sides.hf.dtype))
    reference = hf if sides.reference is sides.hf else sides.reference.layer(index, fed[1].to(sides.hf.dtype))
    port = sides.port.layer(index, fed[0].to(sides.hf.dtype))
    _note(run, judge.nodes(Unit(unit, port, reference, golden, other, hf, curve=after.curve("resid_post"))))


def _leave_out(sides: Sides, judge: Judge, unit: str, run: StageRun) -> None:
    """What a dump holds of a unit whose input it does not hold cannot be judged."""
    for lane in (sides.port, sides.reference):
        if not isinstance(lane, DumpLane):
            continue
        held = lane.dump.unit(unit, lane.device) or {"logits" if unit == "head" else "resid_post": torch.empty(0)}
        for node, value in held.items():
            name = full_name(unit, node)
            if name not in run.declared:
                _note(run, iter([judge.not_compared(name, value, _NO_INPUT)]))


def _compare_head(sides: Sides, judge: Judge, states: _States, length: int, run: StageRun) -> None:
    """final.norm and logits at evenly spaced tokens; no token of the head sees another."""
    at, fed = _tokens(sides, length), sides.given(sides.dims.layers)
    if fed is None or not len(at):
        _leave_out(sides, judge, "head", run)
        return
    run.inputs[sides.dims.layers] = fed[0].to(sides.hf.dtype)
    golden = _head(sides.golden, fed[0], at)
    other = _head(sides.golden, fed[1], at) if sides.apart else golden
    hf = _head(sides.hf, fed[1], at)
    reference = hf if sides.reference is sides.hf else _head(sides.reference, fed[1], at)
    port = _head(sides.port, fed[0], at)
    lanes = ((sides.port, states.port), (sides.reference, states.reference))
    own_port, own_reference = (_head(lane, x, at) if x is not None else {} for lane, x in lanes)
    own_golden = _head(sides.golden, states.golden.to(sides.hf.dtype), at)
    curve = {
        node: (own_port[node], own_reference[node], own_golden[node])
        for node in ("final.norm",) if node in own_port and node in own_reference and node in own_golden
    }  # fmt: skip
    _note(run, judge.nodes(Unit("head", port, reference, golden, other, hf, at, curve)))
    if "logits" in own_port and "logits" in own_reference:
        logits = (side["logits"][0] for side in (own_port, own_reference, own_golden))
        run.logits = measure_logits(judge.stage, judge.dtype, at, *logits)


def _tokens(sides: Sides, length: int) -> Tensor:
    """Those that are looked at, of which every dump holds the logits."""
    at = looked_at(sides.dims, length)
    for lane in (sides.port, sides.reference):
        held = lane.dump.manifest.at.get("logits") if isinstance(lane, DumpLane) else None
        at = at if held is None else at[torch.isin(at, torch.tensor(held))]
    return at


def _head(lane: Lane, x_BTD: Tensor, at: Tensor) -> Nodes:
    if isinstance(lane, DumpLane):
        return {node: lane.tokens_of(node, value, at) for node, value in lane.head(x_BTD).items()}
    return lane.head(x_BTD[:, at].to(lane.dtype))
