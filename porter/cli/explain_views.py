"""What porter explain prints: a card for each fault, or what was tried."""

import shlex
from pathlib import Path

import click

from porter.comparison.explained import Changed, Explained, Fault
from porter.explanation.told import why_untried

_MOST = 8  # changes that explain a fault equally well and are shown; the JSON has all


def print_explanation(found: Explained, page: Path | None) -> None:
    """The cards, the patch, the flags that make it, and where the page is."""
    for fault in found.faults:
        click.echo(_card(fault, found) if fault.changes else _unexplained(fault))
    if found.set and not found.foreign:
        click.echo(f"The mended port: {shlex.join(part for each in found.set for part in ('--set', each))}")
    click.echo(found.conclusion)
    for note in found.notes:
        click.echo(f"Note, of the checkpoint: {note}.")
    if page is not None:
        click.echo(f"report: {page}")


def _card(fault: Fault, found: Explained) -> str:
    change, dtype = fault.changes[0], "float32" if fault.stage == "semantics" else found.dtype
    rows = []
    for each in change:
        rows += [(each.kind, each.axis), ("the port has", each.port), ("the reference", each.reference)]
        rows += [("said in", each.line)] if each.line else []
    if fault.stage == "preflight":
        rows.append(("the tensors", f"{fault.failing} do not fit → all fit"))
    elif found.foreign or fault.stage == "semantics":
        rows.append(("at the node", f"ρ {_number(fault.before)} → {_number(fault.after)}"))
    else:
        rows.append(("at the node", f"differs in bits, by {_number(fault.before, '.1e')} → bit-equal"))
    if fault.stage != "preflight":
        rows.append(("explains", f"{fault.explained} of {fault.failing} nodes of {fault.unit} that differ"))
    if fault.also:
        rows.append(("and so in", ", ".join(fault.also)))
    lines = [
        f"{fault.node} ({fault.stage if fault.stage == 'preflight' else f'{fault.stage}, {dtype}'})",
        *(f"  {name:<15}{value}" for name, value in rows),
    ]
    for each in change if not found.foreign else ():
        lines += ["  patch", *(f"    {line}" for line in each.patch.splitlines())]
    if found.foreign:
        lines.append(f"  so             {' and '.join(map(_said, change))}")
    return "\n".join(lines + _equals(fault))


def _said(change: Changed) -> str:
    """What the code of a foreign port does, in a sentence."""
    if change.kind == "code":
        return f"its code has, for {change.axis}: {change.port}; the reference has: {change.reference}"
    if change.kind == "tensor":
        return f"it computes with {change.axis} {change.port}, where the reference has it {change.reference}"
    return f"its code computes as with {change.axis} {change.port}; the reference's is {change.reference}"


def _equals(fault: Fault) -> list[str]:
    """Other changes that explain the fault as well; this prompt and these weights cannot tell them apart."""
    others = fault.changes[1:]
    if not others:
        return []
    more = f", and {len(others) - _MOST} more" if len(others) > _MOST else ""
    told = ", ".join(_told(each) for each in others[:_MOST])
    return [f"  as well        {told}{more}", "                 this prompt and these weights cannot tell them apart"]


def _unexplained(fault: Fault) -> str:
    fails = "makes all tensors fit" if fault.stage == "preflight" else "brings it to the floor"
    head = f"{fault.node} ({fault.stage}): no change of the spec {fails}"
    if not fault.tried:
        return f"{head}; {why_untried()}"
    tried = f"{fault.tried} changes; values of {len(fault.axes)} axes: {', '.join(fault.axes)}"
    lines = [head, f"  tried          {tried}"]
    if fault.excluded:
        lines.append(f"  excluded       {'; '.join(fault.excluded)}")
    if fault.closest is not None:
        left = _number(fault.closest.residual, ".1e" if fault.stage == "exact" else ".3g")
        lines.append(f"  the closest    {_told(fault.closest.change)}: {_size(fault)} → {left}")
    return "\n".join(lines)


def _size(fault: Fault) -> str:
    if fault.stage == "preflight":
        return f"{fault.failing} do not fit"
    exact = fault.stage == "exact"
    return f"off by {_number(fault.before, '.1e')}" if exact else f"ρ {_number(fault.before)}"


def _told(change: tuple[Changed, ...]) -> str:
    return " with ".join(each.set for each in change)


def _number(value: float | None, form: str = ".3g") -> str:
    return "not finite" if value is None else f"{value:{form}}"
