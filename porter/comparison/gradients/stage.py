"""Runs the sides backwards in lock-step, from the loss to the embedding, and measures every gradient.

Each side, golden too, is fed golden's input of the unit and golden's gradient of its output, both rounded to the
stage's dtype; the reference three times more, with that input rounded otherwise. The loss is the mean cross-entropy
of the next token, at the tokens that the head looks at. In float16 it is scaled, and so is the gradient between units,
by powers of two: no number moves, and none is lost at the bottom.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from porter.comparison.gradients.lanes import BackwardLane, HfLane
from porter.comparison.gradients.measure import (
    STAGE,
    ParameterTally,
    measure_node,
    measure_parameter,
    not_compared,
    of_share,
    square_errors,
)
from porter.comparison.lanes import Lane
from porter.comparison.measure import Tally
from porter.comparison.names import GRADIENT
from porter.comparison.report import NodeDiff
from porter.comparison.stages import Selection, looked_at
from porter.models.backward import INPUT, Gradients, HeadPass
from porter.references.backward import HfBackward
from porter.references.hf import HfReference
from porter.specs.blueprint import Blueprint
from porter.specs.ledger import Ledger
from porter.specs.schema import Dims

_HEAD_TOKENS = 16  # tokens whose logits' gradients are measured at once
_ROUNDINGS = 3  # of a layer's input, besides golden's to the nearest
_SHOWN_BY = {"attn.o": "attn.out", "mlp.down": "mlp.out", "attn.qkv": "attn.q", "mlp.gate_up": "mlp.gate",
             "final_norm": "final.norm"}  # fmt: skip


@dataclass(frozen=True)
class BackwardLanes:
    """The sides.

    Attributes:
        tied: the head's weight is the embedding's, whose two gradients are compared one by one.
    """

    dims: Dims
    golden: BackwardLane
    reference: BackwardLane
    port: BackwardLane
    tied: bool

    @classmethod
    def of(
        cls, blueprint: Blueprint, golden: HfReference, reference: HfReference, port: BackwardLane, ledger: Ledger
    ) -> "BackwardLanes":
        """The lanes of a port of `blueprint` whose weights the ledger names."""
        golden_lane, reference_lane = (HfLane(HfBackward(each), ledger) for each in (golden, reference))
        return cls(blueprint.dims, golden_lane, reference_lane, port, blueprint.head.tied)

    def release(self) -> None:
        for lane in (self.golden, self.reference, self.port):
            lane.release()


@dataclass
class BackwardRun:
    """What the stage found for one prompt, in the order of the backward pass."""

    nodes: list[NodeDiff] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return any(node.status == "FAIL" for node in self.nodes)


def golden_inputs(golden: Lane, ids_BT: Tensor, dims: Dims, dtype: torch.dtype) -> dict[int, Tensor]:
    """Golden's input of every layer, and of the head under the number of layers, rounded to `dtype`."""
    golden.start(ids_BT)
    inputs = {0: golden.embed()["embed.out"].to(dtype)}
    for index in range(dims.layers):
        inputs[index + 1] = golden.layer(index, inputs[index].to(golden.dtype))["resid_post"].to(dtype)
        golden.release()
    return inputs


