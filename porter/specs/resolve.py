"""Spec and config in, blueprint out: defaults filled, overrides applied, expressions evaluated, layers expanded."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from porter.errors import PreflightError, SpecError
from porter.specs.blueprint import Blueprint
from porter.specs.expressions import Config, evaluate, is_expression
from porter.specs.family import Family
from porter.specs.keys import shown
from porter.specs.layers import Cases, check_rotated_width, choose_cases, expand_layers, overriding_paths
from porter.specs.overrides import Override, apply_overrides, change_layers
from porter.specs.plugins import check_plugins, used_plugins
from porter.specs.rules import Weights
from porter.specs.schema import Block, Dims, Embed, Head, Norm, Tokenizer
from porter.specs.tree import Map, locate
from porter.specs.values import evaluate_map, validate, value_of


@dataclass(frozen=True)
class Resolved:
    """A blueprint with what it was made of.

    Attributes:
        config: the config as given, for HF; never touched by overrides.
        unread: config keys that no field reads.
        cases: for each pattern, the case of each layer.
    """

    blueprint: Blueprint
    family: Family
    config: Mapping[str, Any]
    overrides: tuple[Override, ...]
    unread: tuple[str, ...]
    cases: Cases


def resolve(
    family: Family,
    config: Mapping[str, Any],
    overrides: Sequence[Override] = (),
    tokenizer: Mapping[str, Any] | None = None,
    held: dict[tuple[str, ...], Resolved] | None = None,
) -> Resolved:
    """The blueprint of `family` for a config.

    Args:
        config: config.json, or a size's config.
        overrides: changes of axes; each must change the blueprint.
        tokenizer: conventions of one size, merged onto the family's.
        held: what all but the last of the overrides made, of this family and config; read and added to.

    Raises:
        SpecError: the spec is wrong, refuses the config, or an override is unknown or changes nothing.
    """
    held = {} if held is None else held
    if () not in held:
        held[()] = _resolve(family, config, (), tokenizer or {})
    resolved = held[()]
    for count, override in enumerate(overrides, start=1):
        texts = tuple(each.text for each in overrides[:count])
        if texts in held:
            resolved = held[texts]
            continue
        changed = _resolve_changed(family, config, overrides[:count], tokenizer or {})
        if changed.blueprint.hash == resolved.blueprint.hash:
            raise _without_effect(resolved, override)
        resolved = changed
        if count < len(overrides):
            held[texts] = resolved
    return resolved


def resolve_size(family: Family, name: str, overrides: Sequence[Override] = ()) -> Resolved:
    """The blueprint of a size against its own config.

    Raises:
        SpecError: see `resolve`.
    """
    size = family.size(name)
    return resolve(family, size.config, overrides, size.tokenizer)


def check_config_is_read(resolved: Resolved) -> None:
    """Refuses a config with keys that no field of the spec reads.

    Raises:
        PreflightError: naming each key.
    """
    if resolved.unread:
        raise PreflightError(
            f"nothing reads config {'keys' if len(resolved.unread) > 1 else 'key'} {', '.join(resolved.unread)}",
            f"every key of config.json is read by a field of {resolved.family.path.name}, or listed with a reason",
            "Add a field that reads it, or `ignore_config: {key: why it changes no number}`.",
        )


def _resolve(
    family: Family, config: Mapping[str, Any], overrides: Sequence[Override], tokenizer: Mapping[str, Any]
) -> Resolved:
    tree = family.tree.copy()
    for key, value in tokenizer.items():
        tree["tokenizer"].put(key, value, None)
    tree = apply_overrides(tree, overrides)
    cfg = Config({**tree["config_defaults"], **config})
    names: dict[str, Any] = {"cfg": cfg}
    dims = _dims(tree, names)
    _check_requirements(tree, names)
    norm = validate(Norm, evaluate_map(tree["norm"], names), tree, ("norm",))
    embed = validate(Embed, evaluate_map(tree["embed"], names), tree, ("embed",))
    _check_positions(tree, dims, embed)
    check_plugins(tree["plugins"], locate(tree, ("plugins",)))
    cases = choose_cases(tree, dims, names)
    blocks = change_layers(expand_layers(tree, cases, dims, norm, names), overrides, names)
    for block in blocks:
        check_rotated_width(tree, block, dims)
    _check_named(tree, blocks)
    blueprint = Blueprint(
        family=family.name,
        model_type=tree["model_type"],
        architecture=tree["architecture"],
        dims=dims,
        embed=embed,
        norm=norm,
        blocks=blocks,
        final_norm=_flag(tree, "final_norm", names),
        head=validate(Head, evaluate_map(tree["head"], names), tree, ("head",)),
        weights=_weights(tree, dims, blocks, names),
        tokenizer=validate(Tokenizer, evaluate_map(tree["tokenizer"], names), tree, ("tokenizer",)),
    )
    ignored = {"model_type", *(key for key, reason in tree["ignore_config"].items() if reason is not None)}
    unread = tuple(sorted(_unread(config, cfg.read, ignored)))
    return Resolved(blueprint, family, config, tuple(overrides), unread, cases)


def _resolve_changed(
    family: Family, config: Mapping[str, Any], overrides: Sequence[Override], tokenizer: Mapping[str, Any]
) -> Resolved:
    """`_resolve`, when all but the last override are known to be right: an error is that one's."""
    try:
        return _resolve(family, config, overrides, tokenizer)
    except SpecError as error:
        if "--set " in error.wrong:
            raise
        raise SpecError(f"{overrides[-1].place}: {error.wrong}", error.expected, error.fix) from error


