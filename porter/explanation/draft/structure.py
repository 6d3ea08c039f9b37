"""The part of a spec that names and shapes decide: dims, rules, biases, norms, fused projections, the tied head."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from porter.explanation.draft.experts import Experts
from porter.explanation.draft.layout import Layout, Shape
from porter.explanation.draft.pool import Keys, Pool
from porter.explanation.draft.roles import Roles
from porter.explanation.draft.sketch import Change, Sketch, as_map, evaluated, keys_read
from porter.specs.expressions import is_expression
from porter.specs.schema import Attention, Mlp
from porter.specs.tree import Map

_DIM_KEYS = {  # dim -> names that configs have for it
    "vocab": ("vocab_size",), "hidden": ("hidden_size", "n_embd", "d_model", "dim", "embed_dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_key_value_groups"),
    "head_dim": ("head_dim", "kv_channels"),
    "max_pos": ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"),
    "pos_rows": (), "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "inner_dim"),
}  # fmt: skip
_DERIVED = {
    "pos_rows": ("=max_pos + 2", "=max_pos + 1"),
    "kv_heads": ("=heads",),
    "head_dim": ("=hidden // heads",),
    "ffn": ("=4 * hidden",),
}


@dataclass(frozen=True)
class Facts:
    """Sizes that shapes give; None where they do not say."""

    dims: Mapping[str, int | None]
    transposed: bool


def read_facts(layout: Layout, roles: Roles, outer: Mapping[str, str], config: Mapping[str, Any]) -> Facts:
    """The dims of a checkpoint: from shapes, and from the config what shapes leave open."""
    modules, outside = layout.modules(), layout.outer_modules()

    def shape(slot: str) -> Shape:
        return modules.get(roles.slots.get(slot, ""), {}).get("weight")

    table = outside.get(outer.get("embed", ""), {}).get("weight")
    dims: dict[str, int | None] = dict.fromkeys(_DIM_KEYS)
    dims["layers"] = layout.num_layers
    if table is not None:
        dims["vocab"], dims["hidden"] = table
    positions = outside.get(outer.get("pos", ""), {}).get("weight")
    dims["pos_rows"] = positions[0] if positions else None
    hidden = dims["hidden"]
    transposed = _is_transposed(shape, hidden)
    rows = {slot: _rows(shape(slot), transposed) for slot in ("attn.q", "attn.k", "attn.qkv", "mlp.up", "mlp.gate_up")}
    heads = _of_config("heads", config)
    dims["heads"] = heads
    if rows["attn.q"] and rows["attn.k"] and heads:
        width = rows["attn.q"] // heads
        dims |= {"head_dim": width, "kv_heads": rows["attn.k"] // width}
    elif rows["attn.qkv"] and heads and (o := shape("attn.o")):
        total = o[0] if transposed else o[1]
        width = total // heads
        dims |= {"head_dim": width, "kv_heads": (rows["attn.qkv"] - total) // 2 // width}
    if up := rows["mlp.up"] or (rows["mlp.gate_up"] and rows["mlp.gate_up"] // 2):
        dims["ffn"] = up
    return Facts(dims, transposed)


def _is_transposed(shape: Any, hidden: int | None) -> bool:
    """Whether linear maps are stored [in, out]: a map from or to the residual shows it where it is not square."""
    for slot, into in (
        ("mlp.up", True),
        ("mlp.gate_up", True),
        ("attn.qkv", True),
        ("attn.q", True),
        ("mlp.down", False),
    ):
        each = shape(slot)
        if each and len(each) == 2 and each[0] != each[1] and hidden in each:
            return bool((each[0] == hidden) == into)
    return False


def _rows(shape: Shape, transposed: bool) -> int | None:
    if shape is None or len(shape) != 2:
        return None
    return shape[1] if transposed else shape[0]


def _of_config(dim: str, config: Mapping[str, Any]) -> int | None:
    found = (config.get(key) for key in _DIM_KEYS[dim])
    return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), None)


def dim_changes(sketch: Sketch, pool: Pool, facts: Facts) -> Iterator[Change]:
    """Dims that the parent reads otherwise, or not at all.   Applied one by one, since later ones use earlier ones."""
    names = sketch.names()
    for dim, truth in facts.dims.items():
        wanted = truth if truth is not None else _of_config(dim, sketch.config)
        raw = sketch.parent.tree["dims"].get(dim)
        if wanted is None or (evaluated(raw, names) == wanted and _reads(raw, names)):
            continue
        own = [f"=cfg.{key}" for key in _DIM_KEYS[dim]]
        options = [*pool.values.get(("dims", dim), ()), *own, *_DERIVED.get(dim, ())]
        right = [each for each in options if evaluated(each, names) == wanted]
        right.sort(key=lambda each: not _reads(each, names))
        value = right[0] if right else _same_number(sketch.config, wanted) or wanted
        names[dim] = wanted
        yield Change(
            ("dims", dim), value, f"{wanted}, by the shapes" if truth is not None else f"the config says {wanted}"
        )


def _reads(raw: Any, names: Mapping[str, Any]) -> bool:
    """Whether an expression reads a config key that is there, or none at all."""
    if not is_expression(raw):
        return False
    read = keys_read(raw, names)
    return not read or any(names["cfg"].values.get(key.split(".")[0]) is not None for key in read)


def _same_number(config: Mapping[str, Any], wanted: int) -> str | None:
    keys = [key for key, value in config.items() if value == wanted and type(value) is int]
    return f"=cfg.{keys[0]}" if len(keys) == 1 else None


def fixed_axes(layout: Layout, roles: Roles, outer: Mapping[str, str], experts: Experts | None) -> dict[Keys, Any]:
    """Axes that names, and the flow of data where HF ran, decide."""
    modules, outside = layout.modules(), layout.outer_modules()

    def has_bias(*slots: str) -> bool:
        return any("bias" in modules.get(roles.slots.get(slot, ""), {}) for slot in slots)

    found: dict[Keys, Any] = {
        ("block", "attn", "bias_qkv"): has_bias("attn.q", "attn.qkv", "attn.v"),
        ("block", "attn", "bias_o"): has_bias("attn.o"),
        ("embed", "positions"): "learned" if "pos" in outer else "none",
        ("embed", "norm"): "embed_norm" in outer,
        ("head", "tied"): "head" not in outer,
        ("head", "bias"): "bias" in outside.get(outer.get("head", ""), {}),
        ("final_norm",): "final_norm" in outer,
    }
    if "mlp.down" in roles.slots:
        found["block", "mlp", "bias"] = has_bias("mlp.up", "mlp.down", "mlp.gate_up")
        found["block", "mlp", "gated"] = "mlp.gate" in roles.slots or "mlp.gate_up" in roles.slots
    for fact, value in roles.facts.items():
        if fact == "topology" or fact.partition(".")[2] in {**Attention.model_fields, **Mlp.model_fields}:
            found["block", *fact.split(".")] = value
    if "attn.q_norm" not in roles.slots:
        found["block", "attn", "qk_norm"] = None
    if experts is None:
        found["block", "moe"] = None
    else:
        found["block", "moe", "experts"], found["block", "moe", "ffn"] = experts.count, experts.ffn
        found["block", "moe", "bias"] = experts.bias
        found["block", "moe", "router", "correction"] = "moe.correction" in experts.rules
        router = modules.get(str(experts.rules.get("moe.router")), {})
        found["block", "moe", "router", "bias"] = "bias" in router
    return found


def axis_changes(sketch: Sketch, pool: Pool, fixed: Mapping[Keys, Any]) -> Iterator[Change]:
    """The axes that the parent has otherwise."""
    names = sketch.names()
    for keys, truth in fixed.items():
        raw = _at(sketch, keys)
        if truth is None:
            if raw is not None and not (isinstance(raw, Map) and "_if" in raw and not evaluated(raw["_if"], names)):
                yield Change(keys, None, "no such tensor")
            continue
        if evaluated(raw, names) == truth and (not is_expression(raw) or _reads_present(raw, names)):
            continue
        options = [
            each for each in pool.values.get(keys, ()) if is_expression(each) and evaluated(each, names) == truth
        ]
        fitting = [each for each in options if _reads_present(each, names) and _turns(each, names, truth)]
        value = fitting[0] if fitting else truth
        if raw != value and not (evaluated(raw, names) == truth and not fitting):
            yield Change(
                keys, value, f"{_word(truth)}, by the tensors" if keys[-1] != "topology" else "by the flow of data"
            )


def _reads_present(raw: Any, names: Mapping[str, Any]) -> bool:
    return any(names["cfg"].values.get(key.split(".")[0]) is not None for key in keys_read(raw, names))


def _turns(raw: str, names: Mapping[str, Any], truth: Any) -> bool:
    """Whether the expression is about one key alone, and would say otherwise were the key otherwise."""
    return len({key.split(".")[0] for key in keys_read(raw, names)}) == 1 and isinstance(ast.parse(raw[1:]), ast.Module)


def _word(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _at(sketch: Sketch, keys: Keys) -> Any:
    node: Any = sketch.parent.tree
    for change in sketch.changes:
        if change.keys == keys:
            return change.value
    for key in keys:
        node = node.get(key) if isinstance(node, Map) else None
    return node


def expert_changes(sketch: Sketch, pool: Pool, experts: Experts) -> Iterator[Change]:
    """Rules of experts that the parent has otherwise, and an expert for every token, where there is one."""
    table, names = sketch.parent.tree["weights"]["block"], sketch.names()
    for slot, rule in experts.rules.items():
        source = _first(as_map(rule))
        if _first(table.get(slot)) != source:
            yield Change(("weights", "block", slot), as_map(rule), "by the names")
    if experts.shared_ffn is None:
        yield Change(("block", "moe", "shared"), None, "no such tensors")
        return
    options = [
        each
        for each in pool.values.get(("block", "moe", "shared", "ffn"), ())
        if evaluated(each, names) == experts.shared_ffn
    ]
    value = {"ffn": options[0] if options else experts.shared_ffn, "gate": "sigmoid" if experts.shared_gate else "none"}
    yield Change(("block", "moe", "shared"), value, "by the tensors")


def rule_changes(
    sketch: Sketch, layout: Layout, roles: Roles, outer: Mapping[str, str], transposed: bool
) -> Iterator[Change]:
    """The weight table: rules that the parent lacks or has otherwise."""
    table = sketch.parent.tree["weights"]
    if table["layer"] != layout.layer:
        yield Change(("weights", "layer"), layout.layer, "by the names")
    for slot, module in outer.items():
        if _first(table["globals"].get(slot)) != module:
            yield Change(("weights", "globals", slot), module, "by name")
    fused = {"attn.qkv": ["q", "k", "v"], "mlp.gate_up": ["gate", "up"]}
    for slot, module in roles.slots.items():
        old, linear = table["block"].get(slot), slot in _LINEAR
        is_transposed = bool(isinstance(old, Map) and old.get("transpose"))
        if _first(old) == module and (not linear or is_transposed == transposed):
            continue
        order = list(old["order"]) if isinstance(old, Map) and "order" in old else fused.get(slot)
        rule = {
            "src": module,
            **({"transpose": True} if linear and transposed else {}),
            **({"order": order} if order else {}),
        }
        if isinstance(old, Map) and "groups" in old:
            rule["groups"] = old["groups"]
        yield Change(("weights", "block", slot), as_map(rule) if len(rule) > 1 else module, "by the tensors")
    for whole, parts in (("attn.qkv", ("attn.q",)), ("mlp.gate_up", ("mlp.gate",))):
        if table["block"].get(whole) is not None and whole not in roles.slots and any(p in roles.slots for p in parts):
            yield Change(("weights", "block", whole), None, "not fused")


_LINEAR = ("attn.q", "attn.k", "attn.v", "attn.qkv", "attn.o", "mlp.gate", "mlp.up", "mlp.gate_up", "mlp.down")


def _first(rule: Any) -> Any:
    source = rule.get("src") if isinstance(rule, Map) else rule
    return source[0] if isinstance(source, list) and source else source
