"""One unit of a port beside its reference on the same input, judged node by node, for as many specs as one likes."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from porter.comparison.lanes import Nodes
from porter.comparison.measure import Tally, bit_equal
from porter.comparison.names import GAUGES, full_name
from porter.comparison.one_unit import Captured, run_unit
from porter.specs.alternatives import Section
from porter.specs.blueprint import Blueprint
from porter.weights.reader import WeightReader

By = Literal["preflight", "semantics", "exact"]


@dataclass(frozen=True)
class Judged:
    """One node of one spec.

    Attributes:
        fails: semantics: ρ is past what passes, in an observable node; exact: its bits are not the reference's.
        rho: None where there is no golden.
        residual: what is wrong with it as one number, the smaller the better: ρ, or the relative difference.
    """

    name: str
    fails: bool
    exact: bool
    rho: float | None
    residual: float


@dataclass(frozen=True)
class Rank:
    """How far a spec comes in a unit: nodes before the first that fails, and how many of them are bit-equal."""

    passed: int
    equal: int

    def beats(self, other: "Rank") -> bool:
        return (self.passed, self.equal) > (other.passed, other.equal)


@dataclass(frozen=True)
class Unit:
    """One unit in one dtype.

    Attributes:
        name: embed, layers.3 or head.
        by: semantics: float32 against golden; exact: bits alone.
        golden: None for bits.
        alike: of a layer, those that are of its kind on both sides.
    """

    name: str
    by: By
    dtype: torch.dtype
    device: torch.device
    captured: Captured
    reader: WeightReader
    reference: Nodes
    golden: Nodes | None
    alike: tuple[int, ...] = ()

    @property
    def layer(self) -> int | None:
        return int(self.name.removeprefix("layers.")) if self.name.startswith("layers.") else None

    @property
    def section(self) -> Section:
        """Where the axes that act here stand in the spec."""
        return "layer" if self.layer is not None else "embed" if self.name == "embed" else "head"

    def short_name(self, node: Judged) -> str:
        """attn.ctx for layers.3.attn.ctx."""
        return node.name if self.layer is None else node.name.removeprefix(f"{self.name}.")

    def run(self, blueprint: Blueprint) -> Nodes:
        """The nodes of a spec that both sides show, in order."""
        nodes = run_unit(self.name, blueprint, self.reader, self.captured, dtype=self.dtype, device=self.device)
        shown = self.reference.keys() if self.golden is None else self.reference.keys() & self.golden.keys()
        return {node: value for node, value in nodes.items() if node in shown}

    def judge(self, blueprint: Blueprint) -> list[Judged]:
        """Every node."""
        return [self.judge_node(node, value) for node, value in self.run(blueprint).items()]

    def judge_node(self, node: str, value: Tensor) -> Judged:
        reference, name = self.reference[node], full_name(self.name, node)
        if value.shape != reference.shape:
            return Judged(name, True, False, None, math.inf)
        exact = value.dtype == reference.dtype and bit_equal(value, reference)
        if self.golden is None:
            return Judged(name, not exact, exact, None, 0.0 if exact else _difference(value, reference))
        tally = Tally(name, "semantics", "float32")
        tally.add(value, reference, self.golden[node], None)
        found = tally.finish()
        rho = found.local.rho if found.local else math.inf
        fails = found.status in ("FAIL", "WARN") and node not in GAUGES
        return Judged(name, fails, exact, rho, rho if math.isfinite(rho) else math.inf)

    def relevant(self, blueprint: Blueprint) -> object:
        """What of a spec acts in the unit; two specs that are equal in it give equal nodes."""
        if self.layer is not None:
            return blueprint.norm, blueprint.blocks[self.layer], blueprint.weights
        return blueprint.norm, blueprint.embed if self.name == "embed" else blueprint.head


def rank(judged: list[Judged]) -> Rank:
    """How far it comes."""
    passed = next((i for i, node in enumerate(judged) if node.fails), len(judged))
    return Rank(passed, sum(node.exact for node in judged[:passed]))


def first_failing(judged: list[Judged]) -> Judged | None:
    """The first node that fails."""
    return next((node for node in judged if node.fails), None)


def _difference(value: Tensor, reference: Tensor) -> float:
    size = float(torch.linalg.vector_norm(reference.double()))
    error = float(torch.linalg.vector_norm(value.double() - reference.double()))
    return math.inf if not math.isfinite(error) else error / size if size else error
