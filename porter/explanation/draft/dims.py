"""Sizes that shapes give, and the config where they do not say: which key a spec reads for each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from porter.explanation.draft.layout import Layout, Shape
from porter.explanation.draft.pool import Pool
from porter.explanation.draft.roles import Roles
from porter.explanation.draft.sketch import Change, Sketch, evaluated, keys_read, numbers_of
from porter.specs.expressions import is_expression

_DIM_KEYS = {  # dim -> names that configs have for it
    "vocab": ("vocab_size",), "hidden": ("hidden_size", "n_embd", "d_model", "dim", "embed_dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_key_value_groups", "kv_n_heads"),
    "head_dim": ("head_dim", "kv_channels"),
    "max_pos": ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"),
    "pos_rows": (), "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "inner_dim", "dff"),
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
    if "attn.kv_a" in roles.slots:
        known = {dim: each for dim, each in dims.items() if dim not in ("kv_heads", "head_dim")}  # the mixer says them
        return Facts({**known, "ffn": _up(rows)}, transposed)
    if rows["attn.q"] and rows["attn.k"] and heads:
        width = rows["attn.q"] // heads
        dims |= {"head_dim": width, "kv_heads": rows["attn.k"] // width}
    elif rows["attn.qkv"] and heads and (o := shape("attn.o")):
        total = o[0] if transposed else o[1]
        width = total // heads
        dims |= {"head_dim": width, "kv_heads": (rows["attn.qkv"] - total) // 2 // width}
    dims["ffn"] = _up(rows)
    return Facts(dims, transposed)


def _up(rows: Mapping[str, int | None]) -> int | None:
    return rows["mlp.up"] or (rows["mlp.gate_up"] and rows["mlp.gate_up"] // 2)


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
    numbers = {path.rpartition(".")[2]: value for path, value in numbers_of(config) if type(value) is int}
    return next((numbers[key] for key in _DIM_KEYS[dim] if key in numbers), None)


def heads_of(config: Mapping[str, Any]) -> int | None:
    """The heads of the queries, as the config says."""
    return _of_config("heads", config)


def dim_changes(sketch: Sketch, pool: Pool, facts: Facts) -> Iterator[Change]:
    """Dims that the parent reads otherwise, or not at all.   Applied one by one, since later ones use earlier ones."""
    names = sketch.names()
    for dim, truth in facts.dims.items():
        wanted = truth if truth is not None else _of_config(dim, sketch.config)
        raw = sketch.parent.tree["dims"].get(dim)
        if wanted is None or (evaluated(raw, names) == wanted and reads(raw, names)):
            continue
        own = [f"=cfg.{path}" for path, _ in numbers_of(sketch.config) if path.rpartition(".")[2] in _DIM_KEYS[dim]]
        options = [*pool.values.get(("dims", dim), ()), *own, *_DERIVED.get(dim, ())]
        right = [each for each in options if evaluated(each, names) == wanted]
        right.sort(key=lambda each: not reads(each, names))
        value = right[0] if right else _same_number(sketch.config, wanted) or wanted
        names[dim] = wanted
        yield Change(
            ("dims", dim), value, f"{wanted}, by the shapes" if truth is not None else f"the config says {wanted}"
        )


def reads(raw: Any, names: Mapping[str, Any]) -> bool:
    """Whether an expression reads a config key that is there, or none at all."""
    if not is_expression(raw):
        return False
    read = keys_read(raw, names)
    return not read or any(names["cfg"].values.get(key.split(".")[0]) is not None for key in read)


def _same_number(config: Mapping[str, Any], wanted: int) -> str | None:
    keys = [key for key, value in numbers_of(config) if value == wanted and type(value) is int]
    return f"=cfg.{keys[0]}" if len(keys) == 1 else None
