"""Which layers, and which nodes in them, make the difference at the logits; the shares sum to 1.

h(i) are the logits of a model whose first i units are the port's and whose others are the reference's: h(0) is the
reference and h(n) the port, so their difference d is the sum of the steps h(i) − h(i − 1). A step is what unit i does
otherwise on the port's own hidden states, carried on by the reference, and its share is ⟨step, d⟩ / ⟨d, d⟩. Nothing is
made linear and nothing is left over. A share below 0 takes away what others made.

In a unit the same is done with its nodes: those up to the k-th as one side has them, what follows computed by the
other. Of the unit's share, the node k has ⟨step, e⟩ / ⟨e, e⟩, e being what the unit does otherwise at its end.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from porter.comparison.lanes import Lane, Nodes, PortLane
from porter.comparison.measure import bit_equal
from porter.comparison.module_port import open_port
from porter.comparison.names import full_name
from porter.comparison.observed import Share
from porter.comparison.preflight import load_tokenizer
from porter.comparison.progress import Progress, Silent, Work
from porter.comparison.prompts import read_prompts
from porter.comparison.report import DiffReport
from porter.comparison.request import find_build
from porter.comparison.stages import fitted
from porter.errors import UsageError
from porter.models.build import Build
from porter.models.choices import pick_device, pick_ops
from porter.models.decoder import Decoder, Streamed
from porter.models.ops import OpsName, make_ops
from porter.models.positions import Positions
from porter.references.dump import is_dump
from porter.references.hf import HfReference
from porter.specs.blueprint import Blueprint
from porter.weights.reader import SharedTensors, WeightReader, open_weights

_MOST_LOGITS = 2**26  # of all h(i) together; they are compared at evenly spaced tokens
_MOST_TOKENS = 16
_STAGE = "attribution"


_GIVEN = ("port", "map", "size", "weights", "overrides", "dtype", "ops", "device", "prompt", "prompts", "tokens")


def check_attribution(port: object, reference: str) -> None:
    """Refuses a side that cannot be carried on from another's hidden states.   Raises UsageError."""
    for flag, side in (("--port", port), ("--reference", reference)):
        if isinstance(side, str) and is_dump(side):
            raise UsageError(f"--attribution with {flag} {side}", "two sides that run", "Leave --attribution out.")


def attribute_report(report: DiffReport, model: str | Build | None, progress: Progress, **given: Any) -> DiffReport:
    """A report with the attribution of its port, in the dtype in which it first differs.

    Args:
        given: what porter.diff was given, by name.
    """
    unequal = [stage.dtype for stage in report.stages if stage.status in ("FAIL", "WARN") and stage.dtype]
    at = report.first_fail.dtype if report.first_fail else unequal[0] if unequal else report.port.dtype
    flags, start = {name: given[name] for name in _GIVEN if name in given}, time.perf_counter()
    shares = attribute(model, at=at, progress=progress, **flags)
    timings_s = {**report.timings_s, _STAGE: round(time.perf_counter() - start, 3)}
    return replace(report, attribution=shares, timings_s=timings_s)


