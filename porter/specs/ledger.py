"""The weight ledger: which checkpoint tensor fills which parameter, each used exactly once.

A rule names a source module; a parameter `layers.3.attn.q.weight` under the rule `attn.q: self_attn.q_proj` and the
prefix `model.layers.{i}` is read from `model.layers.3.self_attn.q_proj.weight`. Prefixes in `strip` may be there or
not. A parameter of many experts may be made of a tensor for each, stacked; they are used once, too.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from porter.errors import SpecError, WeightError, closest
from porter.specs.blueprint import Blueprint, Parameter
from porter.specs.rules import WeightRule

_SHOWN = 5


@dataclass(frozen=True)
class Entry:
    """A parameter and the checkpoint tensors that fill it: one, or several of one shape that are stacked in order.

    Attributes:
        flat: the checkpoint has the first two axes as one.
        row: it has the vector as the one row of a matrix.
    """

    parameter: Parameter
    sources: tuple[str, ...]
    transpose: bool
    flat: bool = False
    row: bool = False

    @property
    def source(self) -> str:
        """The tensor; of several, the first."""
        return self.sources[0]

    @property
    def stored(self) -> tuple[int, ...]:
        """The parameter's shape as the model holds it: turned round where the rule transposes."""
        if not self.transpose or self.parameter.kind != "linear":
            return self.parameter.shape
        *outer, out, into = self.parameter.shape
        return (*outer, into, out)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of each of the checkpoint's tensors."""
        if not self.stored:
            return ()
        first, *rest = self.stored
        if len(self.sources) > 1:
            return tuple(rest) if len(self.sources) == first else (rest[0] * first // len(self.sources), *rest[1:])
        if self.row:
            return (1, *self.stored)
        return (first * rest[0], *rest[1:]) if self.flat else self.stored


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


def sources(blueprint: Blueprint, parameter: Parameter) -> list[tuple[str, ...]]:
    """The checkpoint names a parameter may have, the preferred first; each of one tensor, or of those to be stacked."""
    rule, prefix = rule_for(blueprint, parameter.module)
    suffix = parameter.name.rpartition(".")[2]
    if suffix == "bias" and rule.bias is not None:
        return [(prefix + _tensor(rule.bias, "weight" if rule.bias.endswith("!") else suffix),)]
    return [
        tuple(place(prefix, _tensor(each, suffix), parameter.name) for each in _expand(rule, source, parameter))
        for source in rule.src
    ]


def place(prefix: str, source: str, name: str) -> str:
    """A rule's source as a path of the checkpoint: below the layer's prefix, unless it starts with /.

    Args:
        name: of the parameter or module, layers.3.attn.q, whose layer stands for {i}.
    """
    return source[1:].replace("{i}", name.split(".")[1]) if source.startswith("/") else prefix + source


def _expand(rule: WeightRule, source: str, parameter: Parameter) -> Iterator[str]:
    """A source for each expert or head, and for each part of a fused projection that is stored in parts."""
    stacked = "{e}" in source or "{h}" in source
    for index in range(parameter.shape[0]) if stacked else (0,):
        one = source.replace("{e}", str(index)).replace("{h}", str(index))
        yield from (one.replace("{part}", part) for part in rule.parts.values()) if "{part}" in one else (one,)


def _tensor(source: str, suffix: str) -> str:
    if source.endswith("!"):
        return source[:-1] if suffix == "weight" else f"{source[:-1]}_{suffix}"
    return f"{source}.{suffix}"


def layout(blueprint: Blueprint) -> dict[str, Entry]:
    """Every parameter under its preferred checkpoint name: how porter writes a checkpoint."""
    entries = {}
    for parameter in blueprint.parameters().values():
        rule, _ = rule_for(blueprint, parameter.module)
        entries[parameter.name] = Entry(
            parameter, sources(blueprint, parameter)[0], rule.transpose, rule.flat, rule.row
        )
    return entries


def _entry(parameter: Parameter, names: tuple[str, ...], rule: WeightRule) -> Entry:
    return Entry(parameter, names, rule.transpose, rule.flat, rule.row)


def make_ledger(blueprint: Blueprint, available: Mapping[str, tuple[int, ...]]) -> Ledger:
    """The entries for a checkpoint with these tensors and shapes.

    Raises:
        WeightError: a tensor is missing, left over, found twice, or has another shape.
    """
    found = _match(blueprint, available)
    _check(found.missing, found.left_over, available)
    for entry in found.ledger.entries.values():
        for source in entry.sources:
            _check_shape(entry, source, available[source])
    return found.ledger


def misfits(blueprint: Blueprint, available: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """What keeps a checkpoint from filling the parameters: those without a tensor, then tensors that none takes or that
    have another shape. Empty: it fits.

    Raises:
        WeightError: a tensor lies there twice, with and without a prefix.
    """
    found = _match(blueprint, available)
    entries = found.ledger.entries.values()
    shapes = [name for entry in entries for name in entry.sources if available[name] != entry.shape]
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
        found = [[present.get(without_prefix(blueprint, each)) for each in name] for name in names]
        best = max(found, key=lambda each: sum(name is not None for name in each) / len(each))
        complete = tuple(name for name in best if name is not None)
        if len(complete) == len(best):
            entries[parameter.name] = _entry(parameter, complete, rule)
        elif complete:
            lacking = names[found.index(best)][best.index(None)]
            missing.append(f"{parameter.name} (as {lacking})")
        else:
            missing.append(f"{parameter.name} (as {' or '.join(name[0] for name in names)})")
    twins = _twins(blueprint, present, entries)
    used = {name for entry in entries.values() for name in entry.sources} | {twin for twin, _ in twins}
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


def _check_shape(entry: Entry, source: str, shape: tuple[int, ...]) -> None:
    if shape != entry.shape:
        raise WeightError(
            f"{source} has shape {list(shape)}",
            f"{list(entry.shape)}, from the dims of the config ({entry.parameter.name})",
            "Check config.json against the checkpoint, or `transpose` of its rule.",
        )


def _count(items: list[str], noun: str) -> str:
    return f"{len(items)} {noun}{'s' if len(items) > 1 else ''}"


def _some(items: list[str]) -> str:
    rest = len(items) - _SHOWN
    return ", ".join(items[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
