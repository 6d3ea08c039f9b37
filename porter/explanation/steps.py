"""What explain finds, in steps: a fault each, with the changes that take it away."""

from dataclasses import dataclass

from porter.explanation.code_changes import CodeChange
from porter.explanation.trial import By, Judged
from porter.explanation.weight_changes import WeightChange
from porter.specs.alternatives import Alternative

Single = Alternative | WeightChange | CodeChange
Change = tuple[Single, ...]  # one axis, two at once, or what became of a tensor or is done in code


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
        excluded: what may have become of tensors, and be done in code, and was tried to no avail.
        also: units after this one in which the same change takes the fault away.
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
    excluded: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def explained(self) -> int:
        """Nodes that the change brings to the floor."""
        return self.failing - self.left


def overrides_of(change: Change) -> list[str]:
    """What of a change --set can say."""
    return [each.override for each in change if isinstance(each, Alternative)]


def others_of(change: Change) -> tuple[WeightChange | CodeChange, ...]:
    """What of a change --set cannot say."""
    return tuple(each for each in change if not isinstance(each, Alternative))


def moved(change: Change, one: int, other: int) -> Change | None:
    """A change of tensors or code in another layer; None where it is of axes, too, or of this layer alone."""
    found = [None if isinstance(each, Alternative) else each.moved(one, other) for each in change]
    return None if None in found else tuple(each for each in found if each is not None)