def run_backward(
    dtype: str,
    lanes: BackwardLanes,
    ids_1T: Tensor,
    inputs: Mapping[int, Tensor],
    selection: Selection,
    advance: Callable[[str], None] = lambda unit: None,
) -> BackwardRun:
    """Compares the gradients of one prompt of two tokens or more, in one dtype.

    Args:
        inputs: golden's, of every layer and of the head.
        selection: its layers are measured; through those above them only golden goes.
        advance: called after each unit.
    """
    run, last = BackwardRun(), lanes.dims.layers - 1
    for lane in (lanes.golden, lanes.reference, lanes.port):
        lane.start(ids_1T)
    upstream = _run_head(dtype, lanes, ids_1T, inputs[last + 1], selection, run)
    advance("head")
    lowest = 0 if selection.whole else min(selection.layers)
    for index in range(last, lowest - 1, -1):
        if selection.first_bad and run.failed:
            return run
        golden = lanes.golden.layer(index, inputs[index], upstream)
        lanes.golden.release()
        if index in selection.layers:
            elsewhere = _errors_elsewhere(lanes.reference, index, inputs[index], upstream, golden)
            sides, routing_BTK = (lanes.reference, lanes.port), golden.routing_BTK
            found = [lane.layer(index, inputs[index], upstream, routing_BTK) for lane in sides]
            lanes.release()
            run.nodes += _Unit(dtype, [golden, *found], f"layers.{index}.", elsewhere=elsewhere).compare()
        upstream = _round(golden.nodes[INPUT], lanes.port.dtype)
        advance(f"layers.{index}")
    if selection.whole and not (selection.first_bad and run.failed):
        found = [lane.embed(upstream) for lane in (lanes.golden, lanes.reference, lanes.port)]
        run.nodes += _Unit(dtype, found, facet="#lookup" if lanes.tied else "", rows_N=torch.unique(ids_1T)).compare()
        lanes.release()
        advance("embed")
    return run


def _errors_elsewhere(
    reference: BackwardLane, index: int, x_BTD: Tensor, upstream_BTD: Tensor, golden: Gradients
) -> dict[str, list[Tensor]]:
    """Squares of the reference's error in each channel, by node and parameter, its input rounded otherwise.

    One token, or one channel, can hold most of a gradient, and its error is then a single number, which may be near
    zero by chance: the size of such a number shows in several.
    """
    errors: dict[str, list[Tensor]] = {}
    for seed in range(_ROUNDINGS):
        found = reference.layer(index, rounded_otherwise(x_BTD, seed), upstream_BTD, golden.routing_BTK)
        for values, wide in ((found.nodes, golden.nodes), (found.parameters, golden.parameters)):
            for name, value in values.items():
                truth = wide.get(name)
                if value is not None and truth is not None:
                    squares_F = square_errors(value, truth, of_parameter=values is found.parameters)
                    errors.setdefault(name, []).append(squares_F)
    return errors


def rounded_otherwise(x: Tensor, seed: int) -> Tensor:
    """x with every fourth number moved to one of its neighbours in its dtype, at random."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.itemsize]
    drawn = torch.randint(8, x.shape, generator=torch.Generator().manual_seed(seed)).to(x.device)
    moved = (x.contiguous().view(kind) + (drawn == 0).to(kind) - (drawn == 1).to(kind)).view(x.dtype)
    return torch.where((x != 0) & x.isfinite() & moved.isfinite(), moved, x)


def _round(gradient: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Golden's gradient in the stage's dtype; in float16 times a power of two, as loss scaling does."""
    assert gradient is not None
    if dtype == torch.float16:
        gradient = gradient * 2.0 ** -math.frexp(float(gradient.abs().max()))[1]
    return gradient.to(dtype)


def _run_head(
    dtype: str, lanes: BackwardLanes, ids_1T: Tensor, x_1TD: Tensor, selection: Selection, run: BackwardRun
) -> Tensor:
    """[1, T, D], golden's gradient of the last layer's output; zero at tokens whose logits are not looked at."""
    at_N = looked_at(lanes.dims, ids_1T.shape[1] - 1)
    given = (x_1TD[:, at_N], ids_1T[0, at_N + 1])
    golden = lanes.golden.head(*given)
    if selection.whole:
        others = [lane.head(*given) for lane in (lanes.reference, lanes.port)]
        found = _compare_head(dtype, [golden, *others], at_N, lanes.tied, run)
    else:
        for part in golden.chunks():
            part.clear()
        found = golden.finish()
    lanes.release()
    upstream_1TD = torch.zeros_like(x_1TD)
    upstream_1TD[:, at_N] = _round(found.nodes[INPUT], lanes.port.dtype)
    return upstream_1TD


