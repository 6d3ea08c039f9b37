"""What may be wrong at a failing node: other values of axes, fitted numbers, tensors read otherwise, other code."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from torch import Tensor

from porter.errors import SpecError
from porter.explanation.code_changes import CodeChange
from porter.explanation.numbers import fit_number, rounder_numbers
from porter.explanation.steps import Change, Single, Tried
from porter.explanation.transforms import code_changes
from porter.explanation.trial import AnyUnit, ForeignUnit, Judged
from porter.explanation.value_fits import ValueFits
from porter.explanation.weight_candidates import own_tables, weight_changes
from porter.explanation.weight_changes import WeightChange
from porter.models.build import Build
from porter.specs.alternatives import Alternative, alternatives, numbers_in_force, value_text
from porter.specs.blueprint import Blueprint
from porter.specs.resolve import Resolved

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


@dataclass(frozen=True)
class Candidates:
    """What is worth trying at one node of a unit.

    Attributes:
        node: the first that fails.
        judged: the unit's nodes, as the port is.
    """

    search: Found
    unit: AnyUnit
    node: str
    judged: Sequence[Judged]

    @property
    def base(self) -> Blueprint:
        return self.search.resolved.blueprint

    @property
    def foreign(self) -> bool:
        return isinstance(self.unit, ForeignUnit)

    def singles(self) -> Iterator[Alternative]:
        unit = self.unit
        every = alternatives(self.search.resolved, unit.layer, unit.section, unit.alike, alone=self.foreign)
        reaching = (each for each in every if self._reaches(each.path))
        yield from sorted(reaching, key=lambda each: each.path.startswith("layers["))  # of one layer alone, last

    def _reaches(self, path: str) -> bool:
        """Whether an axis can act on the first failing node, though the parts before it pass."""
        parts = _ELSEWHERE.items() if self.unit.layer is not None else ()
        elsewhere = next((axes for part, axes in parts if self.node.startswith(part)), ("-",))
        return not _block_path(path).startswith(elsewhere)

    def fitted(self) -> Iterator[Alternative]:
        """Numbers that none of the usual ones is: fitted to what the node should be, one axis at a time."""
        if self.unit.by == "exact":
            return
        unit = self.unit
        for path, value, start in numbers_in_force(self.search.resolved, unit.layer, unit.section, alone=self.foreign):
            if self._reaches(path):
                fitted = fit_number(start, partial(self._error_with, path))
                for number in self._as_good(path, fitted) if fitted else ():
                    yield Alternative(path, value_text(value), value_text(number))

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

    def tensors_and_code(self) -> Iterator[WeightChange | CodeChange]:
        """Other ways that the port may have read the tensors of the unit, and what its code may do otherwise."""
        unit, mending = self.unit, not self.foreign
        yield from weight_changes(self.base, unit.name, mending=mending)
        if isinstance(unit, ForeignUnit) and unit.name == "head":
            yield from own_tables(self.base, unit.tables)
        if unit.layer is not None:
            yield from code_changes(self.base, unit.layer, mending=mending)
            fits = self.fits()
            yield from fits.orders() if fits else ()

    def fits(self) -> ValueFits | None:
        """What the values of the node say; None where there is nothing to hold them against."""
        source = self.unit.run(self.base, self.search.others)
        target = {node: value for node in source if (value := self.unit.target(node)) is not None}
        if target.get(self.node) is None or target[self.node].shape != source[self.node].shape:
            return None
        return ValueFits(self.base, self.unit.name, self.node, source=source, target=target,
                         given_BTD=self.unit.given_BTD, mending=not self.foreign)  # fmt: skip

    def is_passed(self, change: WeightChange | CodeChange) -> bool:
        """Whether it is about a part of the layer that passes, as a node after it does, or comes after the node."""
        inner = change.path.removeprefix(f"{self.unit.name}.")
        if self.node.startswith("attn.") or self.node == "resid_mid":
            return inner.startswith(("mlp.", "moe."))
        seen = {self.unit.short_name(node) for node in self.judged if not node.fails}
        return inner.startswith("attn.") and bool(seen & {"attn.out", "attn.post_norm", "resid_mid", "mlp.norm"})

    def beside(self, singles: Sequence[Tried]) -> Iterator[list[Change]]:
        """The changes that bring the node closest, each with a factor of the scores that is fitted beside it.

        Any number may be wrong there, and no list of numbers has it, so that no pair does.
        """
        unit = self.unit
        numbers = numbers_in_force(self.search.resolved, unit.layer, unit.section, alone=self.foreign)
        factors = [each for each in numbers if each[0].endswith(FITTED_BESIDE) and self._reaches(each[0])]
        for tried in sorted(singles, key=lambda each: each.residual)[:MOST_BESIDE]:
            for path, value, start in factors:
                if tried.change[0].path == path:
                    continue
                fitted = fit_number(start, partial(self._error_with, path, beside=tried.change))
                rounder = self._as_good(path, fitted, tried.change) if fitted else ()
                yield [(*tried.change, Alternative(path, value_text(value), value_text(each))) for each in rounder]


def pairs(singles: Sequence[Tried], refused: Sequence[Single]) -> Iterator[Change]:
    """The changes that bring the node closest, and those that no spec allows alone, with each of another axis."""
    closest = [each.change[0] for each in sorted(singles, key=lambda tried: tried.residual)]
    for index, one in enumerate(closest[:CLOSEST]):
        yield from ((one, other) for other in closest[index + 1 :] if one.path != other.path)
    for one in list(refused)[:MOST_REFUSED]:
        yield from ((other, one) for other in closest if one.path != other.path)


def _block_path(path: str) -> str:
    """The path of `block` that a path below a pattern case, or of a single layer, stands for."""
    if path.startswith("patterns.") and not path.endswith(".by"):
        return "block." + path.split(".", 4)[4]
    return "block." + path.split(".", 1)[1] if path.startswith("layers[") else path
