"""Changes that only together make sense: a norm, a rotation, a router, whole, as configs and families have it."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import permutations, product
from typing import Any, get_args

from porter.explanation.draft.pool import Keys, Pool
from porter.explanation.draft.sketch import Change, Sketch, as_map, evaluated, numbers_of
from porter.specs.rules import WeightRule
from porter.specs.schema import Block
from porter.specs.tree import Map

Move = tuple[Change, ...]
_WHY = "HF's bits agree with it"
_THETAS = (10000.0, 500000.0, 1000000.0)
_NORMS = (("rms", "cast_then_scale"), ("rms", "scale_then_cast"), ("layernorm", "fused"), ("layernorm", "fused_fp32"),
          ("layernorm", "scale_then_cast"))  # fmt: skip


def norms(sketch: Sketch, fixed: Mapping[Keys, Any]) -> Iterator[Move]:
    """Every kind of norm with every eps that the config has, and usual ones; weights and biases as the tensors say."""
    named = [f"=cfg.{path}" for path, value in numbers_of(sketch.config) if "eps" in path and isinstance(value, float)]
    affine, bias = fixed.get(("norm", "affine"), True), fixed.get(("norm", "bias"), False)
    for (kind, math), eps, offset in product(_NORMS, (*named, 1e-5, 1e-6), (0, 1) if affine else (0,)):
        value = {"kind": kind, "eps": eps, "offset": offset, "affine": affine, "bias": bias, "math": math}
        if not (bias and kind == "rms"):
            yield (Change(("norm",), as_map(value), _WHY),)


def embeds(sketch: Sketch, fixed: Mapping[Keys, Any]) -> Iterator[Move]:
    """Every factor on the embedding, with every way of adding positions that needs no table, or the table's offset."""
    named = [f"=cfg.{path}" for path, value in numbers_of(sketch.config)
             if isinstance(value, float) and ("mult" in path or "scal" in path)]  # fmt: skip
    tabled = fixed.get(("embed", "positions")) == "learned"
    ways = [("learned", offset) for offset in (0, 1, 2)] if tabled else [
        (kind, offset) for kind in ("none", "sinusoidal", "sinusoidal_closed") for offset in (0, 1, 2)
        if kind != "none" or not offset
    ]  # fmt: skip
    for (kind, offset), scale, rounding in product(ways, (None, "=sqrt(hidden)", *named), ("act", "none")):
        if scale is None and rounding == "none":
            continue
        yield tuple(Change(("embed", key), value, _WHY) for key, value in (
            ("positions", kind), ("pos_offset", offset), ("scale", scale), ("scale_rounding", rounding)))  # fmt: skip


def rotations(sketch: Sketch, pool: Pool) -> Iterator[Move]:
    """Every style, width and theta of a rotation, and none; with ALiBi where there is none."""
    names, config = sketch.names(), sketch.config
    rope = ("block", "rope")
    widths: list[tuple[str, Any]] = [("partial", 1.0)]
    widths += [("dim", f"=cfg.{path}") for path, value in numbers_of(config) if type(value) is int and "rot" in path]
    widths += [("partial", each) for each in pool.values.get((*rope, "partial"), ()) if _is_new(each, (1.0,), names)]
    thetas: dict[float, Any] = {}
    for each in (*pool.values.get((*rope, "theta"), ()), *_THETAS):
        value = evaluated(each, names)
        if isinstance(value, int | float):
            thetas.setdefault(float(value), each)
    shared = {"scaling": "=first(cfg.rope_parameters, cfg.rope_scaling)", "original_max_pos": None, "negate": False,
              "inv_freq_dtype": "fp32", "pos_dtype": "fp32", "table_dtype": "act", "apply_dtype": "act"}  # fmt: skip
    for style, (key, width), theta in product(("half", "interleaved"), _distinct(widths, names), thetas.values()):
        value = {"style": style, "theta": theta, "partial": 1.0, "dim": None, **shared, key: width}
        yield (Change(rope, as_map(value), _WHY), Change(("block", "alibi"), None, _WHY))
    for path, each in numbers_of(config):
        if isinstance(each, list) and "theta" in path and all(isinstance(theta, int | float) for theta in each):
            value = {"_if": f"=cfg.{path}[i] != 0", "style": "half", "theta": f"=cfg.{path}[i]", **shared}
            yield (Change(rope, as_map(value), _WHY),)
    yield from _temperatures(config)
    yield (Change(rope, None, _WHY), Change(("block", "alibi"), None, _WHY))
    for kind, where in product(("bloom", "mpt"), ("scores", "product")):
        yield (
            Change(rope, None, _WHY), Change(("block", "alibi"), as_map({"kind": kind}), _WHY),
            Change(("block", "attn", "scale_on"), where, _WHY),
        )  # fmt: skip


