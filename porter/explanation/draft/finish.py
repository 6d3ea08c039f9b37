"""What remains once bits agree: lines that say nothing go, defaults and unread keys are told, blind axes named."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from porter.comparison.observability import observe_axes
from porter.comparison.one_unit import Captured
from porter.errors import PorterError
from porter.explanation.draft.keys import Unread, at, explain_unread
from porter.explanation.draft.old_keys import read_old_keys
from porter.explanation.draft.pool import Pool
from porter.explanation.draft.probe import Probe
from porter.explanation.draft.sketch import Change, Sketch, as_map, evaluated
from porter.references.config_class import hydration_gaps
from porter.references.unknown import hydrate
from porter.specs.blueprint import Blueprint
from porter.specs.expressions import Config
from porter.specs.family import Family
from porter.specs.resolve import resolve


@dataclass(frozen=True)
class Ending:
    """The rest of a file.

    Attributes:
        defaults: config_defaults; ignored: ignore_config.
        undecided: what could not be told, in words.
        config: of the size that is bit-equal: as given, and lists that the file cannot make of other keys.
    """

    sketch: Sketch
    defaults: Mapping[str, Any]
    ignored: Mapping[str, str | None]
    undecided: tuple[str, ...]
    config: Mapping[str, Any]


def prune(sketch: Sketch) -> Sketch:
    """Without the changes that change nothing."""
    want = sketch.resolve().blueprint
    for name, pattern in (sketch.family().tree.get("patterns") or {}).items():
        alike = sketch.with_change(Change(("patterns", name), None, "HF's layers are alike in this"))
        if pattern is not None and alike.resolve().blueprint == want:
            sketch = alike
    for change in reversed(sketch.changes):
        less = replace(sketch, changes=tuple(each for each in sketch.changes if each is not change))
        try:
            if less.resolve().blueprint == want:
                sketch = less
        except PorterError:
            continue
    return sketch


def finish(sketch: Sketch, raw: Mapping[str, Any], pool: Pool, probe: Probe, folder: Path) -> Ending:
    """The sketch pruned, with defaults for keys that `raw`, the config as given, lacks, and reasons for unread ones."""
    given = {key: value for key, value in raw.items() if key not in ("model_type", "architectures")}
    sketch = _without_requirements(prune(sketch), given)
    sketch = read_old_keys(sketch, _with_defaults(sketch, _read_keys(sketch, given, {}), {}), given)
    undecided: list[str] = []
    ignored: dict[str, str | None] = {}
    asked: list[str] = []
    for unread in _unread(sketch, given, folder, probe, pool):
        if unread.harmless:
            ignored[unread.key.split(".")[0]] = unread.reason
        else:
            value = at(given, unread.key)
            value = at(sketch.config, unread.key) if value is None else value
            undecided.append(f"config key {unread.key}: {unread.reason}; the file describes {value!r} alone")
            if isinstance(value, bool | int | float | str):
                filled = at(sketch.config, unread.key)  # HF's class may put another in its place
                asked.append(
                    f"first(cfg.{unread.key}, {value!r}) == {value!r}"
                    if filled in (value, None)
                    else f"first(cfg.{unread.key}, {value!r}) in [{value!r}, {filled!r}]"
                )
    left_out = {*_reasons(sketch), *ignored, "architectures"}
    if asked:
        kept = list(sketch.family().tree.get("requires") or [])
        sketch = sketch.with_change(Change(("requires",), [*kept, *asked], "no axis reads these keys, and HF does"))
    for config in (given, _with_lists(sketch, given)):
        defaults = _defaults(sketch, ignored, config)
        if _resolves_to(_with_defaults(sketch, defaults, ignored), config, sketch.resolve().blueprint):
            return Ending(sketch, defaults, ignored, (*undecided, *_blind(sketch, probe)), config)
    full = hydrate({**given, "model_type": sketch.model_type})
    told = {key for key in full if key in given or key not in left_out}  # of others HF takes its default, too
    config = json.loads(json.dumps({key: full[key] for key in full if key in told and full[key] is not None}))
    undecided.append("the config's old layout: the file reads what HF saves, as the size tiny has it, and not this one")
    return Ending(sketch, _defaults(sketch, ignored, config), ignored, (*undecided, *_blind(sketch, probe)), config)


def _with_lists(sketch: Sketch, given: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the lists that HF makes of other keys, kinds of layers say."""
    lists = {key: value for key, value in sketch.config.items() if isinstance(value, list)}
    return {**{key: value for key, value in lists.items() if key != "architectures"}, **given}


