"""The nearest families to a checkpoint, each changed as far as its names, shapes and config decide."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from porter.errors import PorterError
from porter.explanation.draft.dims import Facts, dim_changes, read_facts
from porter.explanation.draft.experts import Experts, find_experts
from porter.explanation.draft.layout import Layout
from porter.explanation.draft.pool import Keys, Pool
from porter.explanation.draft.roles import Roles, outer_roles
from porter.explanation.draft.rules import expert_changes, rule_changes, sources
from porter.explanation.draft.sketch import Change, Sketch, evaluated, keys_read, numbers_of
from porter.explanation.draft.structure import axis_changes, fixed_axes
from porter.specs.expressions import is_expression
from porter.specs.family import Family
from porter.specs.ledger import misfits
from porter.specs.tree import Map, leaves

_NULLABLE = ("window", "softcap", "scaling", "clip_qkv", "original_max_pos", "dim", "_if", "alpha", "limit", "q_rank")
_LAST_RESORT: Mapping[Keys, Any] = {
    ("eps",): 1e-5, ("act",): "silu", ("router", "scale"): 1.0, ("router", "renorm"): False,
    ("mixer", "deinterleave"): False,
}  # fmt: skip
_NONE = (("groups", "n"), ("groups", "top"))
_WORDS = {"top_k": ("top_k", "topk", "per_tok", "moe_k")}


@dataclass(frozen=True)
class Start:
    """Where a search may start.

    Attributes:
        fixed: axes that tensors decide, with their values.
        distance: the smaller the nearer.
    """

    sketch: Sketch
    fixed: Mapping[Keys, Any]
    distance: int


def nearest(pool: Pool, layout: Layout, roles: Roles, config: Mapping[str, Any], model_type: str) -> list[Start]:
    """A start from each family that can be made to fit, nearest first: by misfits, lines, unread keys."""
    architecture = str((config.get("architectures") or ["Unknown"])[0])
    outer = outer_roles(layout, pool, None)
    facts = read_facts(layout, roles, outer, config)
    experts = find_experts(layout, roles, facts.dims["hidden"])
    fixed = fixed_axes(layout, roles, outer, experts)
    shapes = layout.all_shapes()
    found: list[Start] = []
    for family in pool.families:
        if "attn.kv_a" in roles.slots and family.tree["block"].get("mixer") is None:
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
        found.append(Start(sketch, fixed, distance))
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
    if experts is not None and sketch.parent.tree["block"].get("moe") is None:
        sketch = sketch.with_change(*_graft(sketch, pool))
    sketch = sketch.with_change(*rule_changes(sketch, layout, roles, outer, facts.transposed))
    sketch = sketch.with_change(*axis_changes(sketch, pool, fixed_axes(layout, roles, outer, experts)))
    if experts is not None:
        sketch = sketch.with_change(*expert_changes(sketch, pool, experts))
    if "attn.q_norm" in roles.slots and not _has_head_norm(sketch, _head_norm(roles, layout, facts).value):
        sketch = sketch.with_change(_head_norm(roles, layout, facts))
    if (
        "attn.sinks" in roles.slots
        and evaluated(sketch.family().tree["block"]["attn"]["sinks"], sketch.names()) is None
    ):
        sketch = sketch.with_change(Change(("block", "attn", "sinks"), "column", "by the tensors; how, by bits"))
    sketch = sketch.with_change(*_widths(sketch, roles, experts))
    return sketch.with_change(*_requirements(sketch), *_repairs(sketch, pool))


def _graft(sketch: Sketch, pool: Pool) -> Iterator[Change]:
    """The experts of the family most of whose keys this config has, for a parent that has none."""
    names = sketch.names()
    donors = [family for family in pool.families if isinstance(family.tree["block"].get("moe"), Map)]

    def fit(donor: Family) -> tuple[int, int]:
        raw = [each for _, each in leaves(donor.tree["block"]["moe"]) if is_expression(each)]
        null = sum(evaluated(each, names) is None for each in raw)
        return null, -sum(bool(keys_read(each, names) & names["cfg"].values.keys()) for each in raw)

    donor = min(donors, key=fit, default=None)
    if donor is not None:
        yield Change(("block", "moe"), donor.tree["block"]["moe"], f"experts as in {donor.name}")


def _widths(sketch: Sketch, roles: Roles, experts: Experts | None) -> Iterator[Change]:
    """The parameters that HF keeps in float32."""
    if roles.wide is None:
        return
    rules = {**roles.slots, **(experts.rules if experts else {})}
    wide = [slot for slot, rule in rules.items() if set(sources(rule)) & {*roles.wide, *(f"{m}!" for m in roles.wide)}]
    old = sketch.parent.tree["weights"].get("keep_fp32") or []
    if sorted(wide) != sorted(slot for slot in old if slot in rules):
        yield Change(("weights", "keep_fp32"), sorted(wide), "HF keeps them in float32")


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
        value |= {"weight_per_head": True, "kind": "layernorm", "math": "scale_then_cast", "bias": False}
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
        own = [*_own(keys[-1], sketch.config)]
        options = [each for each in (*pool.values.get(keys, ()), *own) if evaluated(each, names) is not None]
        options.sort(key=lambda each: not is_expression(each))
        if options:
            yield Change(keys, options[0], "the config has it under this key")
        elif keys[-2:] in _NONE:
            yield Change(keys[:-1], None, "no config key was found for it")
        elif keys[-2:] in _LAST_RESORT or keys[-1:] in _LAST_RESORT:
            guess = _LAST_RESORT[keys[-2:] if keys[-2:] in _LAST_RESORT else keys[-1:]]
            yield Change(keys, guess, "no config key was found for it; a guess to start with")


def _own(axis: str, config: Mapping[str, Any]) -> Iterator[str]:
    """What the config's own keys say of an axis."""
    words = _WORDS.get(axis, (axis,))
    kinds = (int, list) if axis == "top_k" else (float, str)
    for path, held in numbers_of(config):
        if any(word in path for word in words) and type(held) in kinds:
            yield f"=each(cfg.{path}, layers)[i]" if isinstance(held, list) else f"=cfg.{path}"