def _unread(config: Mapping[str, Any], read: set[str], ignored: set[str], prefix: str = "") -> Iterator[str]:
    for key, value in config.items():
        name = prefix + key
        if name in ignored or key in ignored:  # a config within the config has HF's metadata too (MPT's attn_config)
            continue
        if isinstance(value, Mapping) and any(each.startswith(f"{name}.") for each in read):
            yield from _unread(value, read, ignored, f"{name}.")
        elif name not in read:
            yield name


def _dims(tree: Map, names: dict[str, Any]) -> Dims:
    values = {}
    for key, raw in tree["dims"].items():
        where = locate(tree, ("dims", key))
        values[key] = names[key] = value_of(raw, names, where)
        if values[key] is None:
            raise SpecError(
                f"{where}: dims.{key} = {raw!r} is null for this config",
                "a whole number",
                "Give the config key it reads, or an expression with a default: first(cfg.key, …).",
            )
    return validate(Dims, values, tree, ("dims",))


def _check_requirements(tree: Map, names: Mapping[str, Any]) -> None:
    where = locate(tree, ("requires",))
    for text in tree["requires"]:
        if not evaluate(f"={text.removeprefix('=')}", names, where):
            raise SpecError(
                f"{where}: the config does not meet the requirement {text!r}",
                "a config for which it holds",
                "This variant of the family is not described by the spec; another family file is needed.",
            )


def _check_positions(tree: Map, dims: Dims, embed: Embed) -> None:
    rows = embed.pos_offset + dims.max_pos
    if embed.positions == "learned" and rows > dims.pos_rows:
        raise SpecError(
            f"{locate(tree, ('embed', 'pos_offset'))}: embed.pos_offset = {embed.pos_offset} reads past the table",
            f"at most {dims.pos_rows - dims.max_pos}: dims.pos_rows are {dims.pos_rows}, dims.max_pos {dims.max_pos}",
            "Correct embed.pos_offset, or dims.pos_rows.",
        )


def _check_named(tree: Map, blocks: Iterable[Block]) -> None:
    """Refuses a plugin that is used without being listed: who lacks it should be told at once."""
    for key, axis in {key: axis for block in blocks for key, axis in used_plugins(block).items()}.items():
        if key not in tree["plugins"]:
            where = locate(tree, ("block", *axis.split(".")))
            raise SpecError(f"{where}: block.{axis} is {key!r}, a plugin", "its key listed", f"Add `plugins: [{key}]`.")


def _flag(tree: Map, key: str, names: Mapping[str, Any]) -> bool:
    where = locate(tree, (key,))
    value = value_of(tree[key], names, where)
    if not isinstance(value, bool):
        raise SpecError(f"{where}: {key} = {shown(value)} is not allowed", "true or false", "Correct the value.")
    return value


def _weights(tree: Map, dims: Dims, blocks: Iterable[Block], names: Mapping[str, Any]) -> Weights:
    table = dict(tree["weights"])
    for part in ("globals", "block"):
        rules = {name: _rule(tree, part, name, names) for name in table[part]}
        table[part] = {name: rule for name, rule in rules.items() if rule is not None}
    used = {"moe.": any(block.moe for block in blocks), "attn.sinks": any(block.attn.sinks for block in blocks)}
    unused = tuple(prefix for prefix, present in used.items() if not present)
    table["block"] = {name: rule for name, rule in table["block"].items() if not name.startswith(unused)}
    weights = validate(Weights, table, tree, ("weights",))
    _check_groups(tree, weights, dims)
    return weights


def _rule(tree: Map, part: str, name: str, names: Mapping[str, Any]) -> Any:
    """A weight rule, its source evaluated where it is an expression; null: none."""
    rule = tree["weights"][part][name]
    if isinstance(rule, Map) and is_expression(rule.get("src")):
        return {**rule, "src": value_of(rule["src"], names, rule.where.get("src"))}
    return value_of(rule, names, locate(tree, ("weights", part, name)))


def _check_groups(tree: Map, weights: Weights, dims: Dims) -> None:
    where = locate(tree, ("weights", "block", "attn.qkv", "groups"))
    groups, heads, kv_heads = weights.groups_of_qkv, dims.heads, dims.kv_heads
    if groups == "heads" and heads != kv_heads:
        raise SpecError(
            f"{where}: attn.qkv has a group for each of {heads} heads, but {kv_heads} key/value heads",
            "groups: kv_heads, or 1",
            "Correct weights.block.attn.qkv.groups.",
        )
    if groups == "4" and (heads % 4 or kv_heads % 4):
        raise SpecError(
            f"{where}: attn.qkv has four groups, but {heads} heads and {kv_heads} key/value heads",
            "heads that four groups share evenly",
            "Correct weights.block.attn.qkv.groups, or the heads of the config.",
        )


def _without_effect(resolved: Resolved, override: Override) -> SpecError:
    over = overriding_paths(resolved.family.tree, resolved.cases, override.path)
    if over:
        return SpecError(
            f"--set {override.text} changes nothing: every layer takes it from {', '.join(over)}",
            "an axis that reaches the blueprint",
            f"Set {over[0]} instead.",
        )
    parts = override.path.split(".")
    if parts[0] == "patterns" and len(parts) > 3 and parts[3] not in (taken := resolved.cases.get(parts[1], ())):
        return SpecError(
            f"--set {override.text} changes nothing: no layer takes the case {parts[3]}",
            f"a case that layers take: {', '.join(dict.fromkeys(taken))}",
            f"Set block.{'.'.join(parts[4:])}, or patterns.{parts[1]}.by.",
        )
    return SpecError(
        f"--set {override.text} changes nothing: the axis has this value already, or no layer uses it",
        "a value that differs from the spec's",
        "porter specs show NAME --axes lists the values in force.",
    )