def _without_requirements(sketch: Sketch, given: Mapping[str, Any]) -> Sketch:
    """Without what the parent requires and the config, as given, does not meet."""
    names = {**sketch.names(), "cfg": Config({**_read_keys(sketch, given, {}), **given})}
    asked = list(sketch.family().tree.get("requires") or [])
    kept = [text for text in asked if evaluated(f"={text.removeprefix('=')}", names)]
    if kept == asked:
        return sketch
    return sketch.with_change(Change(("requires",), kept, "what else the parent requires does not hold here"))


def _defaults(sketch: Sketch, ignored: Mapping[str, str | None], given: Mapping[str, Any]) -> dict[str, Any]:
    """HF's defaults for keys that the spec reads: of keys left out of the given config, and of keys that might be."""
    resolved = sketch.resolve()
    found = _read_keys(sketch, given, ignored)
    if not _resolves_to(_with_defaults(sketch, found, ignored), given, resolved.blueprint):
        return {}
    for key in list(found):
        less = {each: value for each, value in found.items() if each != key}
        if _resolves_to(_with_defaults(sketch, less, ignored), given, resolved.blueprint):
            found = less
    gaps = hydration_gaps(_with_defaults(sketch, found, ignored), given, nulls=False)
    return found | {
        gap.key: gap.default for gap in gaps if gap.default is not None and not isinstance(gap.default, list)
    }


def _reasons(sketch: Sketch) -> set[str]:
    """The keys that the parent ignores; null takes back what its own parent ignores."""
    return {key for key, reason in sketch.family().tree["ignore_config"].items() if reason is not None}


def _read_keys(sketch: Sketch, given: Mapping[str, Any], ignored: Mapping[str, str | None]) -> dict[str, Any]:
    """The keys that the spec reads and the given config lacks, with HF's values for them."""
    unread = {key.split(".")[0] for key in sketch.resolve().unread} | set(ignored)
    found: dict[str, Any] = {
        key: value
        for key, value in sketch.config.items()
        if key not in given and key not in unread and value is not None and not isinstance(value, Mapping | list)
    }
    reasons = _reasons(sketch)
    found = {key: value for key, value in found.items() if key not in reasons}
    inherited = sketch.parent.tree["config_defaults"] or {}
    return {key: None for key in inherited if key not in given} | found  # the parent's defaults may be wrong here


def _unread(sketch: Sketch, given: Mapping[str, Any], folder: Path, probe: Probe, pool: Pool) -> Iterator[Unread]:
    """Keys that nothing reads, each tried where it stands: in the config as given, else in what HF makes of it."""
    head = {"model_type": sketch.model_type}
    family = _with_defaults(sketch, _read_keys(sketch, given, {}), {})
    try:
        own = resolve(family, given).unread
    except PorterError:
        own = ()
    rest = tuple(key for key in sketch.resolve().unread if key.split(".")[0] not in given)
    yield from explain_unread(own, {**given, **head}, folder, probe.ids_BT, pool)
    yield from explain_unread(rest, sketch.config, folder, probe.ids_BT, pool)


def _with_defaults(sketch: Sketch, defaults: Mapping[str, Any], ignored: Mapping[str, str | None]) -> Family:
    """The family as the file will have it: the parent's defaults and reasons, and these over them."""
    family = sketch.family()
    for key, values in (("config_defaults", defaults), ("ignore_config", ignored)):
        family.tree[key] = as_map({**(sketch.parent.tree[key] or {}), **values})
    return family


def _resolves_to(family: Family, config: Mapping[str, Any], blueprint: Blueprint) -> bool:
    try:
        return resolve(family, config).blueprint == blueprint
    except PorterError:
        return False


def _blind(sketch: Sketch, probe: Probe) -> list[str]:
    """Axes of the spec that neither this config nor this prompt could show."""
    blueprint = sketch.resolve().blueprint
    inputs: dict[int, torch.Tensor] = {}
    for unit in probe.units:
        if unit.dtype == torch.bfloat16:
            inputs |= dict(unit.captured.inputs)
    captured = Captured(probe.ids_BT, inputs)
    axes = observe_axes(blueprint, probe.reader(blueprint), captured, torch.bfloat16, torch.device("cpu"))
    return [f"{axis.path} = {axis.value}: {axis.reason}" for axis in axes if axis.seen is None]
