"""The layers of a model: which case of each pattern a layer takes, and the block that makes of it."""

from collections.abc import Mapping
from typing import Any

from porter.errors import SpecError, closest
from porter.specs.expressions import is_expression, mentions
from porter.specs.schema import Block, Dims, Norm, QKNorm
from porter.specs.tree import Map, locate, merge
from porter.specs.values import evaluate_map, validate, value_of

Cases = Mapping[str, tuple[str, ...]]  # pattern -> its case for each layer


def choose_cases(tree: Map, dims: Dims, names: Mapping[str, Any]) -> Cases:
    """The case of each pattern for each layer.

    Raises:
        SpecError: a pattern gives too few, too many or unknown ones.
    """
    patterns = {name: pattern for name, pattern in (tree.get("patterns") or {}).items() if pattern is not None}
    return {name: _choose(tree, name, pattern, dims.layers, names) for name, pattern in patterns.items()}


def _choose(tree: Map, name: str, pattern: Map, layers: int, names: Mapping[str, Any]) -> tuple[str, ...]:
    where = locate(tree, ("patterns", name, "by"))
    if not pattern.get("cases") or "by" not in pattern:
        raise SpecError(f"{where}: patterns.{name} lacks by or cases", "both", "Add them, or remove the pattern.")
    chosen = value_of(pattern["by"], names, where)
    if not isinstance(chosen, list) or len(chosen) != layers:
        count = len(chosen) if isinstance(chosen, list) else repr(chosen)
        raise SpecError(
            f"{where}: patterns.{name}.by gives {count} cases",
            f"one for each of the {layers} layers",
            "Use every, head, cycle, const or flags with `layers` as the length.",
        )
    for case in chosen:
        if not isinstance(case, str) or case not in pattern["cases"]:
            wrong = f"{where}: patterns.{name}.by names the case {case!r}"
            raise SpecError(wrong, closest(str(case), pattern["cases"]), "Add the case, or name one that is there.")
    return tuple(chosen)


def expand_layers(tree: Map, cases: Cases, dims: Dims, norm: Norm, names: Mapping[str, Any]) -> tuple[Block, ...]:
    """The block of every layer: `block` with the layer's cases merged onto it, evaluated.

    Raises:
        SpecError: a value is not allowed.
    """
    blocks = []
    made: dict[tuple[str, ...], Block] = {}
    for i in range(dims.layers):
        chosen = tuple(cases[name][i] for name in cases)
        if chosen not in made:
            merged = _merged(tree, cases, chosen)
            block = _block(tree, merged, norm, {**names, "i": i})
            if _mentions_layer(merged):
                blocks.append(block)
                continue
            made[chosen] = block
        blocks.append(made[chosen])
    return tuple(blocks)


def _merged(tree: Map, cases: Cases, chosen: tuple[str, ...]) -> Map:
    merged: Map = tree["block"]
    for name, case in zip(cases, chosen, strict=True):
        merged = merge(merged, tree["patterns"][name]["cases"][case] or Map())
    return merged


def _mentions_layer(value: Any) -> bool:
    if isinstance(value, Map):
        return any(map(_mentions_layer, value.values()))
    if isinstance(value, list):
        return any(map(_mentions_layer, value))
    return is_expression(value) and mentions(value, "i")


def _block(tree: Map, merged: Map, norm: Norm, names: Mapping[str, Any]) -> Block:
    where = Map()
    where.put("block", merged, tree.where.get("block"))
    values = evaluate_map(merged, names)
    qk_norm = (values.get("attn") or {}).get("qk_norm")
    if isinstance(qk_norm, dict):
        inherited = {**norm.model_dump(), **qk_norm}
        checked = validate(QKNorm, inherited, where, ("block", "attn", "qk_norm"))
        values["attn"]["qk_norm"] = checked.model_dump()
    return validate(Block, values, where, ("block",))


def check_rotated_width(tree: Map, block: Block, dims: Dims) -> None:
    """Refuses a rotation of an odd number of features, and longrope factors for another number of pairs."""
    if block.rope is None:
        return
    where, width = locate(tree, ("block", "rope")), block.rope.width(dims.head_dim)
    if width < 2 or width % 2 or width > dims.head_dim:
        raise SpecError(
            f"{where}: block.rope rotates {width} of the {dims.head_dim} features of a head",
            "pairs of features: an even number of them",
            "Correct block.rope.dim or block.rope.partial, or the config key it reads.",
        )
    for name in ("short_factor", "long_factor"):
        factors = getattr(block.rope.scaling, name, None)
        if factors is not None and len(factors) != width // 2:
            raise SpecError(
                f"{where}: block.rope.scaling.{name} has {len(factors)} numbers",
                f"{width // 2}, one for each pair of the {width} rotated features",
                "Correct rope_scaling in the config, or block.rope.partial.",
            )


def overriding_paths(tree: Map, cases: Cases, path: str) -> list[str]:
    """The paths of the cases that set the axis `path` of `block` again, among the cases that layers take."""
    section, *inner = path.split(".")
    found = []
    for name, chosen in cases.items() if section == "block" else ():
        for case in dict.fromkeys(chosen):
            node: Any = tree["patterns"][name]["cases"][case]
            for depth, key in enumerate(inner, start=1):
                if not isinstance(node, Map) or key not in node:
                    break
                node = node[key]
                if not isinstance(node, Map) or depth == len(inner):
                    found.append(f"patterns.{name}.cases.{case}.{'.'.join(inner[:depth])}")
                    break
    return found
