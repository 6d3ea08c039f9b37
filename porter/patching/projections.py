"""Fused projections taken apart, so that adapters on their parts are independent, and put together again.

Phi-3's qkv_proj is one matrix. LoRA on it has one A for q, k and v: they share a subspace of the input, and the update
of all three together has rank r. Taken apart by the weight rules, each part is a Linear with an A of its own. HF's
forward goes on to read one output, in the layout that it knows: the parts' outputs, laid side by side again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from porter.errors import PorterError
from porter.models.attention import split_qkv
from porter.models.modules import split_gate_up
from porter.patching.patch import blueprint_of, unwrapped
from porter.references.hooks import find_module, modules_by_path
from porter.specs.blueprint import Blueprint, projections
from porter.specs.rules import WeightRule

Part = Literal["q", "k", "v", "gate", "up"]
_KINDS = {"Linear": False, "FalconLinear": False, "Conv1D": True}  # HF's class -> its weight is [in, out]
_SUFFIX = "_proj"


class ProjectionError(PorterError):
    """A projection that cannot be taken apart, or put together."""


@dataclass(frozen=True)
class Layout:
    """How the rows of a fused projection's parts lie: `groups` times over, a run of each part's rows in turn.

    Attributes:
        order: the parts in the order of the rows.
        sizes: rows of each part within a group, in that order.
    """

    groups: int
    order: tuple[Part, ...]
    sizes: tuple[int, ...]

    @property
    def rows(self) -> dict[Part, int]:
        """Of each part, over all groups."""
        return {part: self.groups * size for part, size in zip(self.order, self.sizes, strict=True)}

    def split(self, fused: Tensor) -> dict[Part, Tensor]:
        """Each part's rows of a tensor whose first axis is rows, copied."""
        parts = fused.reshape(self.groups, -1, *fused.shape[1:]).split(self.sizes, dim=1)  # type: ignore[no-untyped-call]
        return {
            part: rows.flatten(0, 1).clone(memory_format=torch.contiguous_format)
            for part, rows in zip(self.order, parts, strict=True)
        }

    def join(self, parts: Mapping[Part, Tensor], dim: int) -> Tensor:
        """The fused tensor, from parts whose axis `dim` is rows."""
        if self.groups == 1:
            return torch.cat([parts[part] for part in self.order], dim=dim)
        last = [parts[part].movedim(dim, -1) for part in self.order]
        grouped = [each.reshape(*each.shape[:-1], self.groups, -1) for each in last]
        return torch.cat(grouped, dim=-1).flatten(-2).movedim(-1, dim)


class UnfusedProjection(nn.Module):
    """In a fused projection's place: a Linear for each part, and one output in the fused layout.

    Attributes:
        layout: of the fused rows.
        fused: the module whose place it took, without weights until it comes back; it is no child of this one.
    """

    def __init__(self, fused: nn.Module, layout: Layout) -> None:
        super().__init__()
        weight: Any = fused.weight
        bias: Any = getattr(fused, "bias", None)
        self.layout, self._kept = layout, (fused,)
        turned = _KINDS[type(fused).__name__]
        weights = layout.split(weight.detach().T if turned else weight.detach())
        biases = {} if bias is None else layout.split(bias.detach())
        for part, rows in layout.rows.items():
            linear = nn.Linear(weight.shape[0 if turned else 1], rows, bias=bias is not None, device="meta")
            linear.weight = nn.Parameter(weights[part], requires_grad=weight.requires_grad)
            if bias is not None:
                linear.bias = nn.Parameter(biases[part], requires_grad=bias.requires_grad)
            self.add_module(part + _SUFFIX, linear)
        for parameter in fused.parameters():
            parameter.grad, parameter.data = None, parameter.data.new_empty(0)
        self.train(fused.training)

    @property
    def fused(self) -> nn.Module:
        return self._kept[0]

    def part(self, part: Part) -> nn.Module:
        return self.get_submodule(part + _SUFFIX)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to [..., all rows], as the fused module."""
        return self.layout.join({part: self.part(part)(x) for part in self.layout.order}, dim=-1)

    def join(self) -> nn.Module:
        """The fused module with the parts' weights as they are now: the same object, class, and parameters."""
        fused: Any = self.fused
        kinds: dict[Part, Any] = {part: self.part(part) for part in self.layout.order}
        weight_RD = self.layout.join({part: linear.weight.detach() for part, linear in kinds.items()}, dim=0)
        fused.weight.data = (weight_RD.T if _KINDS[type(fused).__name__] else weight_RD).contiguous()
        if kinds[self.layout.order[0]].bias is not None:
            fused.bias.data = self.layout.join({part: linear.bias.detach() for part, linear in kinds.items()}, dim=0)
        fused.train(self.training)
        return self.fused


@dataclass(frozen=True)
class Unfused:
    """A projection that was taken apart.

    Attributes:
        path: of the fused module, now of its parts' parent.
        parts: the new modules' paths, and the rows of each.
        width: features that all of them read.
    """

    path: str
    parts: Mapping[str, int]
    width: int

    def lora_parameters(self, rank: int) -> tuple[int, int]:
        """Of an adapter of that rank on it: before, and of one on each part."""
        rows = sum(self.parts.values())
        return rank * (self.width + rows), rank * (len(self.parts) * self.width + rows)