def _temperatures(config: Mapping[str, Any]) -> Iterator[Move]:
    """Growth of queries with their position, by the config's keys for how much, and from where on."""
    paths = [path for path, _ in numbers_of(config)]
    for beta in (path for path in paths if "beta" in path):
        for base in (path for path in paths if "original_max" in path):
            value = as_map({"beta": f"=cfg.{beta}", "base": f"=cfg.{base}"})
            yield (Change(("block", "attn", "temperature"), value, _WHY),)


def routers(sketch: Sketch) -> Iterator[Move]:
    """Every way of choosing experts, by the keys that the config has for it."""
    names, keys = sketch.names(), dict(numbers_of(sketch.config))
    old = sketch.family().tree["block"]["moe"]["router"]
    counts = [path for path in keys if any(word in path for word in ("n_group", "num_group", "n_expert_group"))]
    tops = [path for path in keys if "topk_group" in path]
    groups: list[dict[str, str] | None] = [None]
    groups += [
        {"n": f"=cfg.{n}", "top": f"=cfg.{top}", "by": by} for n in counts for top in tops for by in ("top2", "max")
    ]
    renorms: list[Any] = [True, False, *(f"=cfg.{key}" for key in sketch.config if "norm" in key and "topk" in key)]
    scales: list[Any] = [
        1.0,
        *(f"=cfg.{path}" for path, value in keys.items() if isinstance(value, float) and "scal" in path),
    ]
    choices = product(
        ("softmax", "sigmoid"), ("score_then_topk", "topk_then_score"), groups, renorms, _values(scales, names)
    )
    for score, order, group, renorm, scale in choices:
        value = {**old, "score": score, "order": order, "groups": group, "renorm": renorm, "scale": scale}
        yield (Change(("block", "moe", "router"), as_map(value), _WHY),)


def gates(sketch: Sketch) -> Iterator[Move]:
    """Every way that experts gate, and that their gate and up lie in one tensor."""
    keys = dict(numbers_of(sketch.config))
    alphas = [None, 1.702, *(f"=cfg.{path}" for path in keys if "alpha" in path)]
    limits = [None, 7.0, *(f"=cfg.{path}" for path in keys if "limit" in path)]
    rule = sketch.family().tree["weights"]["block"].get("moe.gate_up")
    moe = ("block", "moe")
    for alpha, limit, offset, lie in product(alphas, limits, (0.0, 1.0), [*_ways(rule)]):
        move = [
            Change((*moe, key), value, _WHY)
            for key, value in (("alpha", alpha), ("limit", limit), ("up_offset", offset))
        ]
        yield (
            *move,
            *([Change(("weights", "block", "moe.gate_up"), lie, "by the tensors; order by HF's bits")] if lie else []),
        )


def _ways(rule: Any) -> Iterator[Map | None]:
    if not isinstance(rule, Map) or "parts" in rule:
        yield None
        return
    for order, groups in product((["gate", "up"], ["up", "gate"]), ("1", "rows")):
        yield as_map({**rule, "order": order, "groups": groups})


def mixers(block: Block) -> Iterator[Change]:
    """Every other value of a mixer's closed parameters, one at a time."""
    for name, field in type(block.mixer).model_fields.items() if block.mixer is not None else ():
        kinds = [field.annotation, *get_args(field.annotation)]
        closed = (True, False) if bool in kinds else get_args(field.annotation)
        for value in closed:
            if isinstance(value, bool | str) and value != getattr(block.mixer, name):
                yield Change(("block", "mixer", name), value, _WHY)


def splits(rule: Map) -> Iterator[Move]:
    """Every order of a fused q, k and v, repeated as often as any rule may."""
    for order, group in product(permutations("qkv"), get_args(WeightRule.model_fields["groups"].annotation)):
        value = as_map({**rule, "order": list(order), "groups": group})
        yield (Change(("weights", "block", "attn.qkv"), value, "by the tensors; order and groups by HF's bits"),)


def _is_new(raw: Any, known: Iterable[Any], names: Mapping[str, Any]) -> bool:
    value = evaluated(raw, names)
    return value is not None and value not in known


def _values(raw: Iterable[Any], names: Mapping[str, Any]) -> list[Any]:
    """One of each value."""
    return list({evaluated(each, names): each for each in raw}.values())


def _distinct(widths: Iterable[tuple[str, Any]], names: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return list({(key, evaluated(raw, names)): (key, raw) for key, raw in reversed([*widths])}.values())
