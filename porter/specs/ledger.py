"""The weight ledger: which checkpoint tensor fills which parameter, each used exactly once.

A rule names a source module; a parameter `layers.3.attn.q.weight` under the rule `attn.q: self_attn.q_proj` and the
prefix `model.layers.{i}` is read from `model.layers.3.self_attn.q_proj.weight`. Prefixes in `strip` may be there or
not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from porter.errors import SpecError, WeightError, closest
from porter.specs.blueprint import Blueprint, Parameter
from porter.specs.schema import WeightRule

_SHOWN = 5


@dataclass(frozen=True)
class Entry:
    """A parameter and the checkpoint tensor that fills it.

    Attributes:
        shape: of the checkpoint's tensor; the parameter's, turned round where the rule transposes.
    """

    parameter: Parameter
    source: str
    transpose: bool

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.parameter.shape
        return shape[::-1] if self.transpose and len(shape) == 2 else shape


@dataclass(frozen=True)
class Ledger:
    """All entries by parameter name, what was ignored, and copies that must equal another tensor."""

    entries: Mapping[str, Entry]
    ignored: tuple[str, ...]
    twins: tuple[tuple[str, str], ...]  # (tensor, the tensor it must equal): a stored head that is tied


def rule_for(blueprint: Blueprint, module: str) -> tuple[WeightRule, str]:
    """The rule of a module (layers.3.attn.q, final_norm) and the prefix its sources stand under.

    Raises:
        SpecError: the weight table has none.
    """
    table, weights = blueprint.weights.globals, blueprint.weights
    prefix, key = "", module
    if module.startswith("layers."):
        _, layer, key = module.split(".", 2)
        table, prefix = weights.block, weights.layer.replace("{i}", layer) + "."
    if key not in table:
        section = "block" if prefix else "globals"
        raise SpecError(
            f"weights.{section} has no rule for {key!r}",
            f"a rule that says where its tensors lie; it has {', '.join(table)}",
            f"Add `weights: {{{section}: {{{key}: <module path in the checkpoint>}}}}`.",
        )
    return table[key], prefix


def sources(blueprint: Blueprint, parameter: Parameter) -> list[str]:
    """The checkpoint names a parameter may have, the preferred one first."""
    rule, prefix = rule_for(blueprint, parameter.module)
    suffix = parameter.name.rpartition(".")[2]
    return [f"{prefix}{source}.{suffix}" for source in rule.src]


def layout(blueprint: Blueprint) -> dict[str, Entry]:
    """Every parameter under its preferred checkpoint name: how porter writes a checkpoint."""
    entries = {}
    for parameter in blueprint.parameters().values():
        rule, _ = rule_for(blueprint, parameter.module)
        entries[parameter.name] = Entry(parameter, sources(blueprint, parameter)[0], rule.transpose)
    return entries


def make_ledger(blueprint: Blueprint, available: Mapping[str, tuple[int, ...]]) -> Ledger:
    """The entries for a checkpoint with these tensors and shapes.

    Raises:
        WeightError: a tensor is missing, left over, found twice, or has another shape.
    """
    found = _match(blueprint, available)
    _check(found.missing, found.left_over, available)
    for entry in found.ledger.entries.values():
        _check_shape(entry, available[entry.source])
    return found.ledger


def misfits(blueprint: Blueprint, available: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """What keeps a checkpoint from filling the parameters: those without a tensor, then tensors that none takes or that
    have another shape. Empty: it fits.

    Raises:
        WeightError: a tensor lies there twice, with and without a prefix.
    """
    found = _match(blueprint, available)
    shapes = [entry.source for entry in found.ledger.entries.values() if available[entry.source] != entry.shape]
    return (*found.missing, *found.left_over, *shapes)


@dataclass(frozen=True)
class _Match:
    """A ledger, and what is wrong with it."""

    ledger: Ledger
    missing: list[str]
    left_over: list[str]


def _match(blueprint: Blueprint, available: Mapping[str, tuple[int, ...]]) -> _Match:
    present = _by_bare_name(blueprint, available)
    entries: dict[str, Entry] = {}
    missing: list[str] = []
    for parameter in blueprint.parameters().values():
        rule, _ = rule_for(blueprint, parameter.module)
        names = sources(blueprint, parameter)
        found = [present[bare] for name in names if (bare := without_prefix(blueprint, name)) in present]
        if found:
            entries[parameter.name] = Entry(parameter, found[0], rule.transpose)
        else:
            missing.append(f"{parameter.name} (as {' or '.join(names)})")
    twins = _twins(blueprint, present, entries)
    used = {entry.source for entry in entries.values()} | {twin for twin, _ in twins}
    ignored = tuple(n for n in available if n not in used and _is_ignored(blueprint, n))
    left_over = [name for name in available if name not in used and name not in ignored]
    return _Match(Ledger(entries, ignored, twins), missing, left_over)


def _twins(
    blueprint: Blueprint, present: Mapping[str, str], entries: Mapping[str, Entry]
) -> tuple[tuple[str, str], ...]:
    rule = blueprint.weights.globals.get("head")
    if not blueprint.head.tied or rule is None or "embed.weight" not in entries:
        return ()
    names = (without_prefix(blueprint, f"{source}.weight") for source in rule.src)
    return tuple((present[name], entries["embed.weight"].source) for name in names if name in present)


def without_prefix(blueprint: Blueprint, name: str) -> str:
    """A checkpoint name or module path without the prefixes that `weights.strip` makes optional."""
    for prefix in sorted(blueprint.weights.strip, key=len, reverse=True):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _by_bare_name(blueprint: Blueprint, available: Iterable[str]) -> dict[str, str]:
    present: dict[str, str] = {}
    for name in available:
        bare = without_prefix(blueprint, name)
        if bare in present:
            raise WeightError(
                f"the checkpoint holds both {present[bare]} and {name}",
                f"one tensor called {bare}, with or without a prefix of {list(blueprint.weights.strip)}",
                "Remove one, or narrow `weights.strip`.",
            )
        present[bare] = name
    return present


def _is_ignored(blueprint: Blueprint, name: str) -> bool:
    return any(fnmatchcase(name, glob) for glob in blueprint.weights.ignore)


def _check(missing: list[str], left_over: list[str], available: Iterable[str]) -> None:
    if missing:
        raise WeightError(
            f"{_count(missing, 'parameter')} without a tensor: {_some(missing)}",
            "every parameter is filled from the checkpoint exactly once",
            f"{closest(missing[0].split('(as ')[1].split(' or ')[0].rstrip(')'), available)} Correct `weights` in the spec, or complete the checkpoint.",  # noqa: E501
        )
    if left_over:
        raise WeightError(
            f"{_count(left_over, 'tensor')} that no parameter takes: {_some(left_over)}",
            "every tensor of the checkpoint is used exactly once",
            "Add the axis that needs it to the spec, or its glob to `weights.ignore` if it is no parameter.",
        )


def _check_shape(entry: Entry, shape: tuple[int, ...]) -> None:
    if shape != entry.shape:
        raise WeightError(
            f"{entry.source} has shape {list(shape)}",
            f"{list(entry.shape)}, from the dims of the config ({entry.parameter.name})",
            "Check config.json against the checkpoint, or `transpose` of its rule.",
        )


def _count(items: list[str], noun: str) -> str:
    return f"{len(items)} {noun}{'s' if len(items) > 1 else ''}"


def _some(items: list[str]) -> str:
    rest = len(items) - _SHOWN
    return ", ".join(items[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