@dataclass(frozen=True)
class Unfusing:
    """What unfusing a model changed, in words: str() of it.

    Attributes:
        left: paths of fused projections that stayed, and why.
    """

    model: str
    unfused: tuple[Unfused, ...]
    left: Mapping[str, str]

    def lora_parameters(self, rank: int) -> tuple[int, int]:
        """Of adapters of that rank on every one of the projections: before, after."""
        counts = [each.lora_parameters(rank) for each in self.unfused]
        return sum(before for before, _ in counts), sum(after for _, after in counts)

    def __str__(self) -> str:
        lines = [f"{self.model}: {len(self.unfused)} fused projections taken apart"]
        kinds = dict.fromkeys(_general(each.path) for each in self.unfused)
        for kind in kinds:
            alike = [each for each in self.unfused if _general(each.path) == kind]
            names = ", ".join(f"{path.rpartition('.')[2]} ({rows})" for path, rows in alike[0].parts.items())
            lines.append(f"  {kind} ({len(alike)}): {names}, each reading {alike[0].width} features")
        before, after = self.lora_parameters(8)
        if self.unfused:
            lines.append(f"  LoRA of rank 8 on them: {before} parameters before, {after} after")
            lines.append("  state dict: <path>.weight is now <path>.<part>.weight until fuse_back")
            lines.append("  forward: the same products, summed in blocks of other shapes: last bits may differ")
        for path, why in self.left.items():
            lines.append(f"  {path} left: {why}")
        return "\n".join(lines)


def unfuse(model: Any) -> Unfusing:
    """Takes a model's fused qkv and gate_up projections apart, in place; adapters then go on their parts.

    Args:
        model: of HuggingFace's, patched or not, before adapters are on it. Targets of an adapter are q_proj, k_proj,
            v_proj, gate_proj, up_proj from then on.

    Returns:
        What changed. Experts stay fused, their matrices being no modules, and so does what is not a plain Linear.

    Raises:
        SpecError: no family is of its model_type.
    """
    bare = unwrapped(model)
    unfused, left = [], dict[str, str]()
    for path, module, layout in _fused_projections(bare, blueprint_of(bare)):
        why = _why_not(module)
        if why is not None:
            left[path] = why
            continue
        made = UnfusedProjection(module, layout)
        _put(bare, path, made)
        width: int = made.get_submodule(layout.order[0] + _SUFFIX).in_features  # type: ignore[assignment]
        unfused.append(Unfused(path, {f"{path}.{part}{_SUFFIX}": rows for part, rows in layout.rows.items()}, width))
    return Unfusing(type(bare).__name__, tuple(unfused), left)


def fuse_back(model: Any) -> None:
    """Puts what unfuse took apart together again: the same objects, with the weights that the parts have now.

    Raises:
        ProjectionError: a part is no plain Linear any more; an adapter is on it. The model is left as it was.
    """
    bare = unwrapped(model)
    found = [(path, module) for path, module in bare.named_modules() if isinstance(module, UnfusedProjection)]
    for path, module in found:
        for part in module.layout.order:
            if type(module.part(part)) is not nn.Linear:
                kind = f"{type(module.part(part)).__module__.partition('.')[0]} {type(module.part(part)).__name__}"
                raise ProjectionError(
                    f"{path}.{part}{_SUFFIX} is a {kind}", "the torch Linear that unfuse made",
                    "Merge the adapters first: model = model.merge_and_unload().",
                )  # fmt: skip
    for path, module in found:
        _put(bare, path, module.join())


def _fused_projections(model: Any, blueprint: Blueprint) -> Iterator[tuple[str, nn.Module, Layout]]:
    modules = modules_by_path(model, blueprint)
    paths = {module: path for path, module in model.named_modules()}
    for index, block in enumerate(blueprint.blocks):
        for name, (rows, _, _) in projections(block, blueprint.dims, blueprint.weights).items():
            if not name.endswith((".qkv", ".gate_up")):
                continue
            module = find_module(modules, blueprint, f"layers.{index}.{name}")
            if module is not None and not isinstance(module, UnfusedProjection):
                yield paths[module], module, _layout(blueprint, name, rows)


def _layout(blueprint: Blueprint, name: str, rows: int) -> Layout:
    """By the weight rule, which says how numbers of the output are shared out."""
    rule, numbers_R = blueprint.weights.block[name], torch.arange(rows)
    if name.endswith(".qkv"):
        parts: Mapping[str, Tensor] = dict(zip("qkv", split_qkv(numbers_R, blueprint.dims, rule), strict=True))
    else:
        parts = dict(zip(("gate", "up"), split_gate_up(numbers_R, rule), strict=True))
    order: Any = rule.order
    groups = _groups(blueprint, rule, rows)
    layout = Layout(groups, order, tuple(parts[part].numel() // groups for part in order))
    assert all(torch.equal(found, parts[part].flatten()) for part, found in layout.split(numbers_R).items()), name
    return layout


def _groups(blueprint: Blueprint, rule: WeightRule, rows: int) -> int:
    dims = blueprint.dims
    return {"1": 1, "4": 4, "heads": dims.heads, "kv_heads": dims.kv_heads, "rows": rows // 2}[rule.groups]


def _why_not(module: nn.Module) -> str | None:
    if type(module).__name__ not in _KINDS or "weight" not in module._parameters:
        kind = f"{type(module).__module__.partition('.')[0]} {type(module).__name__}"
        return f"a {kind}, not a plain Linear: what it adds to its weight would be left out"
    if module._forward_hooks or module._forward_pre_hooks:
        return "it has hooks, which would not be called"
    return None


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _general(path: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in path.split("."))
