"""The axes of a blueprint: what each holds, and a plausible other value, the mistake a port would make."""

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

from porter.specs.blueprint import Blueprint
from porter.specs.kinds import Strict
from porter.specs.moe import Moe
from porter.specs.schema import Block

SWAPS: dict[str, dict[Any, Any]] = {
    "mlp.act": {"gelu": "gelu_tanh", "gelu_tanh": "gelu", "gelu_new": "gelu", "gelu_bloom": "gelu", "silu": "gelu",
                "relu": "relu2", "relu2": "relu", "quick_gelu": "gelu", "xielu": "silu"},
    "rope.style": {"half": "interleaved", "interleaved": "half"},
    "attn.qk_norm.when": {"before_rope": "after_rope", "after_rope": "before_rope"},
    "attn.scale_on": {"scores": "query", "query": "scores", "product": "scores"},
    "positions": {"sinusoidal": "sinusoidal_closed", "sinusoidal_closed": "sinusoidal"},
    "linear_bias": {"fused": "separate", "separate": "fused"},
    "alibi.kind": {"bloom": "mpt", "mpt": "bloom"},
    "add_order": {"residual_first": "branches_first", "branches_first": "residual_first"},
    "scale_rounding": {"act": "none", "none": "act"},
    "math": {"cast_then_scale": "scale_then_cast", "scale_then_cast": "cast_then_scale"},
    "dtype": {"act": "fp32", "fp32": "act"},
    "router.score": {"softmax": "sigmoid", "sigmoid": "softmax"},
    "router.order": {"score_then_topk": "topk_then_score", "topk_then_score": "score_then_topk"},
}  # fmt: skip

_ROUNDING = ("dtype", "add_order", "math", "scale_rounding", "scale_on", "sorted", "alibi.kind", "linear_bias")


@dataclass(frozen=True)
class Change:
    """One axis changed: the blueprint with the other value, and the layer (or None) where to look for it."""

    path: str
    value: Any
    tried: Any
    blueprint: Blueprint
    layer: int | None
    rounding: bool  # changes rounding only, so float32 cannot show it

    @property
    def unit(self) -> str:
        """Where it acts: embed, layers.3 or head."""
        if self.layer is not None:
            return f"layers.{self.layer}"
        return "embed" if self.path.startswith("embed.") else "head"


def changes(blueprint: Blueprint, among: Container[int] | None = None) -> Iterator[Change]:
    """Each axis the blueprint has, changed to a value that a wrong port would have.

    Axes of blocks are tried on the first layer of each kind of layer, and listed once for each value.

    Args:
        among: the layers to choose from, where they hold one of the kind; None: all.
    """
    layers = first_of_each_kind(blueprint, among)
    if among is not None:
        layers.sort(key=lambda layer: layer not in among)  # a value that two kinds share is tried where it can be
    yield from _embed_changes(blueprint)
    yield from _norm_changes(blueprint, layers[0])
    seen: set[tuple[str, Any]] = set()
    for layer in layers:
        for path, value, tried in _block_changes(blueprint.blocks[layer]):
            if (path, value) not in seen:
                seen.add((path, value))
                block = _replace(blueprint.blocks[layer], path.split("."), tried)
                blocks = (*blueprint.blocks[:layer], block, *blueprint.blocks[layer + 1 :])
                changed = blueprint.model_copy(update={"blocks": blocks})
                yield Change(f"block.{path}", value, tried, changed, layer, _is_rounding(path))
    yield from _head_changes(blueprint)


def first_of_each_kind(blueprint: Blueprint, among: Container[int] | None = None) -> list[int]:
    """The first layer of each distinct block, in order; of a kind that has layers `among` these, the first of them."""
    kinds: dict[str, list[int]] = {}
    for i, block in enumerate(blueprint.blocks):
        kinds.setdefault(block.model_dump_json(), []).append(i)
    if among is None:
        return [layers[0] for layers in kinds.values()]
    return [next((layer for layer in layers if layer in among), layers[0]) for layers in kinds.values()]


def _is_rounding(path: str) -> bool:
    return path.endswith(_ROUNDING)


def _embed_changes(blueprint: Blueprint) -> Iterator[Change]:
    embed = blueprint.embed
    tried: list[tuple[str, Any, Any]] = []
    if embed.scale is not None:
        tried.append(("scale", embed.scale, 1.0))
        tried.append(("scale_rounding", embed.scale_rounding, SWAPS["scale_rounding"][embed.scale_rounding]))
    if embed.positions.startswith("sinusoidal"):
        tried.append(("positions", embed.positions, SWAPS["positions"][embed.positions]))
    if embed.pos_offset:
        tried.append(("pos_offset", embed.pos_offset, 0))
    if embed.norm:
        tried.append(("norm", True, False))
    for name, value, other in tried:
        changed = blueprint.model_copy(update={"embed": embed.model_copy(update={name: other})})
        yield Change(f"embed.{name}", value, other, changed, None, _is_rounding(name))


def _head_changes(blueprint: Blueprint) -> Iterator[Change]:
    for name, neutral in (("softcap", None), ("mul", 1.0), ("div", 1.0)):
        value = getattr(blueprint.head, name)
        if value != neutral:
            head = blueprint.head.model_copy(update={name: neutral})
            changed = blueprint.model_copy(update={"head": head})
            yield Change(f"head.{name}", value, neutral, changed, None, False)


