"""The blueprint: a spec resolved against a config, explicit for each layer, no expression left.

It is all that the builder of models sees.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

from porter.specs.kinds import ACTIVATION_TENSORS, Slot, Strict
from porter.specs.moe import Moe
from porter.specs.plugins import Plugin, plugin_of
from porter.specs.rules import Weights
from porter.specs.schema import Block, Dims, Embed, Head, Norm, Tokenizer


class Blueprint(Strict):
    """One model, fully explicit.

    `weights` and `tokenizer` say where weights lie and what the tokenizer does; the other fields say what is computed.
    """

    family: str
    model_type: str
    architecture: str
    dims: Dims
    embed: Embed
    norm: Norm
    blocks: tuple[Block, ...]
    final_norm: bool
    head: Head
    weights: Weights
    tokenizer: Tokenizer

    @property
    def hash(self) -> str:
        """sha256 of the blueprint, in hex; two specs with the same hash compute the same."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()

    @property
    def embed_width(self) -> int:
        """Columns of the tables of tokens, into the model and out of it."""
        return self.embed.width or self.dims.hidden

    def parameters(self) -> dict[str, "Parameter"]:
        """Every parameter by name, in the order of the forward pass."""
        return {parameter.name: parameter for parameter in _parameters(self)}

    def stays_fp32(self, parameter: str) -> bool:
        """Whether a parameter is float32 in a narrower model, too."""
        module = parameter.rpartition(".")[0]
        return (module.split(".", 2)[2] if module.startswith("layers.") else module) in self.weights.keep_fp32

    @property
    def num_parameters(self) -> int:
        """Elements over all parameters, HF's buffers left out; a tied head counts once, with the embedding."""
        return sum(each.num_elements for each in self.parameters().values() if each.kind != "buffer")


@dataclass(frozen=True)
class Parameter:
    """A tensor of the model: `layers.3.attn.q.weight`; linear weights are [out, in], those of experts [E, out, in]."""

    name: str
    shape: tuple[int, ...]
    kind: str  # embedding, linear, norm, bias, correction, activation, buffer
    slot: Slot | None = None  # of an activation's tensor

    @property
    def num_elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def module(self) -> str:
        """The name without its last part: .weight, .bias, or that of an activation's tensor."""
        return self.name.rpartition(".")[0]


def projections(block: Block, dims: Dims, rules: Weights) -> dict[str, tuple[int, int, bool]]:
    """The linear maps of a layer: name -> (out, in, bias); fused where the checkpoint fuses them."""
    mlp, maps = block.mlp, _projections_of_attention(block, dims, rules)
    if block.moe is not None:
        return {**maps, **_projections_beside_experts(block.moe, dims, rules)}
    if mlp.gated and "mlp.gate_up" in rules.block:
        maps["mlp.gate_up"] = (2 * dims.ffn, dims.hidden, mlp.bias)
    else:
        if mlp.gated:
            maps["mlp.gate"] = (dims.ffn, dims.hidden, mlp.bias)
        maps["mlp.up"] = (dims.ffn, dims.hidden, mlp.bias)
    maps["mlp.down"] = (dims.hidden, dims.ffn, mlp.bias)
    return maps


def _projections_of_attention(block: Block, dims: Dims, rules: Weights) -> dict[str, tuple[int, int, bool]]:
    if (mixer := mixer_of(block)) is not None:
        found: dict[str, tuple[int, int, bool]] = mixer.projections(block.mixer, block, dims)
        return found
    width, kv_width, bias = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim, block.attn.bias_qkv
    if "attn.qkv" in rules.block:
        maps = {"attn.qkv": (width + 2 * kv_width, dims.hidden, bias)}
    else:
        maps = {"attn.q": (width, dims.hidden, bias)}
        maps["attn.k"] = maps["attn.v"] = (kv_width, dims.hidden, bias)
    maps["attn.o"] = (dims.hidden, width, block.attn.bias_o)
    return maps


def mixer_of(block: Block) -> Plugin | None:
    """What takes the place of attention in a layer; None: attention itself."""
    if block.mixer is None:
        return None
    plugin = plugin_of("mixer", block.mixer.kind)
    assert plugin is not None  # it was there when the block was made
    return plugin


def _projections_beside_experts(moe: Moe, dims: Dims, rules: Weights) -> dict[str, tuple[int, int, bool]]:
    maps = {"moe.router": (moe.experts, dims.hidden, moe.router.bias)}
    if moe.shared is None:
        return maps
    if "moe.shared.gate_up" in rules.block:
        maps["moe.shared.gate_up"] = (2 * moe.shared.ffn, dims.hidden, False)
    else:
        maps["moe.shared.gate"] = maps["moe.shared.up"] = (moe.shared.ffn, dims.hidden, False)
    maps["moe.shared.down"] = (dims.hidden, moe.shared.ffn, False)
    if moe.shared.gate == "sigmoid":
        maps["moe.shared_gate"] = (1, dims.hidden, False)
    return maps