@torch.no_grad()
def attribute(
    model: str | Build | None = None,
    *,
    at: str,
    port: str | nn.Module | None = None,
    map: Path | str | Mapping[str, Any] | None = None,
    size: str | None = None,
    weights: str | None = None,
    overrides: Sequence[str] = (),
    dtype: str | None = None,
    ops: str | None = None,
    device: str | None = None,
    prompt: str | None = None,
    prompts: Path | None = None,
    tokens: int | None = None,
    progress: Progress | None = None,
) -> tuple[Share, ...]:
    """The shares of layers, then of nodes, each in the order of the forward pass.

    Args:
        at: the dtype that both sides are run in; the others as porter.diff takes them. Of several prompts, the longest.

    Returns:
        Nothing where the logits of both are equal, or not finite.

    Raises:
        UsageError: the port is a dump, which cannot be carried on by the reference.
        PorterError: the two could not be run.
    """
    check_attribution(port, "hf")
    build = find_build(model, size, weights, overrides, dtype, ops, device)
    module = open_port(port, map, build, stages=(), fail_on=(), refused={})
    folder, progress = build.checkpoint(), progress or Silent()
    given = prompt if prompt is not None or prompts is not None else build.prompt
    length = build.tokens if tokens is None else tokens
    found = read_prompts(build.blueprint, load_tokenizer(folder), given, prompts, length)
    ids_BT = torch.tensor([max((each.ids for each in found), key=len)])
    kind, place = getattr(torch, at), torch.device(pick_device(build.device))
    blueprint = build.reference_blueprint if module else build.blueprint
    right = open_weights(blueprint, folder)
    reader: WeightReader = replace(right, shared=SharedTensors(right.checkpoint))
    reference = HfReference(build.reference_blueprint, folder, kind, place, tensors=reader.shared)
    spec = _Spec(blueprint, reader, "reference" if module else pick_ops(build.ops, str(place)), kind, place)
    own = module.lane(folder, reader, kind, place) if module else spec.lane
    return Walk(reference, own, spec, ids_BT, progress).run()


