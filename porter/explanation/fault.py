"""The first node that fails in a unit, and what takes the fault away: an axis, a number, a tensor, code, two axes."""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

from torch import Tensor

from porter.errors import SpecError
from porter.explanation.code_changes import CodeChange
from porter.explanation.numbers import fit_number, rounder_numbers
from porter.explanation.steps import Change, Single, Step, Tried, others_of
from porter.explanation.transforms import code_changes
from porter.explanation.trial import AnyUnit, ForeignUnit, Judged, Rank, first_failing, rank
from porter.explanation.value_fits import CONSTANT, SUM, ValueFits
from porter.explanation.weight_candidates import own_tables, weight_changes
from porter.explanation.weight_changes import WeightChange
from porter.models.build import Build
from porter.specs.alternatives import Alternative, alternatives, numbers_in_force, value_text
from porter.specs.blueprint import Blueprint
from porter.specs.resolve import Resolved

NOTICEABLE = 0.75  # below float32: what only rounds otherwise may bring a node from just above its limit to just below
_AS_GOOD = 1.05  # what a rounder number may leave over the fitted one, which is known no closer
CLOSEST = 3  # single changes that are tried with each other one
MOST_REFUSED = 6  # and changes that are no spec alone
FITTED_BESIDE = ("attn.scale",)  # numbers that are fitted beside another change
MOST_BESIDE = 12  # such changes: each costs some thirty runs of the unit
_ELSEWHERE = {  # part of a layer that fails -> what cannot reach it, as the parts before it pass
    "attn.": ("block.mlp.act", "block.mlp.gated", "block.moe", "weights.block.mlp.", "weights.block.moe."),
    "mlp.": ("block.rope", "block.attn.", "weights.block.attn."),
    "moe.": ("block.rope", "block.attn.", "weights.block.attn."),
}


class Found(Protocol):
    """What was found before: see Search."""

    build: Build
    resolved: Resolved
    others: tuple[WeightChange | CodeChange, ...]

    def with_change(self, change: Change) -> list[str]: ...
    def known_of(self, unit: AnyUnit) -> list[Change]: ...


