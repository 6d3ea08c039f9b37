"""Which axes could this run have shown? Each is changed on captured inputs, and the nodes of one unit are compared.

An axis is seen by `semantics` when the change moves a node of the float32 model past its FAIL threshold, by `exact`
when it moves a bit in the port's dtype; otherwise this prompt and these weights are blind to it. What was not compared
could not show anything: a stage left out with --stage, a unit left out with --layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from porter.comparison.faults import Fault, axis_faults
from porter.comparison.lanes import Nodes
from porter.comparison.names import GAUGES, full_name
from porter.comparison.observed import Axis
from porter.comparison.one_unit import Captured, run_unit
from porter.comparison.verdicts import FLOORS, THRESHOLDS
from porter.specs.blueprint import Blueprint
from porter.specs.moe import Moe
from porter.weights.reader import SharedTensors, WeightReader

_LEFT_OUT = {"embed": "the embedding was not compared", "head": "the head was not compared"}
By = Literal["semantics", "exact"]
NO_BIT = "no bit moved on these weights and this prompt"


@dataclass(frozen=True)
class Seen:
    """Where a fault shows first."""

    by: By
    node: str


def observe_axes(
    blueprint: Blueprint, reader: WeightReader, captured: Captured, dtype: torch.dtype, device: torch.device
) -> list[Axis]:
    """Every axis of the blueprint with where a change of it shows, or why it could not."""
    faults = axis_faults(blueprint, captured.inputs)
    found = observe(faults, blueprint, reader, captured, dtype, device)
    return [
        Axis(
            path=fault.path, value=fault.value, tried=fault.tried,
            seen=seen.by if seen else None, node=seen.node if seen else None,
            reason="" if seen else explain_blindness(fault, captured, blueprint.dims.layers, dtype),
        )
        for fault, seen in zip(faults, found, strict=True)
    ]  # fmt: skip


def observe(
    faults: Sequence[Fault],
    blueprint: Blueprint,
    reader: WeightReader,
    captured: Captured,
    dtype: torch.dtype,
    device: torch.device,
) -> list[Seen | None]:
    """Where each fault shows first. A unit's weights are read once for each dtype, and no other's are in memory."""
    found: dict[int, Seen] = {}
    for name in dict.fromkeys(fault.unit for fault in faults):
        if not captured.was_compared(name, blueprint.dims.layers):
            continue
        own = [index for index, fault in enumerate(faults) if fault.unit == name]
        unit: _Unit | None = None
        passes: tuple[tuple[By, torch.dtype], ...] = (("semantics", torch.float32), ("exact", dtype))
        for by, kind in passes:
            left = [i for i in own if i not in found and not (by == "semantics" and faults[i].rounding)]
            if not left or by not in captured.by:
                continue
            if unit is None or unit.dtype != kind:
                unit = None  # before the next, so that the weights of one lie in memory
                unit = _Unit(name, blueprint, reader, captured, kind, device)
            for i in left:
                node = unit.first(faults[i], by)
                if node is not None:
                    found[i] = Seen(by, node)
    return [found.get(index) for index in range(len(faults))]


class _Unit:
    """Runs one unit of a blueprint, or of a changed one, in a dtype, on weights that are read once."""

    def __init__(
        self,
        name: str,
        blueprint: Blueprint,
        reader: WeightReader,
        captured: Captured,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.name, self.captured, self.dtype, self.device = name, captured, dtype, device
        self.reader = replace(reader, shared=SharedTensors(reader.checkpoint))
        self.blueprint = blueprint
        self.base = self._run(None)

    def first(self, fault: Fault, by: By) -> str | None:
        """The first node that a fault moves, under its full name."""
        nodes = self._run(fault)
        for node, value in self.base.items():
            if node in nodes and shows(by, node, nodes[node], value):
                return full_name(self.name, node)
        return None

    def _run(self, fault: Fault | None) -> Nodes:
        blueprint, reader = (fault.blueprint, fault.reader(self.reader)) if fault else (self.blueprint, self.reader)
        return run_unit(self.name, blueprint, reader, self.captured, dtype=self.dtype, device=self.device)


def shows(by: By, node: str, changed: Tensor, base: Tensor) -> bool:
    """semantics: moved past what float32 fails at, were the reference's error at the floor; a gauge cannot fail."""
    if by == "exact":
        return not torch.equal(changed, base)
    size = float(torch.linalg.vector_norm(base))
    relative = float(torch.linalg.vector_norm(changed - base)) / size if size else 0.0
    return node not in GAUGES and relative > THRESHOLDS["semantics"]["float32"]["rho"][1] * FLOORS["float32"]


def _hidden_in_routing(name: str, moes: Sequence[Moe]) -> str:
    """Why a change of every router is none; empty where it might be one."""
    routers = [moe.router for moe in moes]
    if name == "sorted" and all(moe.top_k <= 2 for moe in moes):
        return "two terms add to the same sum in either order"
    if name == "score_dtype" and all(router.dtype == "fp32" for router in routers):
        return "the router's logits are float32 already"
    if name == "score_dtype" and not any(router.renorm for router in routers):
        return "softmax computes in float32 either way, and its weights are rounded once"
    if name == "weights_dtype" and all(router.score_dtype == "act" for router in routers):
        return "the weights are in the activations' dtype already"
    if name == "order" and all(router.renorm for router in routers):
        return "weights that are divided by their sum are the same in either order"
    return ""


def explain_blindness(fault: Fault, captured: Captured, num_layers: int, dtype: torch.dtype) -> str:
    """Why a change stayed hidden, as far as it can be told."""
    name, length, called = fault.path.rpartition(".")[2], captured.ids_BT.shape[1], str(dtype).removeprefix("torch.")
    if not captured.was_compared(fault.unit, num_layers):
        return _LEFT_OUT.get(fault.unit, "no layer of its kind was compared")
    if name == "window" and length <= int(fault.value):
        return f"{length} tokens do not pass the window of {fault.value}"
    if "exact" not in captured.by:
        return f"bits in {called} were not compared"
    if name == "pos_dtype":
        return f"positions up to {length - 1} are exact in {called}"
    ropes = [block.rope for block in fault.blueprint.blocks if block.rope]
    if name == "apply_dtype" and all(rope.table_dtype == "fp32" for rope in ropes):
        return "a float32 table is multiplied in float32 either way"
    if name.endswith("dtype") and dtype == torch.float32:
        return "float32 rounds alike"
    mixers = [block.mixer for block in fault.blueprint.blocks if block.mixer is not None]
    if fault.path.startswith("block.rope.") and mixers and all(getattr(m, "rotation", "") == "complex" for m in mixers):
        return "a rotation by complex numbers has pairs and a dtype of its own"
    if name == "groups" and len(set(fault.value.split(" of "))) == 1:
        return f"the best {fault.value} groups are all of them"
    moes = [block.moe for block in fault.blueprint.blocks if block.moe is not None]
    if moes and (reason := _hidden_in_routing(name, moes)):
        return reason
    if length == 1 and "rope" in fault.path:
        return "one token at position 0 is not rotated"
    return NO_BIT
