"""What a report says of the run itself: which axes it could have shown, and which known faults it caught."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Axis:
    """Whether this run could have shown a change of one axis, found by changing it.

    Attributes:
        value, tried: the spec's value and the one tried instead.
        seen: where it showed: "semantics", "exact", or None when it could not be seen.
        node: the first node that showed it.
        reason: why it could not be seen.
    """

    path: str
    value: str
    tried: str
    seen: Literal["semantics", "exact"] | None
    node: str | None
    reason: str


@dataclass(frozen=True)
class Injected:
    """A known fault that the self-check put into the port, and what this run's thresholds made of it.

    Attributes:
        path: the axis, or the tensor, that is wrong.
        value, tried: what the port has, and what it was given instead; of a tensor, the latter alone.
        outcome: caught; missed: it should have been seen and was not; unobservable: no run like this could see it.
        stage: what caught it: semantics or precision by a FAIL, exact by other bits; None: nothing.
        node: the first node that showed it.
        rho: of that node; None for bits.
        expected: the first node that it moves in the port itself; None: none that could be seen.
        reason: why it was not caught.
    """

    path: str
    value: str
    tried: str
    outcome: Literal["caught", "missed", "unobservable"]
    stage: Literal["semantics", "precision", "exact"] | None
    node: str | None
    rho: float | None
    expected: str | None
    reason: str


@dataclass(frozen=True)
class Share:
    """How much of the difference at the logits is made in one place; those of one kind sum to 1.

    Attributes:
        unit: embed, layers.3 or head; of kind node, a node.
        share: below 0 where it takes away what others made.
        dtype: that both sides ran in.
    """

    unit: str
    kind: Literal["layer", "node"]
    share: float
    dtype: str


@dataclass(frozen=True)
class Proposal:
    """A layout under which a node of a user's module is the reference's, as a line of the map file.

    Attributes:
        node: where it was found first.
        line: what the map would say.
    """

    node: str
    line: str