class _Spec:
    """A spec run a unit at a time, some of its nodes replaced on the way."""

    def __init__(
        self, blueprint: Blueprint, reader: WeightReader, ops: OpsName, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.decoder = Decoder(blueprint, Streamed(blueprint, make_ops(ops), reader, dtype, device))
        self.lane = PortLane(self.decoder, dtype, device)

    def run(self, unit: str, given: Tensor, others: Nodes, until: str | None) -> tuple[Tensor, str | None]:
        """The unit's output with its nodes up to one as in `others`, and the first after it that is not as there.

        Args:
            given: [1, T, D], or of embed the ids [1, T].
            until: the last node that is replaced; None: none is.
        """
        following: list[str] = []
        replacing = until is not None

        def replace_node(node: str, value: Tensor) -> None:
            nonlocal replacing
            if node in others and value.is_floating_point():
                other = fitted(node, others[node], value)
                if replacing:
                    value.copy_(other)  # what follows computes with it
                elif not following and not bit_equal(value, other):
                    following.append(node)
            replacing = replacing and node != until

        ids_BT = given if unit == "embed" else given[..., 0]
        positions = Positions(0, ids_BT.shape[1], given.device)
        if unit == "embed":
            out = self.decoder.embed(given, positions, replace_node)
        elif unit == "head":
            out = self.decoder.head(given, replace_node)
        else:
            out = self.decoder.layer(int(unit.removeprefix("layers.")), given, positions, tap=replace_node)
        return out, following[0] if following else None


@dataclass
class _Hybrid:
    """A model that is the port up to a unit, and the reference after it: what it computed so far.

    Attributes:
        unit: the last that is the port's; empty: none is.
        parts: node -> the share it has in what that unit does otherwise.
    """

    unit: str
    x_BTD: Tensor
    parts: dict[str, float] = field(default_factory=dict)


class Walk:
    """All hybrids through embedding, layers and head, a unit at a time; those that would be equal are one."""

    def __init__(self, reference: Lane, port: Lane, spec: _Spec, ids_BT: Tensor, progress: Progress) -> None:
        self.reference, self.port, self.spec, self.ids_BT, self.progress = reference, port, spec, ids_BT, progress
        self.foreign = port is not spec.lane  # then the spec is the reference's
        self.hybrids: list[_Hybrid] = []

    def run(self) -> tuple[Share, ...]:
        num_layers = self.spec.decoder.blueprint.dims.layers
        self.progress.plan([Work(_STAGE, num_layers + 2, self.ids_BT.shape[1])])
        for lane in (self.reference, self.port):
            lane.start(self.ids_BT)
        nodes = [lane.embed() for lane in (self.reference, self.port)]
        self.hybrids = [_Hybrid("", nodes[0]["embed.out"])]
        self._branch("embed", self.ids_BT, nodes[0], nodes[1], nodes[1]["embed.out"])
        for index in range(num_layers):
            self._release(f"layers.{index - 1}" if index else "embed")
            given = self.hybrids[-1].x_BTD  # what the port has
            for each in self.hybrids[:-1]:
                each.x_BTD = self.reference.output(index, each.x_BTD)
            reference, port = self.reference.layer(index, given), self.port.layer(index, given)
            self.hybrids[-1].x_BTD = reference["resid_post"]
            self._branch(f"layers.{index}", given, reference, port, port["resid_post"])
        self._release(f"layers.{num_layers - 1}")
        shares = self._shares(*self._logits())
        self._release("head")
        return shares

    def _branch(self, unit: str, given: Tensor, reference: Nodes, port: Nodes, out: Tensor) -> None:
        """The hybrid whose last unit is this one, where the two sides differ in it."""
        before = self.hybrids[-1].x_BTD
        if not bit_equal(out, before):
            self.hybrids.append(_Hybrid(unit, out, self._parts(unit, given, reference, port, out - before)))

    def _logits(self) -> tuple[list[str], list[Tensor], list[dict[str, float]]]:
        """Of each hybrid its last unit of the port, its logits [t, V], and its nodes' parts."""
        vocab, length = self.spec.decoder.blueprint.dims.vocab, self.ids_BT.shape[1]
        count = max(1, min(length, _MOST_TOKENS, _MOST_LOGITS // vocab // (len(self.hybrids) + 1)))
        at = (length - 1 - (torch.arange(count) * length) // count).flip(0)
        given = self.hybrids[-1].x_BTD[:, at]
        reference, port = self.reference.head(given), self.port.head(given)
        logits = [self.reference.head(each.x_BTD[:, at])["logits"] for each in self.hybrids[:-1]]
        logits.append(reference["logits"])
        units, parts = [each.unit for each in self.hybrids], [each.parts for each in self.hybrids]
        out = fitted("logits", port["logits"], reference["logits"])
        if not bit_equal(out, reference["logits"]):
            parts.append(self._parts("head", given, reference, port, out - reference["logits"]))
            units, logits = [*units, "head"], [*logits, out]
        return units, logits, parts

    def _parts(self, unit: str, given: Tensor, reference: Nodes, port: Nodes, made: Tensor) -> dict[str, float]:
        """Node -> its share in `made`, the difference at the end of the unit."""
        others, sign = (port, 1.0) if self.foreign else (reference, -1.0)
        size = float(made.double().square().sum())
        before, node = self.spec.run(unit, given, others, None)
        found: dict[str, float] = {}
        while node is not None:
            after, following = self.spec.run(unit, given, others, node)
            step = float(((after.double() - before.double()) * made.double()).sum())
            found[node] = sign * step / size
            before, node = after, following
        whole = sum(found.values())  # 1 but for a spec in plain torch that is not bit-equal to the reference
        if not math.isfinite(whole) or whole == 0.0:
            return {list(others)[-1]: 1.0}
        return {node: part / whole for node, part in found.items()}

    def _shares(self, units: list[str], logits: list[Tensor], parts: list[dict[str, float]]) -> tuple[Share, ...]:
        difference = logits[-1].double() - logits[0].double()
        size, kind = float(difference.square().sum()), str(self.reference.dtype).removeprefix("torch.")
        if size == 0.0 or not math.isfinite(size):
            return ()
        shares, nodes = [], []
        for unit, before, after, inside in zip(units[1:], logits, logits[1:], parts[1:], strict=False):
            share = float(((after.double() - before.double()) * difference).sum()) / size
            shares.append(Share(unit, "layer", share, kind))
            nodes += [Share(full_name(unit, node), "node", share * part, kind) for node, part in inside.items()]
        return (*shares, *nodes)

    def _release(self, unit: str) -> None:
        for lane in (self.port, self.reference, self.spec.lane):
            lane.release()
        self.progress.done(_STAGE, unit)