def _compare_head(dtype: str, sides: Sequence[HeadPass], at_N: Tensor, tied: bool, run: BackwardRun) -> Gradients:
    """Measures the head from the loss back, and gives golden's gradients."""
    golden, reference, port = sides
    tally = Tally(f"{GRADIENT}logits", STAGE, dtype, of_node=True)
    for start in range(0, len(at_N), _HEAD_TOKENS):
        part = slice(start, start + _HEAD_TOKENS)
        tally.add(port.logits[:, part], reference.logits[:, part], golden.logits[:, part], None, at_N[part])
    for side in sides:
        side.logits = torch.empty(0)
    run.nodes.append(tally.finish())
    tallies: dict[str, ParameterTally] = {}
    for golden_part, reference_part, port_part in zip(*(side.chunks() for side in sides), strict=True):
        for name, gradient in port_part.items():
            called = "embed.weight#head" if tied and name == "head.weight" else name
            chunks = tallies.setdefault(name, ParameterTally(called, dtype))
            chunks.add(gradient, reference_part[name], golden_part[name])
        for part in (golden_part, reference_part, port_part):
            part.clear()  # or the next chunk of each side would lie beside it
    for name, chunks in tallies.items():
        found = chunks.finish()
        run.nodes.append(of_share(found) if tied and name == "head.weight" else found)
    rest = [side.finish() for side in sides]
    run.nodes += _Unit(dtype, rest, scope="final.").compare()
    return rest[0]


@dataclass(frozen=True)
class _Unit:
    """The gradients of golden, reference and port in one unit.

    Attributes:
        prefix: layers.3. or nothing.
        scope: of the node that is the unit's input, outside layers.
        facet: which share of the embedding's gradient it is.
        rows_N: which rows of the embedding they are.
        elsewhere: squares of the reference's errors with its input rounded otherwise, by node and parameter.
    """

    dtype: str
    sides: Sequence[Gradients]
    prefix: str = ""
    scope: str = ""
    facet: str = ""
    rows_N: Tensor | None = None
    elsewhere: Mapping[str, Sequence[Tensor]] = field(default_factory=dict)

    def compare(self) -> Iterator[NodeDiff]:
        """In the order of the backward pass: of each node, then of the parameters that made it."""
        left = list(self.sides[2].parameters)
        for node in reversed(self.sides[2].nodes):
            if node != INPUT:
                yield self._node(node)
            shown = [name for name in left if _module(name) == node or node == INPUT]
            left = [name for name in left if name not in shown]
            yield from map(self._parameter, shown)
            if node == INPUT:
                yield self._node(node)
        yield from map(self._parameter, left)

    def _node(self, node: str) -> NodeDiff:
        name = f"{self.prefix}{self.scope if node == INPUT else ''}{node}"
        golden, reference, port = (side.nodes for side in self.sides)
        if node in golden and node in reference:
            errors = self.elsewhere.get(node, ())
            return measure_node(name, self.dtype, port[node], reference[node], golden[node], elsewhere=errors)
        return not_compared(name, self.dtype, port[node], "the reference does not show it")

    def _parameter(self, name: str) -> NodeDiff:
        is_table = name == "embed.weight"
        called = f"{self.prefix}{name}{self.facet if is_table else ''}"
        golden, reference, port = (side.parameters for side in self.sides)
        if name in golden and name in reference:
            given = (port[name], reference[name], golden[name])
            rows_N = self.rows_N if is_table else None
            errors, least = self.elsewhere.get(name, ()), self._least(name)
            found = measure_parameter(called, self.dtype, *given, rows_N=rows_N, least=least, elsewhere=errors)
            return of_share(found) if is_table and self.facet else found
        why = self.sides[1].unknown.get(name, "the reference has no parameter that is made of its tensor")
        return not_compared(called, self.dtype, port[name], why)

    def _least(self, name: str) -> float:
        """A bias has the sum of its output's gradients; theirs is its size where they cancel, as those of keys may."""
        shown = self.sides[0].nodes.get(_module(name)) if name.endswith(".bias") else None
        return 0.0 if shown is None else float(torch.linalg.vector_norm(shown))


def _module(parameter: str) -> str:
    """The node that shows a parameter's module: its output."""
    module = parameter.rpartition(".")[0]
    return _SHOWN_BY.get(module, module)
