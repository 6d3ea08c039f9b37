"""What of a HuggingFace model has a kernel: read off the blueprint, whose weight rules are the modules' paths."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from porter.errors import UsageError, closest
from porter.patching.feed_forward import (
    activations_of,
    dropouts_of,
    fuse_activation,
    fuse_glu,
    fuse_packed_glu,
    is_shared,
)
from porter.patching.head import fuse_head, why_not_head
from porter.patching.norms import fuse_norm, why_not_norm
from porter.patching.rotation import fuse_rotation, rotations_of
from porter.patching.stock import why_not_activation, why_not_eps, why_not_stock
from porter.patching.swap import is_fused
from porter.references.hooks import Modules, find_module, modules_by_path
from porter.specs.blueprint import Blueprint, norms, projections
from porter.specs.kinds import ACTIVATION_TENSORS
from porter.specs.plugins import plugin_of
from porter.specs.rules import WeightRule
from porter.specs.schema import Norm

OPS = ("rms_norm", "layer_norm", "rope", "glu", "linear_cross_entropy")


def read_ops(without: str = "") -> frozenset[str]:
    """The ops that are patched, all but those that a list names.

    Raises:
        UsageError: there is no op of a name.
    """
    left_out = [each.strip() for each in without.split(",") if each.strip()]
    for each in left_out:
        if each not in OPS:
            raise UsageError(f"--without {each!r}", closest(each, OPS), f"Any of {', '.join(OPS)}, with commas.")
    return frozenset(OPS) - set(left_out)


@dataclass(frozen=True)
class Replacement:
    """A module, and the kernel that takes its place.

    Attributes:
        path: in the model.
        apply: puts it there.
    """

    path: str
    op: str
    apply: Callable[[], None]


@dataclass(frozen=True)
class Left:
    """A module that stays as it is, and why."""

    path: str
    op: str
    reason: str


Step = Replacement | Left


def plan(model: Any, blueprint: Blueprint) -> Iterator[Step]:
    """Every place of an op in a model, in the order of the forward pass, but for modules that are fused already."""
    modules = modules_by_path(model, blueprint)
    paths = {module: path for path, module in model.named_modules()}
    seen: set[nn.Module] = set()
    for module, op, fit in _places(model, modules, blueprint):
        if isinstance(module, str):
            yield Left(module, op, str(fit))
        elif not is_fused(module) and module not in seen:
            seen.add(module)
            yield Left(paths[module], op, fit) if isinstance(fit, str) else Replacement(paths[module], op, fit)


_Place = tuple[nn.Module | str, str, Callable[[], None] | str]  # where, which op, its fitting or why there is none


def _places(model: Any, modules: Modules, blueprint: Blueprint) -> Iterator[_Place]:
    if blueprint.embed.norm:
        yield _norm(modules, blueprint, "embed_norm", blueprint.norm, (blueprint.dims.hidden,))
    for index, block in enumerate(blueprint.blocks):
        for name, (spec, shape) in norms(block, blueprint.norm, blueprint.dims).items():
            yield _norm(modules, blueprint, f"layers.{index}.{name}", spec, shape)
        yield from _rotation(modules, blueprint, index)
        yield from _feed_forward(modules, blueprint, index)
    if blueprint.final_norm:
        yield _norm(modules, blueprint, "final_norm", blueprint.norm, (blueprint.dims.hidden,))
    refusal = why_not_head(model)
    head = model.get_output_embeddings()
    yield head if isinstance(head, nn.Module) else "", "linear_cross_entropy", refusal or partial(fuse_head, model)


def _norm(modules: Modules, blueprint: Blueprint, name: str, spec: Norm, shape: tuple[int, ...]) -> _Place:
    op = "rms_norm" if spec.kind == "rms" else "layer_norm"
    ruled = name.rpartition(".")[2] if "." not in name else name.split(".", 2)[2]
    known = ruled in blueprint.weights.block or ruled in blueprint.weights.globals
    module = find_module(modules, blueprint, name) if known else None
    if module is None:
        return name, op, "no module of HuggingFace's is this norm and no other"
    refusal = why_not_norm(module, spec, shape) or why_not_stock(module) or why_not_eps(module, spec.eps)
    return module, op, refusal or partial(fuse_norm, module, spec)


def _rotation(modules: Modules, blueprint: Blueprint, index: int) -> Iterator[_Place]:
    block = blueprint.blocks[index]
    if block.rope is None:
        return
    out = find_module(modules, blueprint, f"layers.{index}.attn.o")
    attention = None if out is None else _parent(modules, out)
    if attention is None:
        yield f"layers.{index}.attn", "rope", "no module of HuggingFace's is this attention"
        return
    found = why_not_stock(attention) or rotations_of(attention, block.rope, blueprint.dims)
    yield attention, "rope", found if isinstance(found, str) else partial(fuse_rotation, attention, found)


def _feed_forward(modules: Modules, blueprint: Blueprint, index: int) -> Iterator[_Place]:
    block = blueprint.blocks[index]
    if block.moe is None:
        yield _branch(modules, blueprint, index, "mlp", block.mlp.act)
        return
    why = "experts stay HuggingFace's, whose grouped products have their activation inside"
    yield f"layers.{index}.moe", "glu", why
    if block.moe.shared is not None:
        yield _branch(modules, blueprint, index, "moe.shared", block.moe.act)


def _branch(modules: Modules, blueprint: Blueprint, index: int, scope: str, act: str) -> _Place:
    block, rules = blueprint.blocks[index], blueprint.weights.block
    down = find_module(modules, blueprint, f"layers.{index}.{scope}.down")
    branch = None if down is None else _parent(modules, down)
    if down is None or branch is None:
        return f"layers.{index}.{scope}", "glu", "no module of HuggingFace's is this branch"
    if (changed := why_not_stock(branch)) is not None and (scope != "mlp" or block.mlp.gated):
        return branch, "glu", changed
    if act in ACTIVATION_TENSORS or plugin_of("activation", act) is not None:
        return branch, "glu", f"no kernel has the activation {act}"
    if scope == "mlp" and not block.mlp.gated:
        return _activation(modules, branch, act)
    wanted = [name for name in projections(block, blueprint.dims, blueprint.weights) if name.startswith(f"{scope}.")]
    wanted += [f"{scope}.inner_norm"] if scope == "mlp" and block.mlp.inner_norm else []
    parts: dict[str, str] = {}
    for name in wanted:
        child = _child(branch, find_module(modules, blueprint, f"layers.{index}.{name}"))
        if child is None:
            return branch, "glu", "its projections are not the children of one module"
        parts[name.removeprefix(f"{scope}.")] = child
    own = activations_of(branch)
    if len(own) == 1 and (other := why_not_activation(own[0], act)) is not None:
        return branch, "glu", other
    if dropouts_of(branch):
        return branch, "glu", "it drops numbers out between its projections"
    if "gate_up" not in parts:
        return branch, "glu", partial(fuse_glu, branch, act, **parts)
    if "inner_norm" in parts:
        return branch, "glu", "no kernel has one projection of gate and up, and a norm behind them"
    return branch, "glu", partial(fuse_packed_glu, branch, act, layout=_layout(rules[f"{scope}.gate_up"]), **parts)


def _activation(modules: Modules, branch: nn.Module, act: str) -> _Place:
    found = activations_of(branch)
    if len(found) != 1:
        return branch, "glu", f"it has {len(found)} modules that may be its activation, not one"
    if is_shared(found[0], branch, modules.values()):
        return branch, "glu", "its activation is one object for several models"
    refusal = why_not_stock(found[0]) or why_not_activation(found[0], act)
    return found[0], "glu", refusal or partial(fuse_activation, found[0], act)


def _layout(rule: WeightRule) -> Any:
    if rule.groups == "rows":
        return "interleaved"
    return "halves" if rule.order[0] == "gate" else "halves_up_first"


def _parent(modules: Modules, child: nn.Module) -> nn.Module | None:
    return next((module for module in modules.values() if child in module.children()), None)


def _child(parent: nn.Module, child: nn.Module | None) -> str | None:
    """The name of a module among the children of another."""
    return next((name for name, each in parent.named_children() if each is child), None)
