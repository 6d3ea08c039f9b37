"""The weight table that names and shapes give, and the experts that a spec lacks."""

from collections.abc import Iterator, Mapping
from typing import Any

from porter.explanation.draft.dims import reads
from porter.explanation.draft.experts import Experts
from porter.explanation.draft.layout import Layout
from porter.explanation.draft.pool import Pool
from porter.explanation.draft.roles import Roles
from porter.explanation.draft.sketch import Change, Sketch, as_map, evaluated, numbers_of
from porter.explanation.draft.vectors import bias_beside
from porter.specs.tree import Map

_LINEAR = ("attn.q", "attn.k", "attn.v", "attn.qkv", "attn.o", "mlp.gate", "mlp.up", "mlp.gate_up", "mlp.down")


def rule_changes(
    sketch: Sketch, layout: Layout, roles: Roles, outer: Mapping[str, str], transposed: bool
) -> Iterator[Change]:
    """The weight table: rules that the parent lacks or has otherwise."""
    table = sketch.parent.tree["weights"]
    if table["layer"] != layout.layer:
        yield Change(("weights", "layer"), layout.layer, "by the names")
    for slot, module in outer.items():
        places = [module, *([roles.aliases[module]] if module in roles.aliases else [])]
        if sources(table["globals"].get(slot))[:1] != places[:1] or len(places) > 1:
            yield Change(("weights", "globals", slot), places if len(places) > 1 else module, "by name")
    fused = {"attn.qkv": ["q", "k", "v"], "mlp.gate_up": ["gate", "up"]}
    for slot, module in roles.slots.items():
        old, linear = table["block"].get(slot), slot in _LINEAR
        is_transposed = bool(isinstance(old, Map) and old.get("transpose"))
        bias = bias_beside(layout, module)
        places = [module, *([roles.aliases[module]] if module in roles.aliases else [])]
        if (
            set(places) <= set(sources(old))
            and sources(old)[0] == module
            and not bias
            and (not linear or is_transposed == transposed)
        ):
            continue
        order = list(old["order"]) if isinstance(old, Map) and "order" in old else fused.get(slot)
        rule = {
            "src": places if len(places) > 1 else module,
            **({"transpose": True} if linear and transposed else {}),
            **({"order": order} if order else {}),
            **({"bias": f"{bias}!"} if bias else {}),
        }
        if isinstance(old, Map) and "groups" in old:
            rule["groups"] = old["groups"]
        yield Change(("weights", "block", slot), as_map(rule) if len(rule) > 1 else rule["src"], "by the tensors")
    for whole, parts in (("attn.qkv", ("attn.q",)), ("mlp.gate_up", ("mlp.gate",))):
        if table["block"].get(whole) is not None and whole not in roles.slots and any(p in roles.slots for p in parts):
            yield Change(("weights", "block", whole), None, "not fused")


def sources(rule: Any) -> list[Any]:
    """The paths of a weight rule."""
    source = rule.get("src") if isinstance(rule, Mapping) else rule
    return source if isinstance(source, list) else [] if source is None else [source]


def _shared_width(ffn: int, config: Mapping[str, Any]) -> Iterator[str]:
    """What of the config gives the width of shared experts: a key of theirs, or their number times the width of one."""
    numbers = [(path, value) for path, value in numbers_of(config) if type(value) is int]
    yield from (f"=cfg.{path}" for path, value in numbers if value == ffn and "shared" in path)
    for path, width in numbers:
        for other, count in numbers if "inter" in path else ():
            if "shared" in other and width * count == ffn:
                yield f"=cfg.{path} * cfg.{other}"


def expert_changes(sketch: Sketch, pool: Pool, experts: Experts) -> Iterator[Change]:
    """Rules of experts that the parent has otherwise, and an expert for every token, where there is one."""
    table, names = sketch.parent.tree["weights"]["block"], sketch.names()
    for slot, rule in experts.rules.items():
        if sources(table.get(slot))[:1] != sources(rule)[:1] or not set(sources(rule)) <= set(sources(table.get(slot))):
            yield Change(("weights", "block", slot), as_map(rule), "by the names")
    for whole in ("moe.gate_up", "moe.shared.gate_up"):
        if whole not in experts.rules and table.get(whole) is not None and f"{whole[:-3]}" in experts.rules:
            yield Change(("weights", "block", whole), None, "not fused")
    if experts.shared_ffn is None:
        yield Change(("block", "moe", "shared"), None, "no such tensors")
        return
    known = pool.values.get(("block", "moe", "shared", "ffn"), ())
    options = [each for each in known if evaluated(each, names) == experts.shared_ffn and reads(each, names)]
    options += _shared_width(experts.shared_ffn, sketch.config)
    value = {"ffn": options[0] if options else experts.shared_ffn, "gate": "sigmoid" if experts.shared_gate else "none"}
    yield Change(("block", "moe", "shared"), value, "by the tensors")
