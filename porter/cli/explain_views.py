"""What porter explain prints: a card for each fault, or what was tried; and the same as JSON."""

import json
import math
import shlex
from typing import Any

import click

from porter.explanation.explain import Explanation
from porter.explanation.search import MOST_FAULTS, Change, Step, Tried

SCHEMA = "porter.explain/1"
_MOST = 8  # changes that explain a fault equally well and are shown; the JSON has all


def print_explanation(found: Explanation) -> None:
    """The cards, the patch, and the flags that make it."""
    for step in found.steps:
        click.echo(_card(step, found) if step.equals else _unexplained(step))
    if found.kept and not found.module:
        click.echo(f"The mended port: {shlex.join(part for each in found.kept for part in ('--set', each))}")
    click.echo(_conclusion(found))


def to_text(found: Explanation) -> str:
    """The explanation as JSON."""
    document = {
        "schema": SCHEMA, "model": found.name, "module": found.module,
        "dtype": found.dtype, "tokens": found.tokens, "outcome": found.outcome,
        "exit": found.exit_code, "set": found.kept, "looked_at": found.looked_at,
        "faults": [_fault_to_json(step) for step in found.steps],
    }  # fmt: skip
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _card(step: Step, found: Explanation) -> str:
    change, dtype = step.equals[0], "float32" if step.by == "semantics" else found.dtype
    sides = ("the reference", "your module") if found.module else ("the port has", "the reference")
    rows = []
    for each in change:
        rows += [("axis", each.path), (sides[0], each.value), (sides[1], each.other)]
    assert step.after is not None
    if step.by == "preflight":
        rows.append(("the tensors", f"{step.failing} do not fit → all fit"))
    elif step.by == "semantics":
        rows.append(("at the node", f"ρ {step.before.residual:.3g} → {step.after.residual:.3g}"))
    else:
        rows.append(("at the node", f"differs in bits, by {step.before.residual:.1e} → bit-equal"))
    if step.by != "preflight":
        rows.append(("explains", f"{step.explained} of {step.failing} nodes of {step.unit} that differ"))
    lines = [
        f"{step.before.name} ({step.by if step.by == 'preflight' else f'{step.by}, {dtype}'})",
        *(f"  {name:<15}{value}" for name, value in rows),
    ]
    for each in () if found.module else change:
        lines += ["  patch", *(f"    {line}" for line in each.patch.splitlines())]
    return "\n".join(lines + _equals(step))


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
    return f"ρ {step.before.residual:.3g}" if step.by == "semantics" else f"off by {step.before.residual:.1e}"


def _left(step: Step, tried: Tried) -> str:
    return f"{tried.residual:.3g}" if step.by != "exact" else f"{tried.residual:.1e}"


def _told(change: Change) -> str:
    return " with ".join(each.override for each in change)


def _conclusion(found: Explanation) -> str:
    count = sum(bool(step.equals) for step in found.steps)
    where = f"on {found.tokens} tokens, in float32 at each kind of layer and bit for bit in {found.dtype} at every one"
    faults = f"{count} {'fault' if count == 1 else 'faults'}"
    if found.module:
        where = f"on {found.tokens} tokens, in float32 at each kind of layer"
        return {
            "nothing": f"Nothing to explain: {found.module} computes what the spec does, {where}.",
            "explained": f"Explained: {faults}; with the change the spec computes what {found.module} does, {where}.",
            "partly": f"Partly explained: {faults}, and one more that no change of the spec gives.",
            "unexplained": f"Not explained: no change of the spec that was tried computes what {found.module} does.",
        }[found.outcome]
    return {
        "nothing": f"Nothing to explain: the spec, in plain torch, computes what the reference does, {where}. "
        "What porter diff fails all the same lies in fused ops or another way of feeding.",
        "explained": f"Explained: {faults}; with the change the spec computes what the reference does, {where}.",
        "partly": f"Partly explained: {faults}, and one more that no change of the spec takes away.",
        "unexplained": "Not explained: the fault is no axis of the spec, has a value that was not tried, or is made of "
        "more than two; look at the weights the node reads, and at the op itself.",
    }[found.outcome]


def _fault_to_json(step: Step) -> dict[str, Any]:
    return {
        "unit": step.unit, "stage": step.by, "node": step.before.name, "before": _number(step.before.residual),
        "after": None if step.after is None else _number(step.after.residual), "failing": step.failing,
        "explained": step.explained, "tried": step.tried, "axes": step.axes,
        "changes": [_change_to_json(each) for each in step.equals],
        "closest": None if step.closest is None else {
            "change": _change_to_json(step.closest.change), "residual": _number(step.closest.residual)
        },
    }  # fmt: skip


def _change_to_json(change: Change) -> list[dict[str, str]]:
    return [
        {"axis": each.path, "port": each.value, "reference": each.other, "set": each.override, "patch": each.patch}
        for each in change
    ]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
