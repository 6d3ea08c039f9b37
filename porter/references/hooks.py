"""Where HF's modules show porter's nodes: derived from the weight rules, whose sources are the modules' paths."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from porter.models.attention import split_qkv
from porter.models.modules import split_gate_up
from porter.specs.blueprint import Blueprint, norms, projections
from porter.specs.ledger import place, rule_for, without_prefix

Split = Callable[[Tensor], dict[str, Tensor]]
Note = Callable[[Tensor, Split], None]  # (a tensor that the model computes with, the nodes that it is)
Modules = Mapping[str, nn.Module]
_CLIPPED = ("attn.q", "attn.k", "attn.v", "attn.qkv", "attn.q_norm", "attn.k_norm")  # what may be written to then


@dataclass(frozen=True)
class Hook:
    """Notes a module's input, or its output, as one or more nodes.

    Attributes:
        argument: which of the inputs.
        kept: the model goes on with a copy of the output, as it may write to it (OLMo clips so).
    """

    module: nn.Module
    of_input: bool
    split: Split
    argument: int = 0
    kept: bool = False

    def attach(self, note: Note) -> RemovableHandle:
        def see(value: Any) -> Tensor | None:
            note(value[0] if isinstance(value, tuple) else value, self._split_rows)
            return value.clone() if self.kept else None

        if self.of_input:
            return self.module.register_forward_pre_hook(lambda _module, args: see(args[self.argument]))
        return self.module.register_forward_hook(lambda _module, _args, out: see(out))

    def _split_rows(self, value: Tensor) -> dict[str, Tensor]:
        """The nodes; of a value whose tokens lie in a row, [T, …] as OPT's feed-forward has it, with the batch of 1."""
        return self.split(value[None] if value.ndim == 2 else value)


def modules_by_path(model: nn.Module, blueprint: Blueprint) -> Modules:
    """HF's modules by their paths in the checkpoint, without the prefix that the checkpoint may lack."""
    return {without_prefix(blueprint, path): module for path, module in model.named_modules()}


def hooks_of_layer(modules: Modules, blueprint: Blueprint, layer: int) -> list[Hook]:
    """The hooks of one layer; nodes come without the prefix layers.{i}."""
    hooks = []
    for name, of_input, split in _plan(blueprint, layer):
        module = find_module(modules, blueprint, f"layers.{layer}.{name}")
        if module is not None:
            clipped = blueprint.blocks[layer].attn.clip_qkv is not None and name in _CLIPPED
            hooks.append(Hook(module, of_input, split, kept=clipped))
    return [*hooks, *_hooks_of_experts(modules, blueprint, layer)]


def _hooks_of_experts(modules: Modules, blueprint: Blueprint, layer: int) -> list[Hook]:
    """On HF's module of all experts, which is given the tokens, their experts, and the weights of these; and on the
    module around it, where that adds the shared expert.
    """
    moe = blueprint.blocks[layer].moe
    if moe is None:
        return []
    rule, prefix = rule_for(blueprint, f"layers.{layer}.moe.down")
    for source in rule.src:
        before, named, _ = source.partition("experts")
        module = modules.get(without_prefix(blueprint, prefix + before + named)) if named else None
        if module is not None:
            found = [Hook(module, True, _tokens("moe.topk"), argument=2), Hook(module, False, _tokens("moe.out"))]
            around = modules[without_prefix(blueprint, prefix + before.rstrip("."))]
            shared = find_module(modules, blueprint, f"layers.{layer}.moe.shared.down") if moe.shared else None
            if shared is not None and shared in set(around.modules()):
                found.append(Hook(around, False, _tokens("mlp.out")))
            return found
    return []


def _widened(split: Split) -> Split:
    """In float32 at least: some of HF's routers show their logits before they widen them, some after."""
    return lambda value: split(value.to(torch.promote_types(value.dtype, torch.float32)))


def _tokens(node: str) -> Split:
    """A value of [N, …], as HF's modules within a mixture have it, or [1, N, …]."""
    return lambda value: {node: value.view(1, -1, value.shape[-1])}


def hooks_of_head(modules: Modules, blueprint: Blueprint) -> list[Hook]:
    """The hook on the final norm."""
    if not blueprint.final_norm:
        return []
    module = find_module(modules, blueprint, "final_norm")
    return [] if module is None else [Hook(module, False, lambda value: {"final.norm": value})]


