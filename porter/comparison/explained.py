"""What porter explain found, as a report holds it and explain.json writes it: plain values, whatever the port was."""

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["nothing", "explained", "partly", "unexplained"]
By = Literal["preflight", "semantics", "precision", "exact"]


@dataclass(frozen=True)
class Changed:
    """One axis of the spec, one tensor, or one thing that code does.

    Attributes:
        axis: its path; of a tensor, the parameter's; of code, the node's.
        port, reference: what each side has.
        set: axis=value, as --set takes it; of tensors and code, a sentence.
        patch: the lines of the family's YAML; of a port of another make, where to look.
        line: file and line where the port's spec says it; empty where no file does.
    """

    kind: Literal["axis", "tensor", "code"]
    axis: str
    port: str
    reference: str
    set: str
    patch: str
    line: str = ""


@dataclass(frozen=True)
class Closest:
    """What does not help, but comes closest.

    Attributes:
        residual: what it leaves of the node; null: not a number.
    """

    change: tuple[Changed, ...]
    residual: float | None


@dataclass(frozen=True)
class Fault:
    """One fault: where it showed, and what takes it away.

    Attributes:
        unit: weights, embed, layers.3 or head; stage: what it was judged by.
        before: how wrong the node is: ρ, or the relative difference of exact, or how many tensors do not fit.
        after: the same, changed; null: nothing helps.
        failing: nodes of the unit that fail; explained: those that no longer do.
        tried: how many changes; axes: whose values, or tensors, they were.
        changes: that explain it equally well, the first of which was kept; empty: nothing helps.
        also: units after it in which the same was found.
        excluded: where nothing helps, what may have become of tensors, or be done in code, and was tried.
    """

    unit: str
    stage: By
    node: str
    before: float | None
    after: float | None
    failing: int
    explained: int
    tried: int
    axes: tuple[str, ...]
    changes: tuple[tuple[Changed, ...], ...]
    closest: Closest | None
    also: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explained:
    """All that was found of one port.

    Attributes:
        outcome: partly: one fault at least is left; foreign: the port is a module or a dump, whose spec is not known.
        set: the changes that mend the spec; of a foreign port, those that make the right spec compute what it did.
        tensors: what became of the port's tensors, and what its code does otherwise, in sentences.
        looked_at: the units of each dtype.
        sentence: what to remember of it.
        conclusion: what it was shown on, or what to do where nothing helps.
        notes: what the checkpoint's tensors say of themselves, and is no fault of the port.
    """

    model: str
    dtype: str
    tokens: int
    outcome: Outcome
    foreign: bool
    exit_code: int
    set: tuple[str, ...]
    tensors: tuple[str, ...]
    looked_at: tuple[str, ...]
    faults: tuple[Fault, ...]
    sentence: str = ""
    conclusion: str = ""
    notes: tuple[str, ...] = ()
