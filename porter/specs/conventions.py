"""The conventions of a model in words, for people."""

from typing import Any

from porter.specs.blueprint import Blueprint
from porter.specs.schema import Block, Dims, Head, Norm, Tokenizer


def conventions(blueprint: Blueprint) -> list[tuple[str, str]]:
    """The conventions that ports forget, in words: (topic, what this model does)."""
    first, norm = blueprint.blocks[0], blueprint.norm
    windows = [block.attn.window for block in blueprint.blocks]
    rows: list[tuple[str, str]] = [("embedding", _embedding(blueprint)), ("norm", _norm(norm))]
    rows.append(("placement", _placement(first)))
    rows.append(("attention", _attention(first, blueprint.dims)))
    if any(windows):
        layers = sum(window is not None for window in windows)
        rows.append(("window", f"{max(filter(None, windows))} keys on {layers} of {len(windows)} layers"))
    if any(block.rope for block in blueprint.blocks):
        rows.append(("rope", _rope(blueprint)))
    act = first.mlp.act
    rows.append(("mlp", f"{act}{', gated' if first.mlp.gated else ''}{', biases' if first.mlp.bias else ''}"))
    rows.append(("head", _head(blueprint.head)))
    rows.append(("tokenizer", _tokenizer(blueprint.tokenizer)))
    return rows


def _embedding(blueprint: Blueprint) -> str:
    embed = blueprint.embed
    scale = "" if embed.scale is None else f"× {embed.scale:g} ({'rounded to the activations' if embed.scale_rounding == 'act' else 'not rounded'})"  # fmt: skip  # noqa: E501
    parts = [scale, _positions(blueprint), "norm after" if embed.norm else ""]
    if blueprint.embed_width != blueprint.dims.hidden:
        parts.append(f"{blueprint.embed_width} wide, projected in and out")
    return ", ".join(part for part in parts if part) or "plain"


def _positions(blueprint: Blueprint) -> str:
    offset = blueprint.embed.pos_offset
    past = f", {offset} rows skipped" if offset else ""
    kind = {"sinusoidal_closed": "sinusoidal"}.get(blueprint.embed.positions, blueprint.embed.positions)
    return "" if kind == "none" else f"+ {kind} positions{past}"


def _norm(norm: Norm) -> str:
    weight = {True: "1 + weight" if norm.offset else "weight", False: "no weight"}[norm.affine]
    return f"{norm.kind}, eps {norm.eps:g}, {weight}, {norm.math}{', bias' if norm.bias else ''}"


def _placement(block: Block) -> str:
    sides = {(True, False): "pre", (True, True): "pre and post", (False, True): "post", (False, False): "none"}
    inner = ", norms within the branches" if block.attn.inner_norm or block.mlp.inner_norm else ""
    after = ", norms after the sums" if block.attn.after_norm or block.mlp.after_norm else ""
    shared = ", one norm shared" if block.mlp.pre_norm == "shared" else ""
    order = ", (attn + mlp) + x" if block.add_order == "branches_first" else ", (x + attn) + mlp"
    scale = f", branches × {block.residual_scale:g}" if block.residual_scale != 1 else ""
    order = order if block.topology == "parallel" else ""
    return f"{block.topology}, {sides[block.attn.pre_norm, block.attn.post_norm]}{inner}{after}{shared}{order}{scale}"


def _rope(blueprint: Blueprint) -> str:
    ropes = [block.rope for block in blueprint.blocks if block.rope]
    first = ropes[0]
    parts = [first.style, f"theta {' and '.join(f'{theta:g}' for theta in sorted({rope.theta for rope in ropes}))}"]
    if first.dim is not None or first.partial != 1:
        parts.append(f"{first.dim or f'{first.partial:g}'} of each head's width")
    scalings = {rope.scaling for rope in ropes if rope.scaling}
    parts += sorted(
        f"{scaling.rope_type} scaling{f' × {scaling.factor:g}' if scaling.factor else ''}" for scaling in scalings
    )
    if (without := len(blueprint.blocks) - len(ropes)) > 0:
        parts.append(f"none on {without} of {len(blueprint.blocks)} layers")
    parts += [f"tables in {first.table_dtype}", f"applied in {first.apply_dtype}", f"positions {first.pos_dtype}"]
    return ", ".join(parts)


def _attention(block: Block, dims: Dims) -> str:
    attn = block.attn
    parts = [f"{dims.heads} heads on {dims.kv_heads} of {dims.head_dim}", f"scale {attn.scale:.6g} on {attn.scale_on}"]
    if attn.qk_norm:
        over = "per head" if attn.qk_norm.over == "head" else "over the full width"
        over += " with weights of its own" if attn.qk_norm.weight_per_head else ""
        parts.append(f"qk-norm {over} {attn.qk_norm.when.replace('_', ' ')}")
    if block.alibi:
        parts.append(f"ALiBi as {block.alibi.kind} has it")
    if attn.temperature:
        growth = f"1 + {attn.temperature.beta:g} log(1 + floor(position / {attn.temperature.base}))"
        parts.append(f"queries × {growth}")
    if attn.softcap:
        parts.append(f"softcap {attn.softcap:g}")
    if attn.bias_qkv or attn.bias_o:
        parts.append(f"biases on {', '.join('qkv' * attn.bias_qkv + 'o' * attn.bias_o)}")
    return ", ".join(parts)


def _head(head: Head) -> str:
    parts = ["tied" if head.tied else "untied", "bias" if head.bias else ""]
    parts.append(f"× {head.mul:g}" if head.mul != 1 else f"÷ {head.div:g}" if head.div != 1 else "")
    parts.append(f"softcap {head.softcap:g}" if head.softcap else "")
    return ", ".join(part for part in parts if part)


def _tokenizer(tokenizer: Tokenizer) -> str:
    known: dict[str, Any] = {k: v for k, v in tokenizer.model_dump().items() if v is not None}
    if not known:
        return "not checked"
    bos = {True: f"BOS {tokenizer.bos_id} first", False: "no BOS", None: f"bos {tokenizer.bos_id}"}[tokenizer.add_bos]
    eos = f"eos {', '.join(map(str, tokenizer.eos_ids))}" if tokenizer.eos_ids else ""
    return ", ".join(
        part for part in (bos, eos, f"pad {tokenizer.pad_id}" if tokenizer.pad_id is not None else "") if part
    )