class Fault:
    """The first failing node of a unit, and the changes that are tried on it."""

    def __init__(self, search: Found, unit: AnyUnit, judged: list[Judged], others: Sequence[AnyUnit]) -> None:
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
        self.kinds: dict[str, None] = {}
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
        if not give_up and not self._try_known():
            self._try_all()
            self._prefer_what_explains_more()
        after = self.equals[0][1] if self.equals else []
        return Step(
            unit=self.unit.name, by=self.unit.by, before=self.first,
            after=next((node for node in after if node.name == self.first.name), None),
            equals=tuple(change for change, _ in self.equals), failing=_failing(self.judged),
            left=_failing(after) if after else _failing(self.judged), axes=tuple(self.axes), tried=self.tried,
            closest=min(self.failed, key=lambda each: each.residual, default=None),
            excluded=() if self.equals else tuple(self.kinds),
        )  # fmt: skip

    def _try_all(self) -> None:
        self._try_each((single,) for single in self._singles())
        by_bits = self.foreign and self.unit.by == "exact"
        singles = [] if by_bits else self.failed.copy()
        if not self.equals and not by_bits:
            self._try_others(self._tensors_and_code())
        if not self.equals:
            self._try_each((single,) for single in self._fitted())
        if not by_bits and not self._explains_all():
            self._try_fits()
        if not self.equals:
            self._try_each(_pairs(singles, [change[0] for change in self.refused if len(change) == 1]))
        if not self.equals and not by_bits:
            self._try_beside(singles)

    def _explains_all(self) -> bool:
        """Whether one of the changes leaves nothing of the unit to explain."""
        return any(first_failing(judged) is None for _, judged in self.equals)

    def _singles(self) -> Iterator[Alternative]:
        unit = self.unit
        every = alternatives(self.search.resolved, unit.layer, unit.section, unit.alike, alone=self.foreign)
        reaching = (each for each in every if self._reaches(each.path))
        yield from sorted(reaching, key=lambda each: each.path.startswith("layers["))  # of one layer alone, last

    def _reaches(self, path: str) -> bool:
        """Whether an axis can act on the first failing node, though the parts before it pass."""
        parts = _ELSEWHERE.items() if self.unit.layer is not None else ()
        elsewhere = next((axes for part, axes in parts if self.node.startswith(part)), ("-",))
        return not _block_path(path).startswith(elsewhere)

    def _fitted(self) -> Iterator[Alternative]:
        """Numbers that none of the usual ones is: fitted to what the node should be, one axis at a time."""
        if self.unit.by == "exact":
            return
        unit = self.unit
        for path, value, start in numbers_in_force(self.search.resolved, unit.layer, unit.section, alone=self.foreign):
            if self._reaches(path):
                fitted = fit_number(start, partial(self._error_with, path))
                for number in self._as_good(path, fitted) if fitted else ():
                    yield Alternative(path, value_text(value), value_text(number))

    def _try_beside(self, singles: Sequence[Tried]) -> None:
        """The changes that bring the node closest, each with a factor of the scores that is fitted beside it.

        Any number may be wrong there, and no list of numbers has it, so that no pair does.
        """
        unit = self.unit
        numbers = numbers_in_force(self.search.resolved, unit.layer, unit.section, alone=self.foreign)
        factors = [each for each in numbers if each[0].endswith(FITTED_BESIDE) and self._reaches(each[0])]
        for tried in sorted(singles, key=lambda each: each.residual)[:MOST_BESIDE]:
            for path, value, start in factors:
                if self.equals or tried.change[0].path == path:
                    continue
                fitted = fit_number(start, partial(self._error_with, path, beside=tried.change))
                for number in self._as_good(path, fitted, tried.change) if fitted else ():
                    self._try_each([(*tried.change, Alternative(path, value_text(value), value_text(number)))])

    def _as_good(self, path: str, fitted: float, beside: Change = ()) -> Iterator[float]:
        """Rounder numbers that are no worse than a fitted one, the roundest first."""
        sizes = {number: self._error_with(path, number, beside) for number in rounder_numbers(fitted)}
        norms = {number: float(error.norm()) for number, error in sizes.items() if error is not None}
        yield from (number for number, norm in norms.items() if norm <= _AS_GOOD * norms.get(fitted, math.inf))

    def _error_with(self, path: str, number: float, beside: Change = ()) -> Tensor | None:
        """What the node has over golden, in float64, with another number beside a change; None where it cannot be."""
        change = Alternative(path, "", value_text(number))
        try:
            blueprint = self.search.build.changed(self.search.with_change((*beside, change))).blueprint
        except SpecError:
            return None
        return self.unit.error(self.node, blueprint)

    def _try_known(self) -> bool:
        """Whether what was done in a layer before explains this one."""
        for change in self.search.known_of(self.unit) if self.unit.by != "exact" or not self.foreign else ():
            judged = self._try(change, self.base)
            if judged is not None:
                self._note(change, judged)
            if self.equals:
                return True
        return False

    def _tensors_and_code(self) -> Iterator[WeightChange | CodeChange]:
        """Other ways that the port may have read the tensors of the unit, and what its code may do otherwise."""
        unit, mending = self.unit, not self.foreign
        yield from weight_changes(self.base, unit.name, mending=mending)
        if isinstance(unit, ForeignUnit) and unit.name == "head":
            yield from own_tables(self.base, unit.tables)
        if unit.layer is not None:
            yield from code_changes(self.base, unit.layer, mending=mending)
            fits = self._fits()
            yield from fits.orders() if fits else ()

    def _fits(self) -> ValueFits | None:
        """What the values of the node say; None where there is nothing to hold them against."""
        source = self.unit.run(self.base, self.search.others)
        target = {node: value for node in source if (value := self.unit.target(node)) is not None}
        if target.get(self.node) is None or target[self.node].shape != source[self.node].shape:
            return None
        return ValueFits(self.base, self.unit.name, self.node, source=source, target=target,
                         given_BTD=self.unit.given_BTD, mending=not self.foreign)  # fmt: skip

    def _try_fits(self) -> None:
        """The first of the numbers that were read off the node with which it is right."""
        fits = self._fits()
        if fits is None:
            return
        self.kinds |= dict.fromkeys((CONSTANT, SUM) if self.node.startswith("resid") else (CONSTANT,))
        for found in (fits.sums(), fits.factors(), fits.hidden_factors(self._with)):
            if not self._explains_all():
                self._try_others(found, until_one_helps=True)

    def _with(self, change: WeightChange | CodeChange) -> dict[str, Tensor]:
        return self.unit.run(self.base, (*self.search.others, change))

    def _try_others(self, changes: Iterable[WeightChange | CodeChange], *, until_one_helps: bool = False) -> None:
        for each in changes:
            if self._is_passed(each):
                continue
            self.kinds[each.kind] = None
            judged = self._try((each,), self.base)
            if judged is not None:
                self._note((each,), judged)
                if until_one_helps:
                    return

    def _is_passed(self, change: WeightChange | CodeChange) -> bool:
        """Whether it is about a part of the layer that passes, as a node after it does, or comes after the node."""
        inner = change.path.removeprefix(f"{self.unit.name}.")
        if self.node.startswith("attn.") or self.node == "resid_mid":
            return inner.startswith(("mlp.", "moe."))
        seen = {self.unit.short_name(node) for node in self.judged if not node.fails}
        return inner.startswith("attn.") and bool(seen & {"attn.out", "attn.post_norm", "resid_mid", "mlp.norm"})

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
        self.axes |= dict.fromkeys(each.path for each in change if isinstance(each, Alternative))
        nodes = self.unit.run(blueprint, (*self.search.others, *others_of(change)))
        at = self.unit.judge_node(self.node, nodes[self.node]) if self.node in nodes else None
        if at is None or at.fails or (self.unit.by == "precision" and at.residual > NOTICEABLE * self.first.residual):
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
        known = self.search.others
        others = [(unit, unit.relevant(self.base), _failing(unit.judge(self.base, known))) for unit in self.others
                  if unit is not self.unit]  # fmt: skip
        left = [self._left_in(others, change) for change, _ in self.equals]
        if self.foreign and min(left) > sum(count for *_, count in others):
            self._try_others(self._tensors_and_code())
            left = [self._left_in(others, change) for change, _ in self.equals]
        self.equals = [each for each, count in zip(self.equals, left, strict=True) if count == min(left)]

    def _left_in(self, others: Sequence[tuple[AnyUnit, object, int]], change: Change) -> int:
        """Nodes of other units that fail with a change."""
        extra, left = others_of(change), 0
        blueprint = self.search.build.changed(self.search.with_change(change)).blueprint
        for unit, before, count in others:
            same = unit.relevant(blueprint) == before and not any(each.acts_in(unit.name) for each in extra)
            left += count if same else _failing(unit.judge(blueprint, (*self.search.others, *extra)))
        return left

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