def taps(blueprint: Blueprint) -> str:
    """What the hooks depend on, as text: two blueprints with the same note the same tensors under the same names."""
    plans = [[(name, of_input) for name, of_input, _ in _plan(blueprint, i)] for i in range(blueprint.dims.layers)]
    rules = (blueprint.dims.model_dump(mode="json"), blueprint.weights.model_dump(mode="json"), blueprint.final_norm)
    return json.dumps([plans, *rules], sort_keys=True)


def _plan(blueprint: Blueprint, layer: int) -> Iterator[tuple[str, bool, Split]]:
    """(module by porter's name, input or output, the nodes it shows)."""
    block = blueprint.blocks[layer]
    for name in norms(block, blueprint.norm, blueprint.dims):
        yield name, False, _heads(name, blueprint) if name.endswith(("q_norm", "k_norm")) else _named(name)
    for name, (_, _, bias) in projections(block, blueprint.dims, blueprint.weights).items():
        if not bias or blueprint.weights.block[name].bias is None:  # else HF's module shows it without its bias
            split = _output(name, blueprint)
            scored_wide = block.moe is not None and block.moe.router.score_dtype == "fp32"
            yield name, False, _widened(split) if name == "moe.router" and scored_wide else split
    yield "attn.inner_norm" if block.attn.inner_norm else "attn.o", True, _named("attn.ctx")
    for scope in ("mlp", "moe.shared"):
        if _has(blueprint, layer, f"{scope}.down"):
            reader = f"{scope}.inner_norm" if _has(blueprint, layer, f"{scope}.inner_norm") else f"{scope}.down"
            yield reader, True, (_tokens if scope == "moe.shared" else _named)(f"{scope}.act")
    entries = ("mlp.norm", "mlp.gate_up", "mlp.gate", "mlp.up", "moe.router")
    entry = next(name for name in entries if _has(blueprint, layer, name))
    if block.topology == "sequential" and entry != "moe.router":  # whose input HF flattens
        yield entry, True, _named("resid_mid")


def _has(blueprint: Blueprint, layer: int, name: str) -> bool:
    block = blueprint.blocks[layer]
    return name in norms(block, blueprint.norm, blueprint.dims) or name in projections(
        block, blueprint.dims, blueprint.weights
    )


def _named(node: str) -> Split:
    return lambda value: {node: value}


def _output(name: str, blueprint: Blueprint) -> Split:
    dims = blueprint.dims
    if name == "attn.qkv":
        rule = blueprint.weights.block[name]
        return lambda value: dict(zip(("attn.q", "attn.k", "attn.v"), split_qkv(value, dims, rule), strict=True))
    if name.endswith(".gate_up"):
        rule, scope = blueprint.weights.block[name], name.removesuffix(".gate_up")
        rename = _tokens if scope.startswith("moe") else _named
        parts = (rename(f"{scope}.gate"), rename(f"{scope}.up"))
        return lambda value: {
            name: each
            for part, half in zip(parts, split_gate_up(value, rule), strict=True)
            for name, each in part(half).items()
        }
    if name in {"attn.q", "attn.k", "attn.v"}:
        return lambda value: {name: value.view(*value.shape[:-1], -1, dims.head_dim)}
    scope, _, part = name.rpartition(".")
    node = f"{scope}.out" if part in ("o", "down") else name
    if name == "attn.kv_b":  # HF gives it a latent of one head
        return lambda value: {name: value.flatten(1, -2)}
    return _tokens(node) if scope.startswith("moe") else _named(node)


def _heads(name: str, blueprint: Blueprint) -> Split:
    """A norm of q or k as [B, T, heads, K], from HF's [B, T, heads, K], [B, heads, T, K] or [B, T, heads * K]."""
    dims = blueprint.dims
    heads = dims.heads if name.endswith("q_norm") else dims.kv_heads

    def split(value: Tensor) -> dict[str, Tensor]:
        if value.ndim == 3:
            return {name: value.view(*value.shape[:-1], heads, dims.head_dim)}
        if value.shape[1] == value.shape[2]:
            return {}  # as many tokens as heads: the two layouts look alike, so the node is left out
        return {name: value if value.shape[2] == heads else value.transpose(1, 2)}

    return split


def find_module(modules: Modules, blueprint: Blueprint, name: str) -> nn.Module | None:
    """HF's module of that parameter, under any of its rule's names; of a list with one for each head, its owner."""
    rule, prefix = rule_for(blueprint, name)
    wanted = (without_prefix(blueprint, place(prefix, source.partition(".{h}")[0], name)) for source in rule.src)
    path = next((path for path in wanted if path in modules), None)
    if path is not None and isinstance(modules[path], nn.ModuleList):
        path = path.rpartition(".")[0]
    return None if path is None else modules[path]
