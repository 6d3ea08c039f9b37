"""Spec and config in, blueprint out: defaults filled, overrides applied, expressions evaluated, layers expanded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from porter.errors import PreflightError, SpecError, closest
from porter.specs.blueprint import Blueprint
from porter.specs.expressions import Config, evaluate
from porter.specs.family import Family, spec_error
from porter.specs.overrides import Override, apply_overrides, layer_overrides
from porter.specs.schema import Block, Dims, Embed, Head, Norm, QKNorm, Tokenizer, Weights
from porter.specs.tree import Map, locate, merge

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Resolved:
    """A blueprint with what it was made of.

    Attributes:
        config: the config as given, for HF; never touched by overrides.
        unread: config keys that no field reads.
    """

    blueprint: Blueprint
    family: Family
    config: Mapping[str, Any]
    overrides: tuple[Override, ...]
    unread: tuple[str, ...]


def resolve(
    family: Family,
    config: Mapping[str, Any],
    overrides: Sequence[Override] = (),
    tokenizer: Mapping[str, Any] | None = None,
) -> Resolved:
    """The blueprint of `family` for a config.

    Args:
        config: config.json, or a size's config.
        overrides: changes of axes; each must change the blueprint.
        tokenizer: conventions of one size, merged onto the family's.

    Raises:
        SpecError: the spec is wrong, refuses the config, or an override is unknown or changes nothing.
    """
    blueprint, unread = _resolve(family, config, (), tokenizer)
    for count, override in enumerate(overrides, start=1):
        changed, _ = _resolve(family, config, overrides[:count], tokenizer)
        if changed.hash == blueprint.hash:
            raise _without_effect(family, override)
        blueprint = changed
    return Resolved(blueprint, family, config, tuple(overrides), unread)


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
    family: Family, config: Mapping[str, Any], overrides: Sequence[Override], tokenizer: Mapping[str, Any] | None
) -> tuple[Blueprint, tuple[str, ...]]:
    tree = apply_overrides(family.tree, overrides)
    cfg = Config({**tree.get("config_defaults", {}), **config})
    names: dict[str, Any] = {"cfg": cfg}
    dims = _dims(tree, names)
    _check_requirements(tree, names)
    norm = _section(tree, "norm", Norm, names)
    blocks = tuple(_blocks(tree, dims, norm, names))
    for override in layer_overrides(overrides, len(blocks)):
        blocks = override(blocks)
    own = dict(_plain(tree, "tokenizer", names))
    blueprint = Blueprint(
        family=family.name,
        model_type=tree["model_type"],
        architecture=tree["architecture"],
        dims=dims,
        embed=_section(tree, "embed", Embed, names),
        norm=norm,
        blocks=blocks,
        final_norm=bool(_value(tree["final_norm"], names, locate(tree, ("final_norm",)))),
        head=_section(tree, "head", Head, names),
        weights=_weights(tree),
        tokenizer=_validate(Tokenizer, {**own, **(tokenizer or {})}, tree, ("tokenizer",)),
    )
    ignored = {"model_type", *tree.get("ignore_config", {})}
    return blueprint, tuple(sorted(_unread(config, cfg.read, ignored)))


def _unread(config: Mapping[str, Any], read: set[str], ignored: set[str], prefix: str = "") -> list[str]:
    found = []
    for key, value in config.items():
        name = prefix + key
        if name in ignored:
            continue
        if isinstance(value, Mapping) and value and any(r.startswith(f"{name}.") for r in read):
            found += _unread(value, read, ignored, f"{name}.")
        elif name not in read:
            found.append(name)
    return found


def _dims(tree: Map, names: dict[str, Any]) -> Dims:
    values = {}
    for key, raw in tree["dims"].items():
        values[key] = names[key] = _value(raw, names, locate(tree, ("dims", key)))
        if values[key] is None:
            raise SpecError(
                f"{locate(tree, ('dims', key))}: dims.{key} = {raw!r} is null for this config",
                "a whole number",
                "Give the config key it reads, or an expression with a default: first(cfg.key, …).",
            )
    return _validate(Dims, values, tree, ("dims",))


def _check_requirements(tree: Map, names: Mapping[str, Any]) -> None:
    for text in tree.get("requires", []):
        if not evaluate(f"={text.removeprefix('=')}", names, locate(tree, ("requires",))):
            raise SpecError(
                f"the config does not meet the requirement {text!r}",
                f"a config for which it holds ({locate(tree, ('requires',))})",
                "This variant of the family is not described by the spec; another family file is needed.",
            )


def _blocks(tree: Map, dims: Dims, norm: Norm, names: dict[str, Any]) -> list[Block]:
    patterns: Map = tree.get("patterns") or Map()
    cases = {name: _cases(tree, name, dims.layers, names) for name in patterns}
    blocks = []
    made: dict[tuple[str, ...], Block] = {}
    for i in range(dims.layers):
        chosen = tuple(cases[name][i] for name in patterns)
        merged: Map = tree["block"]
        for name, case in zip(patterns, chosen, strict=True):
            merged = merge(merged, patterns[name]["cases"][case] or Map())
        if chosen not in made or _mentions_layer(merged):
            made[chosen] = _block(merged, norm, {**names, "i": i}, tree)
        blocks.append(made[chosen])
    return blocks


def _mentions_layer(tree: Map) -> bool:
    return any(
        _mentions_layer(value) if isinstance(value, Map) else isinstance(value, str) and value.startswith("=") and "i" in value.replace("if", "").split()
        for value in tree.values()
    )  # fmt: skip


def _cases(tree: Map, name: str, layers: int, names: Mapping[str, Any]) -> list[str]:
    pattern, where = tree["patterns"][name], locate(tree, ("patterns", name))
    chosen = _value(pattern["by"], names, where)
    if not isinstance(chosen, list) or len(chosen) != layers:
        raise SpecError(
            f"{where}: patterns.{name}.by gives {len(chosen) if isinstance(chosen, list) else chosen!r} cases",
            f"one for each of the {layers} layers",
            "Use every, head, cycle, const or flags with `layers` as the length.",
        )
    for case in chosen:
        if case not in pattern["cases"]:
            raise SpecError(
                f"{where}: patterns.{name}.by names the case {case!r}",
                closest(str(case), pattern["cases"]),
                "Add the case.",
            )
    return chosen


def _block(merged: Map, norm: Norm, names: Mapping[str, Any], tree: Map) -> Block:
    values = _evaluate(merged, names)
    if isinstance(values["attn"].get("qk_norm"), dict):
        inherited = {**norm.model_dump(), **values["attn"]["qk_norm"]}
        values["attn"]["qk_norm"] = _validate(QKNorm, inherited, tree, ("block", "attn", "qk_norm")).model_dump()
    where = Map()
    where.put("block", merged, None)
    return _validate(Block, values, where, ("block",))


def _section(tree: Map, key: str, model: type[M], names: Mapping[str, Any]) -> M:
    return _validate(model, _plain(tree, key, names), tree, (key,))


def _plain(tree: Map, key: str, names: Mapping[str, Any]) -> dict[str, Any]:
    section = tree.get(key) or Map()
    return _evaluate(section, names)


def _weights(tree: Map) -> Weights:
    table = dict(tree["weights"])
    for part in ("globals", "block"):
        table[part] = {name: rule for name, rule in table[part].items() if rule is not None}
    return _validate(Weights, table, tree, ("weights",))


def _evaluate(tree: Map, names: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for key, raw in tree.items():
        if key == "_if":
            continue
        if isinstance(raw, Map):
            guard = raw.get("_if", True)
            values[key] = _evaluate(raw, names) if _value(guard, names, raw.where.get("_if")) else None
        else:
            values[key] = _value(raw, names, tree.where.get(key))
    return values


def _value(raw: Any, names: Mapping[str, Any], where: object) -> Any:
    return evaluate(raw, names, where) if isinstance(raw, str) and raw.startswith("=") else raw


def _validate(model: type[M], values: Mapping[str, Any], tree: Map, path: tuple[str, ...]) -> M:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise spec_error(error, tree, path) from error


def _without_effect(family: Family, override: Override) -> SpecError:
    over = overriding_paths(family.tree, override.path)
    if over:
        return SpecError(
            f"--set {override.text} changes nothing: every layer takes it from {', '.join(over)}",
            "an axis that reaches the blueprint",
            f"Set {over[0]} instead.",
        )
    return SpecError(
        f"--set {override.text} changes nothing: the axis has this value already, or no layer uses it",
        "a value that differs from the spec's",
        "porter specs show --axes lists the values in force.",
    )


def overriding_paths(tree: Map, path: str) -> list[str]:
    """The pattern cases that set the axis `path` of `block` again, for every layer they are chosen for."""
    if not path.startswith("block."):
        return []
    inner = path.removeprefix("block.").split(".")
    found = []
    for name, pattern in (tree.get("patterns") or {}).items():
        for case, changes in pattern["cases"].items():
            node: Any = changes
            for key in inner:
                node = node.get(key, _ABSENT) if isinstance(node, Map) else _ABSENT
            if node is not _ABSENT:
                found.append(f"patterns.{name}.cases.{case}.{'.'.join(inner)}")
    return found


_ABSENT: Any = object()
