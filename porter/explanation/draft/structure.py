"""The axes of a spec that names and shapes decide: biases, norms, fused projections, experts, the tied head."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from porter.errors import SpecError
from porter.explanation.draft.experts import Experts
from porter.explanation.draft.layout import Layout
from porter.explanation.draft.per_layer import tell_layers, tells
from porter.explanation.draft.pool import Keys, Pool
from porter.explanation.draft.roles import Roles
from porter.explanation.draft.sketch import Change, Sketch, evaluated, keys_read, numbers_of
from porter.explanation.draft.vectors import layers_of, layers_with_bias
from porter.specs.expressions import evaluate, is_expression
from porter.specs.schema import Attention, Mlp
from porter.specs.tree import Map


def fixed_axes(layout: Layout, roles: Roles, outer: Mapping[str, str], experts: Experts | None) -> dict[Keys, Any]:
    """Axes that names, and the flow of data where HF ran, decide."""
    outside = layout.outer_modules()

    def has_bias(*slots: str) -> bool | tuple[bool, ...]:
        having = layers_with_bias(layout, *(roles.slots.get(slot) for slot in slots))
        of_slots = layers_of(layout, *(roles.slots.get(slot) for slot in slots))
        return having if 0 < sum(having) < sum(of_slots) else any(having)

    found: dict[Keys, Any] = {
        ("block", "attn", "bias_qkv"): has_bias("attn.q", "attn.qkv", "attn.v"),
        ("block", "attn", "bias_o"): has_bias("attn.o"),
        ("head", "tied"): "weight" not in outside.get(outer.get("head", ""), {}),
        ("head", "bias"): "bias" in outside.get(outer.get("head", ""), {}),
    }
    if "pos" in outer:
        found["embed", "positions"] = "learned"
    found |= _norms(layout, roles, outer)
    if "mlp.down" in roles.slots:
        found["block", "mlp", "bias"] = has_bias("mlp.up", "mlp.down", "mlp.gate_up")
        found["block", "mlp", "gated"] = "mlp.gate" in roles.slots or "mlp.gate_up" in roles.slots
    for fact, value in roles.facts.items():
        if fact == "topology" or fact.partition(".")[2] in {**Attention.model_fields, **Mlp.model_fields}:
            found["block", *fact.split(".")] = value
    if "attn.q_norm" not in roles.slots:
        found["block", "attn", "qk_norm"] = None
    if "attn.sinks" not in roles.slots:
        found["block", "attn", "sinks"] = None
    if "attn.kv_a" not in roles.slots:
        found["block", "mixer"] = None
    if experts is None:
        found["block", "moe"] = None
    else:
        found["block", "moe", "experts"], found["block", "moe", "ffn"] = experts.count, experts.ffn
        found["block", "moe", "_if"] = experts.layers
        found["block", "moe", "bias"] = experts.bias
        found["block", "moe", "router", "correction"] = "moe.correction" in experts.rules
        found["block", "moe", "router", "bias"] = experts.router_bias
    return found


def _norms(layout: Layout, roles: Roles, outer: Mapping[str, str]) -> dict[Keys, Any]:
    """What the tensors say of norms; of some without weights they say little."""
    modules = layout.modules()
    found: dict[Keys, Any] = {}
    norms = [slot for slot in roles.slots if slot.endswith("norm") and slot not in ("attn.q_norm", "attn.k_norm")]
    weights = [modules[roles.slots[slot]] for slot in norms if roles.slots[slot] in modules]
    if weights or not norms:  # norms without weights may be anywhere
        found["embed", "norm"], found["final_norm",] = "embed_norm" in outer, "final_norm" in outer
    if norms:
        found["norm", "affine"] = bool(weights)
        found["norm", "bias"] = any("bias" in each for each in weights)
    return found


def axis_changes(sketch: Sketch, pool: Pool, fixed: Mapping[Keys, Any]) -> Iterator[Change]:
    """The axes that the parent has otherwise."""
    names = sketch.names()
    for keys, truth in fixed.items():
        raw = _at(sketch, keys)
        if isinstance(truth, tuple):
            yield from _of_layers(keys, raw, truth, names, pool)
            continue
        if truth is None:
            if raw is not None and not _is_off(raw, names):
                yield Change(keys, None, "no such tensor")
            continue
        if evaluated(raw, names) == truth and (not is_expression(raw) or _reads_present(raw, names)):
            continue
        options = [
            each
            for each in (*pool.values.get(keys, ()), *_counts(keys, truth, sketch.config))
            if is_expression(each) and evaluated(each, names) == truth
        ]
        fitting = [each for each in options if _reads_present(each, names) and _turns(each, names, truth)]
        value = fitting[0] if fitting else truth
        if raw != value and not (evaluated(raw, names) == truth and not fitting):
            yield Change(
                keys, value, f"{_word(truth)}, by the tensors" if keys[-1] != "topology" else "by the flow of data"
            )


def _is_off(raw: Any, names: Mapping[str, Any]) -> bool:
    """Whether a map's guard says that it is not there, of this config."""
    try:
        guard = raw.get("_if", True) if isinstance(raw, Map) else True
        return not (evaluate(str(guard), names, "draft") if is_expression(guard) else guard)
    except SpecError:
        return False


def _counts(keys: Keys, truth: Any, config: Mapping[str, Any]) -> Iterator[str]:
    """The config's own keys for how many experts there are, and how wide they are."""
    words = {"experts": ("expert",), "ffn": ("inter", "ffn", "hidden")}.get(keys[-1], ())
    for path, value in numbers_of(config):
        if type(value) is int and value == truth and any(word in path for word in words):
            yield f"=cfg.{path}"


def _of_layers(keys: Keys, raw: Any, truth: tuple[bool, ...], names: Mapping[str, Any], pool: Pool) -> Iterator[Change]:
    """An axis that some layers have and others have not."""
    if all(truth) and raw in (None, True):
        return
    options = [raw, *pool.values.get(keys, ())]
    value = True if all(truth) and not tells(raw, truth, names) else tell_layers(truth, names, options)
    if value != raw:
        layers = ", ".join(str(i) for i, each in enumerate(truth) if each)
        yield Change(keys, value, f"in layers {layers}, by the tensors")


def _reads_present(raw: Any, names: Mapping[str, Any]) -> bool:
    return any(names["cfg"].values.get(key.split(".")[0]) is not None for key in keys_read(raw, names))


def _turns(raw: str, names: Mapping[str, Any], truth: Any) -> bool:
    """Whether the expression is about one key alone, and would say otherwise were the key otherwise."""
    return len({key.split(".")[0] for key in keys_read(raw, names)}) == 1 and isinstance(ast.parse(raw[1:]), ast.Module)


def _word(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _at(sketch: Sketch, keys: Keys) -> Any:
    node: Any = sketch.family().tree
    for key in keys:
        node = node.get(key) if isinstance(node, Map) else None
    return node
