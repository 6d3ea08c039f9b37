"""The card of what porter explain found: the axis, where the spec says it, its right value, and the patch."""

import shlex
from collections.abc import Iterator

from porter.comparison.explained import Changed, Explained, Fault
from porter.comparison.report import DiffReport
from porter.reports.markup import Html, definitions, join, tag
from porter.reports.sections import link_to, name_of, nothing

_MOST = 12  # changes that explain a fault as well, and places where nothing helped, that are named outright


def explain_panel(report: DiffReport) -> Html:
    """A card for each fault; of a report that was not explained, which command does it."""
    if not report.explanations:
        command = report.sentence.partition("; next: ")[2]
        if command.startswith("porter explain"):
            return tag("p", tag("code", command), " names the axis, its right value and the patch.", class_="nothing")
        passed = report.verdict in ("PASS", "WARN")
        return nothing("Nothing differs that needs an explanation." if passed else "Nothing was explained.")
    found = report.explanations[-1]
    cards = (_card(report, found, fault) for fault in found.faults)
    notes = (tag("p", f"Note, of the checkpoint: {note}.", class_="caption") for note in found.notes)
    return join([*cards, tag("p", found.conclusion, class_="caption"), *_mended(found), *notes])


def _mended(found: Explained) -> Iterator[Html]:
    if found.set and not found.foreign:
        flags = shlex.join(part for each in found.set for part in ("--set", each))
        yield tag("p", "The mended port: ", tag("code", flags), class_="next")


def _card(report: DiffReport, found: Explained, fault: Fault) -> Html:
    dtype = "float32" if fault.stage == "semantics" else found.dtype
    known = any((node.name, node.stage) == (fault.node, fault.stage) for node in report.nodes)
    where = link_to(fault.stage, dtype, fault.node) if known else name_of(fault.node)
    stage = fault.stage if fault.stage == "preflight" else f"{fault.stage} {dtype}"
    head = tag("p", where, " ", stage, class_="eyebrow")
    body = _explained(found, fault) if fault.changes else _unexplained(fault)
    return tag("article", head, *body, class_="card pass" if fault.changes else "card fail")


def _explained(found: Explained, fault: Fault) -> Iterator[Html]:
    change = fault.changes[0]
    for each in change:
        yield tag("h3", tag("code", each.axis), class_="axis")
        wrong, right = tag("code", each.port, class_="wrong"), tag("code", each.reference, class_="right")
        in_port, in_reference = (tag("span", f" in the {side}", class_="quiet") for side in ("port, ", "reference"))
        yield tag("p", wrong, in_port, right, in_reference, class_="turn")
    rows: list[tuple[str, str | Html]] = [("said in", tag("code", each.line)) for each in change if each.line]
    rows.append(("at the node", _residual(fault)))
    if fault.stage != "preflight":
        rows.append(("explains", f"{fault.explained} of {fault.failing} nodes of {fault.unit} that differ"))
    if fault.also:
        rows.append(("and so in", ", ".join(fault.also)))
    if len(fault.changes) > 1:
        rows.append(("as well", _others(fault)))
    yield definitions(rows)
    if found.foreign:
        yield tag("p", *map(_said, change))
        return
    yield tag("h3", "Patch")
    yield tag("pre", tag("code", "\n".join(each.patch for each in change)), class_="command", tabindex="0")


def _said(change: Changed) -> str:
    if change.kind == "code":
        return f"Its code has, for {change.axis}: {change.port}; the reference has: {change.reference}. "
    if change.kind == "tensor":
        return f"It computes with {change.axis} {change.port}, where the reference has it {change.reference}. "
    return f"Its code computes as with {change.axis} {change.port}; the reference’s is {change.reference}. "


def _residual(fault: Fault) -> str:
    before, after = _number(fault.before), _number(fault.after)
    if fault.stage == "preflight":
        return f"{fault.failing} tensors do not fit → all do"
    if fault.stage == "exact" and fault.after == 0:
        return f"off by {before} → bit-equal"
    return f"ρ {before} → {after}"


def _others(fault: Fault) -> Html:
    others = [tag("code", _set(each)) for each in fault.changes[1:]]
    more = f" and {len(others) - _MOST} more" if len(others) > _MOST else ""
    return join([*others[:_MOST], f"{more}: this prompt and these weights cannot tell them apart"])


def _unexplained(fault: Fault) -> Iterator[Html]:
    what = "makes all tensors fit" if fault.stage == "preflight" else "brings it to the floor"
    yield tag("h3", f"No change of the spec {what}", class_="axis")
    rows: list[tuple[str, str | Html]] = [("at the node", _size(fault))]
    if fault.closest is not None:
        left = f" leaves {_number(fault.closest.residual)}"
        rows.append(("the closest", join([tag("code", _set(fault.closest.change)), left])))
    if fault.excluded:
        rows.append(("excluded", "; ".join(fault.excluded)))
    yield definitions(rows)
    said = f"excluded: {fault.tried} changes of {len(fault.axes)} places"
    places = tag("p", *(tag("code", f"{axis} ") for axis in fault.axes), class_="places")
    yield tag("details", tag("summary", said), places) if fault.tried else nothing("Nothing was tried.")


def _size(fault: Fault) -> str:
    if fault.stage == "preflight":
        return f"{fault.failing} tensors do not fit"
    return f"{'off by' if fault.stage == 'exact' else 'ρ'} {_number(fault.before)}"


def _set(change: tuple[Changed, ...]) -> str:
    return " with ".join(each.set for each in change)


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"
