"""Looks for the changes of a spec that bring a unit's nodes to the floor: one axis, else two, fault after fault."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from porter.errors import SpecError
from porter.explanation.trial import By, Judged, Rank, Unit, first_failing, rank
from porter.models.build import Build
from porter.specs.alternatives import Alternative, alternatives
from porter.specs.blueprint import Blueprint

MOST_FAULTS = 4
_CLOSEST = 3  # single changes that are tried with each other one
_ELSEWHERE = {  # part of a layer that fails -> what cannot reach it, as the parts before it pass
    "attn.": ("block.mlp.act", "block.mlp.gated", "weights.block.mlp."),
    "mlp.": ("block.rope", "block.attn.", "weights.block.attn."),
}
Change = tuple[Alternative, ...]  # one axis, or two at once


@dataclass(frozen=True)
class Tried:
    """A change that does not help, with what it leaves of the first failing node."""

    change: Change
    residual: float


@dataclass(frozen=True)
class Step:
    """One fault: where it showed, and what takes it away.

    Attributes:
        before: the first failing node as the port has it; after: the same, changed. None: nothing helps.
        equals: changes that explain it equally well, the first of which was kept; empty: nothing helps.
        failing, left: nodes of the unit that fail before and after.
        axes: that were tried; tried: how many values. closest: of what does not help, the closest.
    """

    unit: str
    by: By
    before: Judged
    after: Judged | None
    equals: tuple[Change, ...]
    failing: int
    left: int
    axes: tuple[str, ...]
    tried: int
    closest: Tried | None

    @property
    def explained(self) -> int:
        """Nodes that the change brings to the floor."""
        return self.failing - self.left


Outcome = Literal["nothing", "explained", "partly", "unexplained"]


class Search:
    """The faults found so far, and the spec without them."""

    def __init__(self, build: Build) -> None:
        self.build = build
        self.kept: list[str] = []  # axis=value
        self.steps: list[Step] = []
        self.resolved = build.resolved

    @property
    def stuck(self) -> bool:
        """The last fault was not explained."""
        return bool(self.steps) and not self.steps[-1].equals

    @property
    def outcome(self) -> Outcome:
        if not self.steps:
            return "nothing"
        if not self.stuck:
            return "explained"
        return "partly" if len(self.steps) > 1 else "unexplained"

    def visit(self, unit: Unit) -> None:
        """Explains what fails in a unit, until nothing does or nothing helps."""
        while not self.stuck:
            judged = unit.judge(self.resolved.blueprint)
            if first_failing(judged) is None:
                return
            self.steps.append(_Fault(self, unit, judged).explain(give_up=len(self.steps) == MOST_FAULTS))
            for change in self.steps[-1].equals[:1]:
                self.kept += [each.override for each in change]
                self.resolved = self.build.changed(self.kept)


class _Fault:
    """The first failing node of a unit, and the changes that are tried on it."""

    def __init__(self, search: Search, unit: Unit, judged: list[Judged]) -> None:
        self.search, self.unit, self.judged = search, unit, judged
        first = first_failing(judged)
        assert first is not None
        self.first, self.rank, self.node = first, rank(judged), unit.short_name(first)
        self.base = search.resolved.blueprint
        self.parameters = _shapes(self.base)
        self.seen = [unit.relevant(self.base)]
        self.axes: dict[str, None] = {}
        self.tried = 0
        self.failed: list[Tried] = []
        self.best: Rank | None = None
        self.equals: list[tuple[Change, list[Judged]]] = []

    def explain(self, *, give_up: bool) -> Step:
        """What helps most.

        Args:
            give_up: try nothing; so many faults are no longer told apart.
        """
        if not give_up:
            self._try_each((single,) for single in self._singles())
            if not self.equals:
                self._try_each(self._pairs())
        after = self.equals[0][1] if self.equals else []
        return Step(
            unit=self.unit.name, by=self.unit.by, before=self.first,
            after=next((node for node in after if node.name == self.first.name), None),
            equals=tuple(change for change, _ in self.equals), failing=_failing(self.judged),
            left=_failing(after) if after else _failing(self.judged), axes=tuple(self.axes), tried=self.tried,
            closest=min(self.failed, key=lambda each: each.residual, default=None),
        )  # fmt: skip

    def _singles(self) -> Iterator[Alternative]:
        layer, name = self.unit.layer, self.unit.name
        section: Literal["embed", "layer", "head"] = (
            "layer" if layer is not None else "embed" if name == "embed" else "head"
        )
        parts = _ELSEWHERE.items() if layer is not None else ()
        elsewhere = next((axes for part, axes in parts if self.node.startswith(part)), ())
        for each in alternatives(self.search.resolved, layer, section):
            if not _block_path(each.path).startswith(elsewhere or ("-",)):
                yield each

    def _pairs(self) -> Iterator[Change]:
        """Each single change that brings the node closer, of the few that do so most, with one of another axis."""
        singles = [each.change[0] for each in sorted(self.failed, key=lambda tried: tried.residual)]
        for index, one in enumerate(singles[:_CLOSEST]):
            yield from ((one, other) for other in singles[index + 1 :] if one.path != other.path)

    def _try_each(self, changes: Iterable[Change]) -> None:
        for change in changes:
            blueprint = self._blueprint(change)
            if blueprint is None:
                continue
            self.tried += 1
            self.axes |= dict.fromkeys(each.path for each in change)
            nodes = self.unit.run(blueprint)
            at = self.unit.judge_node(self.node, nodes[self.node]) if self.node in nodes else None
            if at is None or at.fails:
                self.failed.append(Tried(change, at.residual if at else float("inf")))
                continue
            self._note(change, [self.unit.judge_node(name, value) for name, value in nodes.items()])

    def _note(self, change: Change, judged: list[Judged]) -> None:
        """Keeps it, if it comes further than the port as it is, and no less far than others."""
        reached = rank(judged)
        if reached.passed <= self.rank.passed or (self.best and self.best.beats(reached)):
            return
        if self.best is None or reached.beats(self.best):
            self.best, self.equals = reached, []
        self.equals.append((change, judged))

    def _blueprint(self, change: Change) -> Blueprint | None:
        """The spec with the change; None where it is none, does not act here, or needs other tensors."""
        try:
            blueprint = self.search.build.changed([*self.search.kept, *(each.override for each in change)]).blueprint
        except SpecError:
            return None
        relevant = self.unit.relevant(blueprint)
        if relevant in self.seen or _shapes(blueprint) != self.parameters:
            return None
        self.seen.append(relevant)
        return blueprint


def _failing(judged: Sequence[Judged]) -> int:
    return sum(node.fails for node in judged)


def _shapes(blueprint: Blueprint) -> dict[str, tuple[int, ...]]:
    return {name: parameter.shape for name, parameter in blueprint.parameters().items()}


def _block_path(path: str) -> str:
    """The path of `block` that a path below a pattern case, or of a single layer, stands for."""
    if path.startswith("patterns."):
        return "block." + path.split(".", 4)[4]
    return "block." + path.split(".", 1)[1] if path.startswith("layers[") else path
