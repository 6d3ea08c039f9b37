"""Would this run have caught a known fault? Each is put into the port, and its unit is judged as the diff judges it.

The unit alone is run, fed what golden was in the float32 stage, rounded to the dtype; reference and golden run it once
for all faults. Measuring and thresholds are the diff's own. Shortcuts: layers after the unit are not run, of the head
the last tokens alone, one prompt, and for each axis the first layer of its kind. A fault counts as caught where it
makes a node FAIL, or differ in its bits, that does neither in the port as it is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from porter.comparison.faults import Fault, axis_faults, weight_faults
from porter.comparison.lanes import Nodes
from porter.comparison.measure import Tally
from porter.comparison.names import GAUGES, StageName, full_name
from porter.comparison.observability import Seen, explain_blindness, shows
from porter.comparison.observed import Axis, Injected
from porter.comparison.one_unit import Captured, place_of, run_unit
from porter.comparison.report import NodeDiff
from porter.models.build import Build
from porter.models.ops import OpsName
from porter.references.hf import HfReference
from porter.weights.reader import SharedTensors, WeightReader

CaughtBy = Literal["semantics", "precision", "exact"]


@dataclass(frozen=True)
class Catch:
    """What showed a fault, where, and by how much."""

    stage: CaughtBy
    node: str
    rho: float | None


@dataclass(frozen=True)
class _Port:
    """What is checked: a port, how it runs, and on what."""

    build: Build
    folder: Path
    captured: Captured
    ops: OpsName
    device: torch.device

    @property
    def num_layers(self) -> int:
        return self.build.blueprint.dims.layers


def check_itself(
    build: Build,
    folder: Path,
    reader: WeightReader,
    captured: Captured,
    axes: Sequence[Axis],
    *,
    ops: OpsName,
    device: torch.device,
) -> list[Injected]:
    """Every known fault of the port and what this run makes of it.

    Args:
        axes: what observe_axes found on the same captured inputs.
    """
    found = [
        _Found(fault, Seen(axis.seen, str(axis.node)) if axis.seen else None)
        for fault, axis in zip(axis_faults(build.blueprint, captured.inputs), axes, strict=True)
    ]
    found += [_Found(fault) for fault in weight_faults(build.blueprint, captured.inputs)]
    port = _Port(build, folder, captured, ops, device)
    for stage, dtype in _stages(build.dtype, captured.by):
        judge = _Stage(port, reader, stage, dtype, bits=dtype == build.dtype and "exact" in captured.by)
        for unit in dict.fromkeys(each.fault.unit for each in found):
            left = [each for each in found if each.fault.unit == unit and judge.can_show(each)]
            if left and captured.was_compared(unit, port.num_layers):
                sides = judge.start(unit)
                for each in left:
                    sides.judge(each)
                judge.release()
    return [_outcome(each, port) for each in found]


@dataclass
class _Found:
    """A fault, by what it could be seen, and what saw it; trouble: what hid it."""

    fault: Fault
    seen: Seen | None = None
    caught: Catch | None = None
    trouble: str = "no node passed a threshold or moved a bit"


def _stages(dtype: str, by: frozenset[str]) -> Iterator[tuple[StageName, str]]:
    """The stages to run, with their dtypes; that of the port for its bits too."""
    if "semantics" in by or (dtype == "float32" and "exact" in by):
        yield "semantics", "float32"
    if by & {"precision", "exact"} and dtype != "float32":
        yield "precision", dtype


def _outcome(found: _Found, port: _Port) -> Injected:
    fault, caught = found.fault, found.caught
    dtype: torch.dtype = getattr(torch, port.build.dtype)
    blind = explain_blindness(fault, port.captured, port.num_layers, dtype)
    return Injected(
        path=fault.path, value=fault.value, tried=fault.tried,
        outcome="caught" if caught else "missed" if found.seen else "unobservable",
        stage=caught.stage if caught else None, node=caught.node if caught else None,
        rho=caught.rho if caught else None, expected=found.seen.node if found.seen else None,
        reason="" if caught else found.trouble if found.seen else blind,
    )  # fmt: skip


class _Stage:
    """Reference and golden of one dtype, opened once; units are started one after the other."""

    def __init__(self, port: _Port, reader: WeightReader, stage: StageName, dtype: str, *, bits: bool) -> None:
        self.port, self.stage, self.dtype, self.bits = port, stage, dtype, bits
        self.fails = stage in port.captured.by  # else bits alone were compared
        self.kind: torch.dtype = getattr(torch, dtype)
        self.reader = replace(reader, shared=SharedTensors(reader.checkpoint))
        self.reference = HfReference(
            port.build.reference_blueprint, port.folder, self.kind, port.device, tensors=self.reader.shared
        )
        self.golden = self.reference.golden_of(port.folder)
        for lane in (self.reference, self.golden):
            lane.start(port.captured.ids_BT)

    def can_show(self, found: _Found) -> bool:
        """Whether the fault is still to be caught, and not of a kind that this dtype cannot show."""
        return found.caught is None and (self.bits or self.dtype == self.port.build.dtype or not found.fault.rounding)

    def start(self, unit: str) -> "_Sides":
        return _Sides(self, unit, self._nodes(self.reference, unit), self._nodes(self.golden, unit))

    def release(self) -> None:
        """Lets go of the unit's weights."""
        self.golden.release()
        self.reference.release()

    def _nodes(self, lane: HfReference, unit: str) -> Nodes:
        if unit == "embed":
            return lane.embed()
        x_BTD = self.port.captured.input_of(unit, self.port.num_layers).to(self.kind).to(lane.dtype)
        return lane.head(x_BTD) if unit == "head" else lane.layer(place_of(unit, self.port.num_layers), x_BTD)


