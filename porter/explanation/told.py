"""What explain found, as plain values for a report, with the sentences that say it."""

import math
from pathlib import Path
from typing import Literal

from porter.comparison.explained import Changed, Closest, Explained, Fault, Outcome
from porter.explanation.code_changes import CodeChange
from porter.explanation.search import MOST_FAULTS
from porter.explanation.steps import Change, Single, Step
from porter.models.build import Build
from porter.specs.alternatives import Alternative
from porter.specs.overrides import keys_of
from porter.specs.tree import locate, spec_folder


def tell(
    build: Build, outcome: Outcome, steps: tuple[Step, ...], *, kept: tuple[str, ...], tensors: tuple[str, ...],
    tokens: int, dtype: str, looked_at: tuple[str, ...], foreign: bool, notes: tuple[str, ...],
) -> Explained:  # fmt: skip
    """The record of a search, whose arguments are those of Explanation."""
    faults = tuple(_fault(build, step, foreign) for step in steps)
    found = Explained(
        build.name, dtype, tokens, outcome, foreign, 0 if outcome in ("nothing", "explained") else 1, kept, tensors,
        looked_at, faults, notes=notes,
    )  # fmt: skip
    return Explained(**{**vars(found), "sentence": _sentence(found), "conclusion": _conclusion(found)})


def _fault(build: Build, step: Step, foreign: bool) -> Fault:
    closest = None
    if step.closest is not None:
        closest = Closest(_changes(build, step.closest.change, foreign), _finite(step.closest.residual))
    return Fault(
        unit=step.unit, stage=step.by, node=step.before.name, before=_finite(step.before.residual),
        after=None if step.after is None else _finite(step.after.residual), failing=step.failing,
        explained=step.explained, tried=step.tried, axes=step.axes,
        changes=tuple(_changes(build, each, foreign) for each in step.equals), closest=closest,
        also=step.also, excluded=step.excluded,
    )  # fmt: skip


def _changes(build: Build, change: Change, foreign: bool) -> tuple[Changed, ...]:
    return tuple(_changed(build, each, foreign) for each in change)


def _changed(build: Build, each: Single, foreign: bool) -> Changed:
    port, reference = (each.other, each.value) if foreign else (each.value, each.other)
    axis = isinstance(each, Alternative)
    line = line_of(build, each.path) if axis and not foreign else ""
    kind: Literal["axis", "tensor", "code"] = "axis" if axis else "code" if isinstance(each, CodeChange) else "tensor"
    return Changed(kind, each.path, port, reference, each.override, each.patch, line)


def line_of(build: Build, path: str) -> str:
    """Where the port's spec says what an axis is: model_specs/gemma.yaml:12, or the --set that does; of a single layer,
    where all are told.
    """
    for override in build.resolved.overrides:
        if override.path == path:
            return str(override.place)
    keys = ["block", *path.partition("].")[2].split(".")] if path.startswith("layers[") else keys_of(path)
    where = locate(build.family.tree, tuple(keys))
    if where is None:
        return ""
    folder = spec_folder()
    inside = Path(where.file).resolve().is_relative_to(folder.resolve())
    return f"{folder.name}/{Path(where.file).name}:{where.line}" if inside else str(where)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _sentence(found: Explained) -> str:
    told = [
        f"{each.axis}{':' if each.kind == 'code' else ' is'} {each.port}, and {each.reference} in the reference"
        for fault in found.faults for each in (fault.changes[0] if fault.changes else ())
    ]  # fmt: skip
    left = [
        f"nothing that was tried explains {fault.node} ({fault.tried} changes of {len(fault.axes)} places)"
        for fault in found.faults if not fault.changes
    ]  # fmt: skip
    return "; ".join((*told, *left)) or "there is nothing to explain"


def _conclusion(found: Explained) -> str:
    count = sum(bool(fault.changes) for fault in found.faults)
    where = f"on {found.tokens} tokens, in float32 at each kind of layer and bit for bit in {found.dtype} at every one"
    faults = f"{count} {'fault' if count == 1 else 'faults'}"
    if found.foreign:
        return _of_foreign(found, faults)
    return {
        "nothing": f"Nothing to explain: the spec, in plain torch, computes what the reference does, {where}. "
        "What porter diff fails all the same lies in fused ops or another way of feeding.",
        "explained": f"Explained: {faults}; with the change the spec computes what the reference does, {where}.",
        "partly": f"Partly explained: {faults}, and one more that no change of the spec takes away.",
        "unexplained": "Not explained: the fault is no axis of the spec, has a value that was not tried, or is made of "
        "several that help only together; look at the weights the node reads, and at the op itself.",
    }[found.outcome]


def _of_foreign(found: Explained, faults: str) -> str:
    dtypes = " and ".join(dict.fromkeys(each.partition(" ")[0] for each in found.looked_at)) or found.dtype
    where = f"on {found.tokens} tokens in {dtypes}, at every layer it shows"
    return {
        "nothing": f"Nothing to explain: the port computes what the reference does, {where}.",
        "explained": f"Explained: {faults}; so changed, the reference's own spec computes what the port did, {where}.",
        "partly": f"Partly explained: {faults}, and one more that no change of the spec or of a tensor gives.",
        "unexplained": "Not explained: no change of the spec, and no other reading of a layer's tensors, gives what "
        "the port computed; look at the op itself.",
    }[found.outcome]


def why_untried() -> str:
    """Of a fault for which nothing was tried."""
    return f"{MOST_FAULTS} faults were found before it, or no axis acts there."