def _norm_changes(blueprint: Blueprint, layer: int) -> Iterator[Change]:
    norm = blueprint.norm
    tried: list[tuple[str, Any, Any]] = [("eps", norm.eps, norm.eps * 10)]
    if norm.affine:
        tried.append(("offset", norm.offset, 1 - norm.offset))
    if norm.kind == "rms" and norm.affine:
        tried.append(("math", norm.math, SWAPS["math"][norm.math]))
    elif norm.kind == "layernorm" and norm.math != "fused":
        tried.append(("math", norm.math, "fused"))
    for name, value, other in tried:
        changed_norm = norm.model_copy(update={name: other})
        blocks = tuple(_with_qk_norm(block, name, value, other) for block in blueprint.blocks)
        changed = blueprint.model_copy(update={"norm": changed_norm, "blocks": blocks})
        yield Change(f"norm.{name}", value, other, changed, layer, _is_rounding(name))


def _with_qk_norm(block: Block, name: str, value: Any, other: Any) -> Block:
    qk_norm = block.attn.qk_norm
    if qk_norm is None or getattr(qk_norm, name) != value:
        return block
    changed: Block = _replace(block, ["attn", "qk_norm", name], other)
    return changed


def _block_changes(block: Block) -> Iterator[tuple[str, Any, Any]]:
    attn, rope, mlp = block.attn, block.rope, block.mlp
    yield "attn.scale", attn.scale, attn.scale * 1.05
    if attn.scale != 1.0:
        yield "attn.scale_on", attn.scale_on, SWAPS["attn.scale_on"][attn.scale_on]
    if attn.inner_norm:
        yield "attn.inner_norm", True, False
    if attn.after_norm:
        yield "attn.after_norm", True, False
    if attn.window is not None:
        yield "attn.window", attn.window, attn.window + 1
    if attn.softcap is not None:
        yield "attn.softcap", attn.softcap, None
    if attn.temperature is not None:
        yield "attn.temperature", attn.temperature.beta, None
        yield "attn.temperature.base", attn.temperature.base, attn.temperature.base + 1
    if attn.clip_qkv is not None:
        yield "attn.clip_qkv", attn.clip_qkv, None
    if attn.qk_norm is not None and rope is not None:
        yield "attn.qk_norm.when", attn.qk_norm.when, SWAPS["attn.qk_norm.when"][attn.qk_norm.when]
    if rope is not None:
        yield "rope.theta", rope.theta, rope.theta * 1.02
        yield "rope.style", rope.style, SWAPS["rope.style"][rope.style]
        if rope.negate:
            yield "rope.negate", True, False
        if rope.partial != 1.0 and rope.dim is None:
            yield "rope.partial", rope.partial, 1.0
        if rope.scaling is not None and rope.scaling.rope_type != "default":
            yield "rope.scaling", rope.scaling.rope_type, None
        for name in ("inv_freq_dtype", "pos_dtype", "table_dtype", "apply_dtype"):
            yield f"rope.{name}", getattr(rope, name), SWAPS["dtype"][getattr(rope, name)]
    if attn.bias_qkv or attn.bias_o or mlp.bias:
        yield "linear_bias", block.linear_bias, SWAPS["linear_bias"][block.linear_bias]
    if block.alibi is not None:
        yield "alibi", block.alibi.kind, None
        yield "alibi.kind", block.alibi.kind, SWAPS["alibi.kind"][block.alibi.kind]
    if block.topology == "parallel":
        yield "add_order", block.add_order, SWAPS["add_order"][block.add_order]
        if mlp.pre_norm == "shared":
            yield "mlp.pre_norm", mlp.pre_norm, False
        elif mlp.pre_norm is not True or attn.pre_norm:
            yield "topology", block.topology, "sequential"
    if block.moe is None:
        yield "mlp.act", mlp.act, SWAPS["mlp.act"].get(mlp.act, "silu")
    else:
        yield from _moe_changes(block.moe)
    if mlp.inner_norm:
        yield "mlp.inner_norm", True, False
    if mlp.after_norm:
        yield "mlp.after_norm", True, False
    if block.residual_scale != 1.0:
        yield "residual_scale", block.residual_scale, 1.0


def _moe_changes(moe: Moe) -> Iterator[tuple[str, Any, Any]]:
    """Of the experts and their router; what has no value that needs other tensors."""
    router = moe.router
    if moe.alpha is None:
        yield "moe.act", moe.act, SWAPS["mlp.act"][moe.act]
    for name, neutral in (("alpha", None), ("limit", None), ("up_offset", 0.0)):
        if getattr(moe, name) != neutral:
            yield f"moe.{name}", getattr(moe, name), neutral
    if moe.shared is not None and moe.shared.gate == "sigmoid":
        yield "moe.shared.gate", "sigmoid", "none"
    for name in ("score", "order"):
        yield f"moe.router.{name}", getattr(router, name), SWAPS[f"router.{name}"][getattr(router, name)]
    if router.order == "score_then_topk" or router.score == "sigmoid":  # else the weights have the sum of one already
        yield "moe.router.renorm", router.renorm, not router.renorm
    for name, neutral in (("scale", 1.0), ("correction", False)):
        if getattr(router, name) != neutral:
            yield f"moe.router.{name}", getattr(router, name), neutral
    if router.groups is not None:
        yield "moe.router.groups", f"{router.groups.top} of {router.groups.n}", None
    for name in ("dtype", "score_dtype", "weights_dtype"):
        yield f"moe.router.{name}", getattr(router, name), SWAPS["dtype"][getattr(router, name)]
    yield "moe.router.sorted", router.sorted, not router.sorted


def _replace(model: Any, path: list[str], value: Any) -> Any:
    inner = value if len(path) == 1 else _replace(getattr(model, path[0]), path[1:], value)
    assert isinstance(model, Strict)
    return model.model_copy(update={path[0]: inner})