def experts(block: Block, dims: Dims, rules: Weights) -> dict[str, tuple[int, int, int, bool]]:
    """The stacked linear maps of a layer's experts: name -> (experts, out, in, bias)."""
    moe = block.moe
    if moe is None:
        return {}
    maps = {"moe.gate_up": (moe.experts, 2 * moe.ffn, dims.hidden, moe.bias)}
    if "moe.gate_up" not in rules.block:
        maps = dict.fromkeys(("moe.gate", "moe.up"), (moe.experts, moe.ffn, dims.hidden, moe.bias))
    maps["moe.down"] = (moe.experts, dims.hidden, moe.ffn, moe.bias)
    return maps


def vectors(block: Block, dims: Dims) -> dict[str, tuple[int, str]]:
    """Other tensors of a layer, one number for each head or expert: name -> (how many, kind)."""
    found = {}
    if block.attn.sinks is not None:
        found["attn.sinks"] = (dims.heads, "bias")
    if block.moe is not None and block.moe.router.correction:
        found["moe.correction"] = (block.moe.experts, "correction")
    return found


def activation_tensors(block: Block) -> dict[str, Slot]:
    """The tensors of the feed-forward branch's activation: mlp.act.alpha_p -> its slot."""
    slots = {} if block.moe else ACTIVATION_TENSORS.get(block.mlp.act, {})
    return {f"mlp.act.{name}": slot for name, slot in slots.items()}


def norms(block: Block, norm: Norm, dims: Dims) -> dict[str, tuple[Norm, tuple[int, ...]]]:
    """The norms of a layer: name -> (the norm, the shape of its weight, or of what would be)."""
    found: dict[str, tuple[Norm, tuple[int, ...]]] = {}
    attn, mlp, width = block.attn, block.mlp, (dims.hidden,)
    if attn.pre_norm:
        found["attn.norm"] = (norm, width)
    if (mixer := mixer_of(block)) is not None:
        found |= mixer.norms(block.mixer, norm, dims)
    if attn.qk_norm:
        for name, heads in (("attn.q_norm", dims.heads), ("attn.k_norm", dims.kv_heads)):
            full, own = attn.qk_norm.over == "full", attn.qk_norm.weight_per_head
            shape = (heads * dims.head_dim,) if full else (heads, dims.head_dim) if own else (dims.head_dim,)
            found[name] = (attn.qk_norm, shape)
    if attn.inner_norm:
        found["attn.inner_norm"] = (norm, (dims.heads * dims.head_dim,))
    if attn.post_norm:
        found["attn.post_norm"] = (norm, width)
    if attn.after_norm:
        found["attn.after_norm"] = (norm, width)
    if mlp.pre_norm is True:
        found["mlp.norm"] = (norm, width)
    if mlp.inner_norm:
        found["mlp.inner_norm"] = (norm, (dims.ffn,))
    if mlp.post_norm:
        found["mlp.post_norm"] = (norm, width)
    if mlp.after_norm:
        found["mlp.after_norm"] = (norm, width)
    return found


def _parameters(blueprint: Blueprint) -> Iterator[Parameter]:
    dims, norm, columns = blueprint.dims, blueprint.norm, blueprint.embed_width
    yield Parameter("embed.weight", (dims.vocab, columns), "embedding")
    if columns != dims.hidden:
        yield Parameter("project_in.weight", (dims.hidden, columns), "linear")
    if blueprint.embed.positions == "learned":
        yield Parameter("pos.weight", (dims.pos_rows, dims.hidden), "embedding")
    if blueprint.embed.norm:
        yield from _norm_parameters("embed_norm", norm, (dims.hidden,))
    for i, block in enumerate(blueprint.blocks):
        for name, (each, shape) in norms(block, norm, dims).items():
            yield from _norm_parameters(f"layers.{i}.{name}", each, shape)
        for name, (out, into, bias) in projections(block, dims, blueprint.weights).items():
            yield Parameter(f"layers.{i}.{name}.weight", (out, into), "linear")
            if bias:
                yield Parameter(f"layers.{i}.{name}.bias", (out,), "bias")
        for name, (count, out, into, bias) in experts(block, dims, blueprint.weights).items():
            yield Parameter(f"layers.{i}.{name}.weight", (count, out, into), "linear")
            if bias:
                yield Parameter(f"layers.{i}.{name}.bias", (count, out), "bias")
        for name, (count, kind) in vectors(block, dims).items():
            yield Parameter(f"layers.{i}.{name}.weight", (count,), kind)
        for name, slot in activation_tensors(block).items():
            yield Parameter(f"layers.{i}.{name}", slot.shape, "activation" if slot.trained else "buffer", slot)
    if blueprint.final_norm:
        yield from _norm_parameters("final_norm", norm, (dims.hidden,))
    if columns != dims.hidden:
        yield Parameter("project_out.weight", (columns, dims.hidden), "linear")
    if not blueprint.head.tied:
        yield Parameter("head.weight", (dims.vocab, columns), "linear")
    if blueprint.head.bias:
        yield Parameter("head.bias", (dims.vocab,), "bias")


def _norm_parameters(name: str, norm: Norm, shape: tuple[int, ...]) -> Iterator[Parameter]:
    if norm.affine:
        yield Parameter(f"{name}.weight", shape, "norm")
    if norm.bias:
        yield Parameter(f"{name}.bias", shape, "bias")
