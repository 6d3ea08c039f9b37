"""The nearest families to a checkpoint, each changed as far as its names, shapes and config decide."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from porter.errors import PorterError
from porter.explanation.draft.experts import Experts, find_experts
from porter.explanation.draft.layout import Layout
from porter.explanation.draft.pool import Keys, Pool
from porter.explanation.draft.roles import Roles, outer_roles
from porter.explanation.draft.sketch import Change, Sketch, evaluated
from porter.explanation.draft.structure import (
    Facts,
    axis_changes,
    dim_changes,
    expert_changes,
    fixed_axes,
    read_facts,
    rule_changes,
)
from porter.specs.expressions import is_expression
from porter.specs.ledger import misfits
from porter.specs.tree import Map, leaves

_NULLABLE = ("window", "softcap", "scaling", "clip_qkv", "original_max_pos", "dim")
_LAST_RESORT = {"eps": 1e-5, "act": "silu"}


@dataclass(frozen=True)
class Start:
    """Where a search may start.

    Attributes:
        fixed: axes that tensors decide.
        distance: the smaller the nearer.
    """

    sketch: Sketch
    fixed: frozenset[Keys]
    distance: int


def nearest(pool: Pool, layout: Layout, roles: Roles, config: Mapping[str, Any], model_type: str) -> list[Start]:
    """A start from each family that can be made to fit, nearest first: by misfits, lines, unread keys."""
    architecture = str((config.get("architectures") or ["Unknown"])[0])
    outer = outer_roles(layout, pool, None)
    facts = read_facts(layout, roles, outer, config)
    experts = find_experts(layout, facts.dims["hidden"])
    fixed = fixed_axes(layout, roles, outer, experts)
    shapes = layout.all_shapes()
    found: list[Start] = []
    for family in pool.families:
        if experts is not None and family.tree["block"].get("moe") is None:
            continue
        try:
            sketch = _fitted(
                Sketch(family, model_type, architecture, config), pool, layout, roles, outer, facts, experts
            )
            resolved = sketch.resolve()
            wrong = misfits(resolved.blueprint, shapes)
        except PorterError:
            continue
        distance = 100 * len(wrong) + 3 * len(sketch.changes) + len(resolved.unread)
        found.append(Start(sketch, frozenset(fixed), distance))
    return sorted(found, key=lambda start: start.distance)


def _fitted(
    sketch: Sketch,
    pool: Pool,
    layout: Layout,
    roles: Roles,
    outer: Mapping[str, str],
    facts: Facts,
    experts: Experts | None,
) -> Sketch:
    """The sketch with what names, shapes and the config decide."""
    sketch = sketch.with_change(*dim_changes(sketch, pool, facts))
    sketch = sketch.with_change(*rule_changes(sketch, layout, roles, outer, facts.transposed))
    sketch = sketch.with_change(*axis_changes(sketch, pool, fixed_axes(layout, roles, outer, experts)))
    if experts is not None:
        sketch = sketch.with_change(*expert_changes(sketch, pool, experts))
    if "attn.q_norm" in roles.slots and not _has_head_norm(sketch, _head_norm(roles, layout, facts).value):
        sketch = sketch.with_change(_head_norm(roles, layout, facts))
    return sketch.with_change(*_requirements(sketch), *_repairs(sketch, pool))


def _has_head_norm(sketch: Sketch, wanted: Mapping[str, Any]) -> bool:
    """Whether the sketch has a norm on q and k of that shape."""
    names = sketch.names()
    node = sketch.family().tree["block"]["attn"].get("qk_norm")
    if not isinstance(node, Map) or ("_if" in node and not evaluated(node["_if"], names)):
        return False
    held = {
        key: evaluated(node.get(key, default), names) for key, default in (("over", "head"), ("weight_per_head", False))
    }
    return held["over"] == wanted["over"] and bool(held["weight_per_head"]) == bool(wanted.get("weight_per_head"))


def _head_norm(roles: Roles, layout: Layout, facts: Facts) -> Change:
    weight = layout.modules().get(roles.slots["attn.q_norm"], {}).get("weight")
    over = "head" if weight is None or weight[-1] == facts.dims["head_dim"] else "full"
    value: dict[str, Any] = {"over": over, "when": "before_rope"}
    if weight is not None and len(weight) == 2:
        value |= {"weight_per_head": True, "kind": "layernorm", "math": "scale_then_cast"}
    return Change(("block", "attn", "qk_norm"), value, "by the tensors; when, by bits")


def _requirements(sketch: Sketch) -> Iterator[Change]:
    """What the parent asks of a config and this one does not meet is not asked."""
    names = sketch.names()
    asked = sketch.parent.tree.get("requires") or []
    kept = [text for text in asked if evaluated(f"={text.removeprefix('=')}", names)]
    if kept != asked:
        yield Change(("requires",), kept, "what else the parent requires does not hold here")


def _repairs(sketch: Sketch, pool: Pool) -> Iterator[Change]:
    """Axes whose expression has no value for this config, though null is none of their values."""
    names = sketch.names()
    for keys, raw in leaves(sketch.family().tree):
        if keys[0] not in ("embed", "norm", "block", "head") or not is_expression(raw):
            continue
        if evaluated(raw, names) is not None or keys[-1] in _NULLABLE:
            continue
        own = [f"=cfg.{key}" for key, held in sketch.config.items() if keys[-1] in key and type(held) in (float, str)]
        options = [each for each in (*pool.values.get(keys, ()), *own) if evaluated(each, names) is not None]
        options.sort(key=lambda each: not is_expression(each))
        if options:
            yield Change(keys, options[0], "the config has it under this key")
        elif keys[-1] in _LAST_RESORT:
            yield Change(keys, _LAST_RESORT[keys[-1]], "no config key was found for it; a guess to start with")
