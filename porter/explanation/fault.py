"""The first node that fails in a unit, and what takes the fault away: an axis, a number, a tensor, code, two axes."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from porter.errors import SpecError
from porter.explanation.candidates import Candidates, Found, pairs
from porter.explanation.code_changes import CodeChange
from porter.explanation.steps import Change, Step, Tried, others_of
from porter.explanation.trial import AnyUnit, Judged, Rank, first_failing, rank
from porter.explanation.value_fits import CONSTANT, SUM
from porter.explanation.weight_changes import WeightChange
from porter.specs.alternatives import Alternative
from porter.specs.blueprint import Blueprint

NOTICEABLE = 0.75  # below float32: what only rounds otherwise may bring a node from just above its limit to just below


class Fault:
    """The first failing node of a unit, and the changes that are tried on it."""

    def __init__(self, search: Found, unit: AnyUnit, judged: list[Judged], others: Sequence[AnyUnit]) -> None:
        self.search, self.unit, self.judged, self.others = search, unit, judged, others
        first = first_failing(judged)
        assert first is not None
        self.first, self.rank, self.node = first, rank(judged), unit.short_name(first)
        self.base = search.resolved.blueprint
        self.candidates = Candidates(search, unit, self.node, judged)
        self.foreign = self.candidates.foreign
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
        self._try_each((single,) for single in self.candidates.singles())
        by_bits = self.foreign and self.unit.by == "exact"
        singles = [] if by_bits else self.failed.copy()
        if not self.equals and not by_bits:
            self._try_others(self.candidates.tensors_and_code())
        if not self.equals:
            self._try_each((single,) for single in self.candidates.fitted())
        if not by_bits and not self._explains_all():
            self._try_fits()
        if not self.equals:
            self._try_each(pairs(singles, [change[0] for change in self.refused if len(change) == 1]))
        if not self.equals and not by_bits:
            for changes in self.candidates.beside(singles):
                self._try_each(changes)
                if self.equals:
                    break

    def _explains_all(self) -> bool:
        """Whether one of the changes leaves nothing of the unit to explain."""
        return any(first_failing(judged) is None for _, judged in self.equals)

    def _try_known(self) -> bool:
        """Whether what was done in a layer before explains this one."""
        for change in self.search.known_of(self.unit) if self.unit.by != "exact" or not self.foreign else ():
            judged = self._try(change, self.base)
            if judged is not None:
                self._note(change, judged)
            if self.equals:
                return True
        return False

    def _try_fits(self) -> None:
        """The first of the numbers that were read off the node with which it is right."""
        fits = self.candidates.fits()
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
            if self.candidates.is_passed(each):
                continue
            self.kinds[each.kind] = None
            judged = self._try((each,), self.base)
            if judged is not None:
                self._note((each,), judged)
                if until_one_helps:
                    return

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
            self._try_others(self.candidates.tensors_and_code())
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


def _failing(judged: Sequence[Judged]) -> int:
    return sum(node.fails for node in judged)


def _shapes(blueprint: Blueprint) -> dict[str, tuple[int, ...]]:
    return {name: parameter.shape for name, parameter in blueprint.parameters().items()}
