"""Looks for the changes of a spec that bring a unit's nodes to the floor: one axis, else two, fault after fault."""

from collections.abc import Sequence
from dataclasses import replace

from porter.comparison.explained import Outcome
from porter.explanation.code_changes import CodeChange
from porter.explanation.fault import Fault
from porter.explanation.steps import Change, Step, moved, others_of, overrides_of
from porter.explanation.trial import AnyUnit, ForeignUnit, first_failing
from porter.explanation.weight_changes import WeightChange
from porter.models.build import Build
from porter.specs.alternatives import Alternative

MOST_FAULTS = 8


class Search:
    """The faults found so far, and the spec without them."""

    def __init__(self, build: Build) -> None:
        self.build = build
        self.kept: list[str] = []  # axis=value
        self.steps: list[Step] = []
        self.resolved = build.resolved
        self.others: tuple[WeightChange | CodeChange, ...] = ()  # of tensors and code

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
            judged = unit.judge(self.resolved.blueprint, self.others)
            if first_failing(judged) is None:
                self.steps = [self._told_apart_by(unit, step) for step in self.steps]
                return
            self.take(Fault(self, unit, judged, others).explain(give_up=len(self.steps) == MOST_FAULTS))

    def visit_bits(self, unit: ForeignUnit) -> None:
        """Explains nodes whose bits a change of one axis gives; those that none gives are as they may be."""
        while not self.stuck and len(self.steps) < MOST_FAULTS:
            judged = unit.judge(self.resolved.blueprint, self.others)
            if first_failing(judged) is None:
                return
            step = Fault(self, unit, judged, ()).explain(give_up=False)
            if not step.equals:
                return
            self.take(step)

    def take(self, step: Step) -> None:
        """Adds a step, and its first change to the spec; an axis that was changed before is changed again."""
        self.steps.append(step)
        if not step.equals:
            return
        change = step.equals[0]
        self.others += others_of(change)
        if not others_of(change):
            paths = {each.path for each in change}
            again = [each for each in self.steps[:-1] if each.equals and {one.path for one in each.equals[0]} == paths]
            for each in again:  # what this step says of the axis holds for the units before it, too
                self.steps.remove(each)
        self._join(step)
        self.kept = self.with_change(change)
        self.resolved = self.build.changed(self.kept)

    def known_of(self, unit: AnyUnit) -> list[Change]:
        """What was done to tensors or in code in layers before, as it would be in this one."""
        found = [moved(step.equals[0], *layers) for step in self.steps
                 if step.equals and (layers := _both_layers(step.unit, unit.name))]  # fmt: skip
        return [each for each in found if each is not None]

    def _join(self, step: Step) -> None:
        """The step as part of one before it, if the same was done in another layer there."""
        for at, each in enumerate(self.steps[:-1]):
            layers = _both_layers(each.unit, step.unit)
            if each.equals and layers and moved(each.equals[0], *layers) == step.equals[0]:
                self.steps[at] = replace(each, also=(*each.also, step.unit))
                self.steps.pop()
                return

    def _told_apart_by(self, unit: AnyUnit, step: Step) -> Step:
        """The step without those of its equally good changes with which this unit, which passes now, would fail."""
        if len(step.equals) < 2 or others_of(step.equals[0]):
            return step
        now = unit.relevant(self.resolved.blueprint)
        kept = list(step.equals[:1])
        for change in step.equals[1:]:
            if others_of(change):
                kept.append(change)
                continue
            blueprint = self.build.changed(self._with_instead(step.equals[0], change)).blueprint
            if unit.relevant(blueprint) == now or first_failing(unit.judge(blueprint, self.others)) is None:
                kept.append(change)
        return replace(step, equals=tuple(kept))

    def _with_instead(self, change: Change, other: Change) -> list[str]:
        """What is kept, with another change in the place of one."""
        dropped = {each.override for each in change}
        return [*(each for each in self.kept if each not in dropped), *overrides_of(other)]

    def with_change(self, change: Change) -> list[str]:
        """The changes kept so far and these, which replace what was kept of the same axes."""
        paths = {each.path for each in change if isinstance(each, Alternative)}
        return [
            *(each for each in self.kept if each.partition("=")[0] not in paths),
            *overrides_of(change),
        ]


def _both_layers(one: str, other: str) -> tuple[int, int] | None:
    """The numbers of two layers; None where one is none, or they are the same."""
    numbers = [int(each.removeprefix("layers.")) for each in (one, other) if each.startswith("layers.")]
    return (numbers[0], numbers[1]) if len(numbers) == 2 and numbers[0] != numbers[1] else None
