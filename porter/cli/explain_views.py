"""What porter explain prints: a card for each fault, or what was tried; and the same as JSON."""

import json
import math
import shlex
from typing import Any

import click

from porter.explanation.explain import Explanation
from porter.explanation.search import MOST_FAULTS
from porter.explanation.steps import Change, Single, Step, Tried
from porter.explanation.weight_changes import WeightChange

SCHEMA = "porter.explain/1"
_MOST = 8  # changes that explain a fault equally well and are shown; the JSON has all


def print_explanation(found: Explanation) -> None:
    """The cards, the patch, and the flags that make it."""
    for step in found.steps:
        click.echo(_card(step, found) if step.equals else _unexplained(step))
    if found.kept and not found.foreign:
        click.echo(f"The mended port: {shlex.join(part for each in found.kept for part in ('--set', each))}")
    click.echo(_conclusion(found))


def to_text(found: Explanation) -> str:
    """The explanation as JSON."""
    document = {
        "schema": SCHEMA, "model": found.name, "dtype": found.dtype, "tokens": found.tokens,
        "outcome": found.outcome, "foreign": found.foreign,
        "exit": found.exit_code, "set": found.kept, "tensors": found.tensors, "looked_at": found.looked_at,
        "faults": [_fault_to_json(step, found.foreign) for step in found.steps],
    }  # fmt: skip
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _card(step: Step, found: Explanation) -> str:
    change, dtype = step.equals[0], "float32" if step.by == "semantics" else found.dtype
    rows = []
    for each in change:
        sides = (each.other, each.value) if found.foreign else (each.value, each.other)
        rows += [(_kind(each), each.path), ("the port has", sides[0]), ("the reference", sides[1])]
    assert step.after is not None
    if step.by == "preflight":
        rows.append(("the tensors", f"{step.failing} do not fit → all fit"))
    elif found.foreign or step.by == "semantics":
        rows.append(("at the node", f"ρ {step.before.residual:.3g} → {step.after.residual:.3g}"))
    else:
        rows.append(("at the node", f"differs in bits, by {step.before.residual:.1e} → bit-equal"))
    if step.by != "preflight":
        rows.append(("explains", f"{step.explained} of {step.failing} nodes of {step.unit} that differ"))
    lines = [
        f"{step.before.name} ({step.by if step.by == 'preflight' else f'{step.by}, {dtype}'})",
        *(f"  {name:<15}{value}" for name, value in rows),
    ]
    for each in change if not found.foreign else ():
        lines += ["  patch", *(f"    {line}" for line in each.patch.splitlines())]
    if found.foreign:
        lines.append(f"  so             {' and '.join(map(_said, change))}")
    return "\n".join(lines + _equals(step))


def _kind(change: Single) -> str:
    return "tensor" if isinstance(change, WeightChange) else "axis"


def _said(change: Single) -> str:
    """What the code of a foreign port does, in a sentence."""
    if isinstance(change, WeightChange):
        return f"it computes with {change.path} {change.other}, where the reference has it {change.value}"
    return f"its code computes as with {change.path} {change.other}; the reference's is {change.value}"


def _equals(step: Step) -> list[str]:
    """Other changes that explain the fault as well; this prompt and these weights cannot tell them apart."""
    others = step.equals[1:]
    if not others:
        return []
    more = f", and {len(others) - _MOST} more" if len(others) > _MOST else ""
    told = ", ".join(_told(each) for each in others[:_MOST])
    return [f"  as well        {told}{more}", "                 this prompt and these weights cannot tell them apart"]


def _unexplained(step: Step) -> str:
    fails = "makes all tensors fit" if step.by == "preflight" else "brings it to the floor"
    head = f"{step.before.name} ({step.by}): no change of the spec {fails}"
    if not step.tried:
        return f"{head}; {MOST_FAULTS} faults were found before it, or no axis acts there."
    lines = [head, f"  tried          {step.tried} values of {len(step.axes)} axes: {', '.join(step.axes)}"]
    if step.closest is not None:
        lines.append(f"  the closest    {_told(step.closest.change)}: {_size(step)} → {_left(step, step.closest)}")
    return "\n".join(lines)


def _size(step: Step) -> str:
    if step.by == "preflight":
        return f"{step.failing} do not fit"
    return f"ρ {step.before.residual:.3g}" if step.by != "exact" else f"off by {step.before.residual:.1e}"


def _left(step: Step, tried: Tried) -> str:
    return f"{tried.residual:.3g}" if step.by != "exact" else f"{tried.residual:.1e}"


def _told(change: Change) -> str:
    return " with ".join(each.override for each in change)


def _conclusion(found: Explanation) -> str:
    count = sum(bool(step.equals) for step in found.steps)
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
        "more than two; look at the weights the node reads, and at the op itself.",
    }[found.outcome]


def _of_foreign(found: Explanation, faults: str) -> str:
    where = f"on {found.tokens} tokens in {found.dtype}, at every layer it shows"
    return {
        "nothing": f"Nothing to explain: the port computes what the reference does, {where}.",
        "explained": f"Explained: {faults}; so changed, the reference's own spec computes what the port did, {where}.",
        "partly": f"Partly explained: {faults}, and one more that no change of the spec or of a tensor gives.",
        "unexplained": "Not explained: no change of the spec, and no other reading of a layer's tensors, gives what "
        "the port computed; look at the op itself.",
    }[found.outcome]


def _fault_to_json(step: Step, foreign: bool) -> dict[str, Any]:
    return {
        "unit": step.unit, "stage": step.by, "node": step.before.name, "before": _number(step.before.residual),
        "after": None if step.after is None else _number(step.after.residual), "failing": step.failing,
        "explained": step.explained, "tried": step.tried, "axes": step.axes,
        "changes": [_change_to_json(each, foreign) for each in step.equals],
        "closest": None if step.closest is None else {
            "change": _change_to_json(step.closest.change, foreign), "residual": _number(step.closest.residual)
        },
    }  # fmt: skip


def _change_to_json(change: Change, foreign: bool) -> list[dict[str, str]]:
    return [
        {"kind": _kind(each), "axis": each.path, "port": each.other if foreign else each.value,
         "reference": each.value if foreign else each.other, "set": each.override, "patch": each.patch}
        for each in change
    ]  # fmt: skip


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
