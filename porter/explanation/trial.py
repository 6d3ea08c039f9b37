"""One unit of a port beside its reference on the same input, judged node by node, for as many specs as one likes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from porter.comparison.lanes import Nodes
from porter.comparison.measure import Tally, bit_equal
from porter.comparison.names import GAUGES, full_name
from porter.comparison.one_unit import Captured, run_unit
from porter.comparison.verdicts import FLOORS, THRESHOLDS
from porter.explanation.code_changes import CodeChange
from porter.explanation.code_run import run_with_code
from porter.explanation.weight_changes import ChangedReader, WeightChange
from porter.specs.alternatives import Section
from porter.specs.blueprint import Blueprint
from porter.weights.reader import WeightReader

By = Literal["preflight", "semantics", "precision", "exact"]
Others = tuple[WeightChange | CodeChange, ...]  # changes of what the spec does not say
_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


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
class AnyUnit:
    """One unit in one dtype: what its judges have in common.

    Attributes:
        name: embed, layers.3 or head.
        by: semantics: float32 against golden; exact: bits alone; precision: a port of another make, below float32.
        alike: of a layer, those that are of its kind on both sides.
    """

    name: str
    by: By
    dtype: torch.dtype
    device: torch.device
    captured: Captured
    reader: WeightReader
    alike: tuple[int, ...] = field(default=(), kw_only=True)

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

    def relevant(self, blueprint: Blueprint) -> object:
        """What of a spec acts in the unit; two specs that are equal in it give equal nodes."""
        if self.layer is not None:
            return blueprint.norm, blueprint.blocks[self.layer], blueprint.weights
        return blueprint.norm, blueprint.embed if self.name == "embed" else blueprint.head

    def judge(self, blueprint: Blueprint, others: Others = ()) -> list[Judged]:
        """Every node."""
        return [self.judge_node(node, value) for node, value in self.run(blueprint, others).items()]

    def run(self, blueprint: Blueprint, others: Others = ()) -> Nodes:
        """The nodes of a spec that can be judged, in order."""
        raise NotImplementedError

    def judge_node(self, node: str, value: Tensor) -> Judged:
        """One node of what `run` gave."""
        raise NotImplementedError

    def error(self, node: str, blueprint: Blueprint) -> Tensor | None:
        """What a node of a spec has over what it should be, float64 [N]; None where numbers cannot be fitted."""
        raise NotImplementedError

    def target(self, node: str) -> Tensor | None:
        """What a node should be; None where there are bits alone."""
        raise NotImplementedError

    @property
    def given_BTD(self) -> Tensor | None:
        """[1, T, D], what the unit is given; None: the embedding."""
        return None if self.layer is None else self.captured.inputs[self.layer]

    def _run(self, blueprint: Blueprint, others: Others, dtype: torch.dtype) -> Nodes:
        here = [each for each in others if each.acts_in(self.name)]
        weights = tuple(each for each in here if isinstance(each, WeightChange))
        code = [each for each in here if isinstance(each, CodeChange)]
        reader = ChangedReader.of(self.reader, weights) if weights else self.reader
        if code:
            return run_with_code(self.name, blueprint, reader, self.captured, code, dtype=dtype, device=self.device)
        return run_unit(self.name, blueprint, reader, self.captured, dtype=dtype, device=self.device)


@dataclass(frozen=True)
class Unit(AnyUnit):
    """A unit of a spec beside its reference, golden-fed.

    Attributes:
        golden: None for bits.
    """

    reference: Nodes
    golden: Nodes | None

    def run(self, blueprint: Blueprint, others: Others = ()) -> Nodes:
        nodes = self._run(blueprint, others, self.dtype)
        shown = self.reference.keys() if self.golden is None else self.reference.keys() & self.golden.keys()
        return {node: value for node, value in nodes.items() if node in shown}

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

    def target(self, node: str) -> Tensor | None:
        return None if self.golden is None else self.golden.get(node)

    def error(self, node: str, blueprint: Blueprint) -> Tensor | None:
        found = self.run(blueprint).get(node)
        if self.golden is None or found is None:
            return None
        return (found.double() - self.golden[node].double()).flatten()


@dataclass(frozen=True)
class ForeignUnit(AnyUnit):
    """A unit of a port of another make, whose spec is not known: specs are looked for that compute what it computed.

    A spec is run in plain torch in the port's dtype. Two right runs are √2 of the reference's own error apart; ρ is how
    far these are, over that. By bits alone, a node passes where the two are equal: no port of another make needs to be,
    but one that is equal with a change, and was not without it, has that change.

    Attributes:
        port: its nodes, of the input that was captured.
        floors: node -> the reference's own error from golden, of the node and of its worst token.
        tables: of a module, its own tensors that are as large as the vocabulary's.
    """

    port: Nodes
    floors: Mapping[str, tuple[float, float]]
    tables: Mapping[str, Tensor] = field(default_factory=dict, kw_only=True)

    def target(self, node: str) -> Tensor | None:
        return self.port.get(node)

    def run(self, blueprint: Blueprint, others: Others = ()) -> Nodes:
        nodes = self._run(blueprint, others, self.dtype)
        return {node: value for node, value in nodes.items() if node in self.port and node in self.floors}

    def judge_node(self, node: str, value: Tensor) -> Judged:
        name, port = full_name(self.name, node), self.port[node]
        if value.shape != port.shape:  # keys that the port repeats before it shows them, say
            return Judged(name, node not in GAUGES, False, None, math.inf)
        wide = torch.promote_types(value.dtype, port.dtype)  # a dump may hold a number in a wider dtype than it had
        exact = bit_equal(value.to(wide), port.to(wide))
        if self.by == "exact":
            return Judged(name, not exact, exact, None, 0.0 if exact else _difference(value, port))
        of_node, of_token = relative_errors(port, value)
        limits = THRESHOLDS["semantics" if self.by == "semantics" else "precision"][_NAMES[self.dtype]]
        floor = FLOORS[_NAMES[self.dtype]]
        rho = of_node / math.sqrt(2) / max(self.floors[node][0], floor)
        rho_tok = of_token / math.sqrt(2) / max(self.floors[node][1], floor)
        apart = not rho <= limits["rho"][0] or not rho_tok <= limits.get("rho_tok", (math.inf,))[0]
        residual = max(rho, rho_tok) if "rho_tok" in limits else rho
        fails = apart and node not in GAUGES
        return Judged(name, fails, exact, rho, residual if math.isfinite(residual) else math.inf)

    def error(self, node: str, blueprint: Blueprint) -> Tensor | None:
        found = self._run(blueprint, (), torch.float32).get(node)
        if found is None or found.shape != self.port[node].shape:
            return None
        return (found.double() - self.port[node].double()).flatten()


def relative_errors(value: Tensor, truth: Tensor) -> tuple[float, float]:
    """‖value − truth‖ / ‖truth‖ of a node [B, T, ...], and the largest of a token."""
    error_N, size_N = (each.double().flatten(0, 1).flatten(1).square().sum(1) for each in (value - truth, truth))
    least = torch.finfo(torch.float64).tiny
    of_node = float((error_N.sum() / size_N.sum().clamp_min(least)).sqrt())
    return of_node, float((error_N / size_N.clamp_min(least)).max().sqrt())


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
