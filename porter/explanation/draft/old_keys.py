"""Keys that HF's config class takes in and renames (rope_theta, rotary_pct): the spec reads them, too."""

from collections.abc import Iterator, Mapping
from typing import Any

from porter.errors import PorterError
from porter.explanation.draft.pool import Keys
from porter.explanation.draft.sketch import Change, Sketch, evaluated
from porter.specs.blueprint import Blueprint
from porter.specs.expressions import Config, is_expression
from porter.specs.family import Family
from porter.specs.resolve import Resolved, resolve
from porter.specs.tree import Map, leaves

_MOST = 8


def read_old_keys(sketch: Sketch, family: Family, given: Mapping[str, Any]) -> Sketch:
    """The sketch with `first(cfg.key, …)` where the config as given has a value under a key that HF renames.

    Args:
        family: the sketch's, with the defaults it will have.
    """
    want = sketch.resolve().blueprint
    for _ in range(_MOST):
        try:
            changes = _changes(resolve(family, given), want, given)
        except PorterError:
            changes = _repairs(sketch, family, given)
        better = next((each for each in changes if _stays(sketch.with_change(each), want)), None)
        if better is None:
            return sketch
        sketch = sketch.with_change(better)
        defaults = family.tree["config_defaults"]
        family = sketch.family()
        family.tree["config_defaults"] = defaults
    return sketch


def _stays(sketch: Sketch, want: Blueprint) -> bool:
    """Whether the file still says the same of the config as HF fills it in."""
    try:
        return sketch.resolve().blueprint == want
    except PorterError:
        return False


def _changes(resolved: Resolved, want: Blueprint, given: Mapping[str, Any]) -> Iterator[Change]:
    for section in ("embed", "norm", "head"):
        one, other = (getattr(each, section).model_dump() for each in (resolved.blueprint, want))
        for path, truth in _differing(one, other):
            yield from _change(resolved.family, (section, *path), truth, given)
    for index, blocks in enumerate(zip(resolved.blueprint.blocks, want.blocks, strict=True)):
        for path, truth in _differing(blocks[0].model_dump(), blocks[1].model_dump()):
            yield from _change(resolved.family, _place(resolved, index, path), truth, given)


def _repairs(sketch: Sketch, family: Family, given: Mapping[str, Any]) -> Iterator[Change]:
    """Axes that have a value for what HF makes of the config, and none for the config as given."""
    names = sketch.names()
    bare = {**names, "cfg": Config({**family.tree["config_defaults"], **given})}
    for keys, raw in leaves(family.tree):
        if keys[0] in ("embed", "norm", "block", "head", "patterns") and is_expression(raw):
            truth = evaluated(raw, names)
            if truth is not None and evaluated(raw, bare) is None:
                yield from _change(family, keys, truth, given)


def _change(family: Family, keys: Keys, truth: Any, given: Mapping[str, Any]) -> Iterator[Change]:
    node: Any = family.tree
    for key in keys:
        node = node.get(key) if isinstance(node, Map) else None
    words = [word[:4] for word in keys[-1].split("_")]
    names = [
        key for key, value in given.items()
        if value == truth and type(value) is type(truth) and not isinstance(value, bool)
    ]  # fmt: skip
    named = [key for key in names if any(word in key for word in words)] or names
    if not named or isinstance(node, Map):
        return
    old = node[1:] if is_expression(node) else repr(node)
    if f"cfg.{named[0]}" not in str(old):
        yield Change(keys, f"=first(cfg.{named[0]}, {old})", f"HF reads {named[0]}, too")


def _differing(one: Any, other: Any, path: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            yield from _differing(one.get(key), other.get(key), (*path, key))
    elif one != other:
        yield path, other


def _place(resolved: Resolved, layer: int, path: Keys) -> Keys:
    """Where the file sets an axis of a layer: in a case of a pattern, else in block."""
    found: Keys = ("block", *path)
    for name, cases in resolved.cases.items():
        node: Any = resolved.family.tree["patterns"][name]["cases"][cases[layer]]
        for key in path:
            node = node.get(key, Ellipsis) if isinstance(node, Map) else Ellipsis
        if node is not Ellipsis:
            found = ("patterns", name, "cases", cases[layer], *path)
    return found
