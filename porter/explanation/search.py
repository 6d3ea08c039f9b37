"""Looks for the changes of a spec that bring a unit's nodes to the floor: one axis, else two, fault after fault."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from porter.comparison.explained import Outcome
from porter.errors import SpecError
from porter.explanation.numbers import fit_number, rounder_numbers
from porter.explanation.steps import Change, Single, Step, Tried, overrides_of
from porter.explanation.trial import AnyUnit, ForeignUnit, Judged, Rank, first_failing, rank
from porter.explanation.weight_changes import WeightChange, weight_changes
from porter.models.build import Build
from porter.specs.alternatives import Alternative, alternatives, numbers_in_force, value_text
from porter.specs.blueprint import Blueprint

MOST_FAULTS = 8
CLOSEST = 3  # single changes that are tried with each other one
MOST_REFUSED = 6  # and changes that are no spec alone
_ELSEWHERE = {  # part of a layer that fails -> what cannot reach it, as the parts before it pass
    "attn.": ("block.mlp.act", "block.mlp.gated", "block.moe", "weights.block.mlp.", "weights.block.moe."),
    "mlp.": ("block.rope", "block.attn.", "weights.block.attn."),
    "moe.": ("block.rope", "block.attn.", "weights.block.attn."),
}


class Search:
    """The faults found so far, and the spec without them."""

    def __init__(self, build: Build) -> None:
        self.build = build
        self.kept: list[str] = []  # axis=value
        self.steps: list[Step] = []
        self.resolved = build.resolved
        self.weights: tuple[WeightChange, ...] = ()

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

    def visit(self, unit: AnyUnit, others: Sequence[AnyUnit] = ()) -> None:
        """Explains what fails in a unit, until nothing does or nothing helps.

        Args:
            others: units that say which of the changes that explain it equally well explains more.
        """
        while not self.stuck:
            judged = unit.judge(self.resolved.blueprint, self.weights)
            if first_failing(judged) is None:
                self.steps = [self._told_apart_by(unit, step) for step in self.steps]
                return
            self.take(_Fault(self, unit, judged, others).explain(give_up=len(self.steps) == MOST_FAULTS))

    def visit_bits(self, unit: ForeignUnit) -> None:
        """Explains nodes whose bits a change of one axis gives; those that none gives are as they may be."""
        while not self.stuck and len(self.steps) < MOST_FAULTS:
            judged = unit.judge(self.resolved.blueprint, self.weights)
            if first_failing(judged) is None:
                return
            step = _Fault(self, unit, judged, ()).explain(give_up=False)
            if not step.equals:
                return
            self.take(step)

    def take(self, step: Step) -> None:
        """Adds a step, and its first change to the spec; an axis that was changed before is changed again."""
        self.steps.append(step)
        if not step.equals:
            return
        self.weights += tuple(each for each in step.equals[0] if isinstance(each, WeightChange))
        paths = {each.path for each in step.equals[0]}
        again = [each for each in self.steps[:-1] if each.equals and {one.path for one in each.equals[0]} == paths]
        for each in again:  # what this step says of the axis holds for the units before it, too
            self.steps.remove(each)
        self.kept = self.with_change(step.equals[0])
        self.resolved = self.build.changed(self.kept)

    def _told_apart_by(self, unit: AnyUnit, step: Step) -> Step:
        """The step without those of its equally good changes with which this unit, which passes now, would fail."""
        if len(step.equals) < 2:
            return step
        now = unit.relevant(self.resolved.blueprint)
        kept = list(step.equals[:1])
        for change in step.equals[1:]:
            if any(isinstance(each, WeightChange) for each in change):
                kept.append(change)
                continue
            blueprint = self.build.changed(self._with_instead(step.equals[0], change)).blueprint
            if unit.relevant(blueprint) == now or first_failing(unit.judge(blueprint, self.weights)) is None:
                kept.append(change)
        return replace(step, equals=tuple(kept))

    def _with_instead(self, change: Change, other: Change) -> list[str]:
        """What is kept, with another change in the place of one."""
        dropped = {each.override for each in change}
        return [*(each for each in self.kept if each not in dropped), *overrides_of(other)]

    def with_change(self, change: Change) -> list[str]:
        """The changes kept so far and these, which replace what was kept of the same axes."""
        paths = {each.path for each in change}
        return [
            *(each for each in self.kept if each.partition("=")[0] not in paths),
            *overrides_of(change),
        ]


class _Fault:
    """The first failing node of a unit, and the changes that are tried on it."""

    def __init__(self, search: Search, unit: AnyUnit, judged: list[Judged], others: Sequence[AnyUnit]) -> None:
        self.search, self.unit, self.judged, self.others = search, unit, judged, others
        first = first_failing(judged)
        assert first is not None
        self.first, self.rank, self.node = first, rank(judged), unit.short_name(first)
        self.base = search.resolved.blueprint
        self.foreign = isinstance(unit, ForeignUnit)
        self.parameters = _shapes(search.build.reference_blueprint if self.foreign else self.base)
        self.seen: list[tuple[object, list[Judged] | None]] = [(unit.relevant(self.base), None)]
        self.hashes = {self.base.hash}
        self.axes: dict[str, None] = {}
        self.tried = 0
        self.failed: list[Tried] = []
        self.refused: list[Change] = []  # the spec does not allow them alone
        self.best: Rank | None = None
        self.equals: list[tuple[Change, list[Judged]]] = []

    def explain(self, *, give_up: bool) -> Step:
        """What helps most.

        Args:
            give_up: try nothing; so many faults are no longer told apart.
        """
        if not give_up:
            self._try_each((single,) for single in self._singles())
            singles = [] if self.foreign and self.unit.by == "exact" else self.failed.copy()
            if not self.equals:
                self._try_each((single,) for single in self._fitted())
            if not self.equals and self.foreign and self.unit.by != "exact":
                self._try_weights()
            if not self.equals:
                self._try_each(_pairs(singles, [change[0] for change in self.refused if len(change) == 1]))
            self._prefer_what_explains_more()
        after = self.equals[0][1] if self.equals else []
        return Step(
            unit=self.unit.name, by=self.unit.by, before=self.first,
            after=next((node for node in after if node.name == self.first.name), None),
            equals=tuple(change for change, _ in self.equals), failing=_failing(self.judged),
            left=_failing(after) if after else _failing(self.judged), axes=tuple(self.axes), tried=self.tried,
            closest=min(self.failed, key=lambda each: each.residual, default=None),
        )  # fmt: skip

    def _singles(self) -> Iterator[Alternative]:
        unit = self.unit
        for each in alternatives(self.search.resolved, unit.layer, unit.section, unit.alike, alone=self.foreign):
            if self._reaches(each.path):
                yield each

    def _reaches(self, path: str) -> bool:
        """Whether an axis can act on the first failing node, though the parts before it pass."""
        parts = _ELSEWHERE.items() if self.unit.layer is not None else ()
        elsewhere = next((axes for part, axes in parts if self.node.startswith(part)), ("-",))
        return not _block_path(path).startswith(elsewhere)

    def _fitted(self) -> Iterator[Alternative]:
        """Numbers that none of the usual ones is: fitted to what the node should be, one axis at a time."""
        if self.unit.by == "exact":
            return
        for path, value in numbers_in_force(self.search.resolved, self.unit.layer, self.unit.section):
            if self._reaches(path):
                fitted = fit_number(value, partial(self._error_with, path))
                for number in rounder_numbers(fitted) if fitted else ():
                    yield Alternative(path, value_text(value), value_text(number))

    def _error_with(self, path: str, number: float) -> Tensor | None:
        """What the node has over golden, in float64, with another number; None where it cannot be."""
        change = Alternative(path, "", value_text(number))
        try:
            blueprint = self.search.build.changed(self.search.with_change((change,))).blueprint
        except SpecError:
            return None
        return self.unit.error(self.node, blueprint)

    def _try_weights(self) -> None:
        """Other ways that the port may have read the tensors of the layer."""
        if self.unit.layer is None:
            return
        for each in weight_changes(self.base, self.unit.layer):
            judged = self._try((each,), self.base)
            if judged is not None:
                self._note((each,), judged)

    def _try_each(self, changes: Iterable[Change]) -> None:
        for change in changes:
            blueprint = self._blueprint(change)
            if blueprint is None:
                continue
            relevant = self.unit.relevant(blueprint)
            known = next((each for each in self.seen if each[0] == relevant), None)
            if known is None:  # else the unit computes what it did with another change
                known = (relevant, self._try(change, blueprint))
                self.seen.append(known)
            if known[1] is not None:
                self._note(change, known[1])

    def _try(self, change: Change, blueprint: Blueprint) -> list[Judged] | None:
        """The unit's nodes, where the first failing one no longer fails."""
        self.tried += 1
        self.axes |= dict.fromkeys(each.path for each in change)
        nodes = self.unit.run(blueprint, (*self.search.weights, *(c for c in change if isinstance(c, WeightChange))))
        at = self.unit.judge_node(self.node, nodes[self.node]) if self.node in nodes else None
        if at is None or at.fails:
            self.failed.append(Tried(change, at.residual if at else float("inf")))
            return None
        return [self.unit.judge_node(name, value) for name, value in nodes.items()]

    def _note(self, change: Change, judged: list[Judged]) -> None:
        """Keeps it, if it comes further than the port as it is, and no less far than others."""
        reached = rank(judged)
        if reached.passed <= self.rank.passed or (self.best and self.best.beats(reached)):
            return
        if self.best is None or reached.beats(self.best):
            self.best, self.equals = reached, []
        self.equals.append((change, judged))

    def _prefer_what_explains_more(self) -> None:
        """Of changes that explain the unit equally well, keeps those with which the fewest nodes of others fail.

        Of a foreign port, where each of them makes more fail than did, its tensors are looked at, too.
        """
        if not self.others or len(self.equals) < (1 if self.foreign else 2):
            return
        weights = self.search.weights
        others = [(unit, unit.relevant(self.base), _failing(unit.judge(self.base, weights))) for unit in self.others
                  if unit is not self.unit]  # fmt: skip
        left = [self._left_in(others, change) for change, _ in self.equals]
        if self.foreign and min(left) > sum(count for *_, count in others):
            self._try_weights()
            left = [self._left_in(others, change) for change, _ in self.equals]
        self.equals = [each for each, count in zip(self.equals, left, strict=True) if count == min(left)]

    def _left_in(self, others: Sequence[tuple[AnyUnit, object, int]], change: Change) -> int:
        """Nodes of other units that fail with a change."""
        blueprint = self.search.build.changed(self.search.with_change(change)).blueprint
        return sum(
            count if unit.relevant(blueprint) == before else _failing(unit.judge(blueprint, self.search.weights))
            for unit, before, count in others
        )

    def _blueprint(self, change: Change) -> Blueprint | None:
        """The spec with the change; None where it is none, was tried, or needs other tensors."""
        try:
            blueprint = self.search.build.changed(self.search.with_change(change)).blueprint
        except SpecError:
            self.refused.append(change)
            return None
        shapes = _shapes(blueprint)
        fits = shapes.items() <= self.parameters.items() if self.foreign else shapes == self.parameters
        if blueprint.hash in self.hashes or not fits:
            return None
        self.hashes.add(blueprint.hash)
        return blueprint


def _pairs(singles: Sequence[Tried], refused: Sequence[Single]) -> Iterator[Change]:
    """The changes that bring the node closest, and those that no spec allows alone, with each of another axis."""
    closest = [each.change[0] for each in sorted(singles, key=lambda tried: tried.residual)]
    for index, one in enumerate(closest[:CLOSEST]):
        yield from ((one, other) for other in closest[index + 1 :] if one.path != other.path)
    for one in list(refused)[:MOST_REFUSED]:
        yield from ((other, one) for other in closest if one.path != other.path)


def _failing(judged: Sequence[Judged]) -> int:
    return sum(node.fails for node in judged)


def _shapes(blueprint: Blueprint) -> dict[str, tuple[int, ...]]:
    return {name: parameter.shape for name, parameter in blueprint.parameters().items()}


def _block_path(path: str) -> str:
    """The path of `block` that a path below a pattern case, or of a single layer, stands for."""
    if path.startswith("patterns.") and not path.endswith(".by"):
        return "block." + path.split(".", 4)[4]
    return "block." + path.split(".", 1)[1] if path.startswith("layers[") else path