class _Sides:
    """One unit in one dtype: reference, golden, and the port as it is."""

    def __init__(self, stage: _Stage, unit: str, reference: Nodes, golden: Nodes) -> None:
        self.stage, self.unit, self.reference, self.golden = stage, unit, reference, golden
        self.right = self._run(None)
        self.clean = {node: self._measure(node, self.right) for node in self.right[0] if self._is_judged(node)}
        bad = next((node for node in self.clean.values() if node.status in ("FAIL", "INCONCLUSIVE")), None)
        self.trouble = f"the port as it is has {bad.status} at {bad.name}" if bad else ""

    def judge(self, found: _Found) -> None:
        """Notes the first FAIL that the fault makes, else the first node whose bits it makes differ."""
        wrong, observable = self._run(found.fault), None
        found.trouble = self.trouble or found.trouble
        for node, before in self.clean.items():
            if node not in wrong[0] or node not in wrong[1]:
                continue  # another op owns it
            if all(torch.equal(now[node], then[node]) for now, then in zip(wrong, self.right, strict=True)):
                continue  # judged as it is in the port
            self._note(found, node, wrong[1])
            observable = observable or (node if node not in GAUGES else None)
            after = self._measure(node, wrong)
            if self.stage.fails and after.status == "FAIL" and before.status != "FAIL":
                by: CaughtBy = "semantics" if self.stage.stage == "semantics" else "precision"
                found.caught = Catch(by, after.name, after.local.rho if after.local else None)
                if found.seen and found.seen.by == "exact" and observable:  # gauges differ in bits and do not FAIL
                    found.seen = Seen("exact", full_name(self.unit, observable))
                return
            if found.caught is None and self.stage.bits and after.exact is False and before.exact is not False:
                found.caught = Catch("exact", after.name, None)

    def _note(self, found: _Found, node: str, executor: Nodes) -> None:
        """By what the fault could be seen: what the ledger says of axes, said of weights too."""
        value, right = executor[node], self.right[1][node]
        if self.stage.dtype == "float32" and shows("semantics", node, value, right):
            if found.seen is None or found.seen.by == "exact":
                found.seen = Seen("semantics", full_name(self.unit, node))
        elif found.seen is None and self.stage.bits and shows("exact", node, value, right):
            found.seen = Seen("exact", full_name(self.unit, node))

    def _is_judged(self, node: str) -> bool:
        """Gauges only where bits count, as they cannot FAIL."""
        return node in self.reference and node in self.golden and (self.stage.bits or node not in GAUGES)

    def _measure(self, node: str, sides: tuple[Nodes, Nodes]) -> NodeDiff:
        tally = Tally(full_name(self.unit, node), self.stage.stage, self.stage.dtype)
        tally.add(sides[0][node], self.reference[node], self.golden[node], sides[1].get(node))
        return tally.finish()

    def _run(self, fault: Fault | None) -> tuple[Nodes, Nodes]:
        """The nodes of the port, and of its executor; the same where the port has those ops."""
        stage, port = self.stage, self.stage.port
        blueprint = fault.blueprint if fault else port.build.blueprint
        reader = fault.reader(stage.reader) if fault else stage.reader

        def run(ops: OpsName) -> Nodes:
            return run_unit(self.unit, blueprint, reader, port.captured, dtype=stage.kind, device=port.device, ops=ops)

        nodes = run(port.ops)
        return nodes, nodes if port.ops == "reference" else run("reference")
