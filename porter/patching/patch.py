"""porter.patch and porter.unpatch: kernels into a HuggingFace model, or into every model of a type, and out again.

A patched model is the same object with the same parameters: some of its modules have another class, the head defers its
logits in training, and nothing outside it has changed. A patched type patches its models as they are made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from importlib import import_module
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from porter.comparison.report import DiffReport
from porter.errors import PorterError, UsageError
from porter.patching.head import restore_head
from porter.patching.plan import OPS, Left, Replacement, plan
from porter.patching.swap import PREFIX, can_restore, fused_modules, restore
from porter.specs.blueprint import Blueprint
from porter.specs.family import find_model_type
from porter.specs.resolve import resolve
from porter_kernels.launch import INTERPRETING

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_ORIGINAL = "porter_original"


@dataclass(frozen=True)
class Patch:
    """What a patch did.

    Attributes:
        replaced: modules that a kernel took the place of.
        left: places of an op that stay HuggingFace's, each with its reason.
        report: of the comparison, where one was asked for.
    """

    model: str
    replaced: tuple[Replacement, ...]
    left: tuple[Left, ...]
    report: DiffReport | None = None

    def to_json(self) -> dict[str, Any]:
        """The same as porter patch --json prints it: model, replaced (path, op), left (path, op, reason)."""
        return {
            "schema": "porter.patch/1",
            "model": self.model,
            "replaced": [{"path": each.path, "op": each.op} for each in self.replaced],
            "left": [{"path": each.path, "op": each.op, "reason": each.reason} for each in self.left],
        }

    def __str__(self) -> str:
        lines = [f"{self.model}: {len(self.replaced)} modules on porter's kernels"]
        for op in OPS:
            paths = [each.path for each in self.replaced if each.op == op]
            if paths:
                lines.append(f"  {op}: {_shortened(paths)}")
        for reason in dict.fromkeys((each.op, each.reason) for each in self.left):
            paths = [each.path for each in self.left if (each.op, each.reason) == reason]
            lines.append(f"  {reason[0]} left at {_shortened(paths)}: {reason[1]}")
        if self.report is not None:
            lines.append(f"  against the model without them: {self.report.sentence}")
        return "\n".join(lines)


class PatchError(PorterError):
    """A model that cannot be patched as it was asked for."""


def patch(
    model: Any,
    *,
    rms_norm: bool = True,
    layer_norm: bool = True,
    rope: bool = True,
    glu: bool = True,
    linear_cross_entropy: bool = True,
    verify: bool = False,
) -> Patch | None:
    """Puts porter's kernels into a model of HuggingFace's, in place, or into every one of a type made from now on.

    Args:
        model: a model with a language model's head, bare or wrapped (PEFT, DistributedDataParallel, torch.compile), of
            float32, bfloat16 or float16; or a type: its class, or a model_type such as "gemma".
        rms_norm, layer_norm, rope: whether norms and rotations are fused.
        glu: whether act(gate) * up is, and activations that stand alone.
        linear_cross_entropy: whether head and loss are, in training.
        verify: compare the patched model with the unpatched one, layer by layer, forward and gradients, on a copy of
            its weights, in HuggingFace's own code; raises where they part, and leaves the model as it was.

    Returns:
        What was replaced, what was not, and why; of a type None.

    Raises:
        SpecError: no family is of its model_type.
        PatchError: the head cannot be fused (wrapped, quantised, an adapter on it) and linear_cross_entropy is asked
            for; the dtype has no kernels; it is a type and verify is asked for; or the comparison failed.
    """
    given = (rms_norm, layer_norm, rope, glu, linear_cross_entropy)
    wanted = frozenset(op for op, asked in zip(OPS, given, strict=True) if asked)
    if isinstance(model, (str, type)):
        if verify:
            raise PatchError(f"verify=True with the type {_name(model)}", "a model, whose weights are there",
                             "Patch a model that was made, or run porter patch MODEL --verify.")  # fmt: skip
        _patch_type(_class_of(model), wanted)
        return None
    bare = unwrapped(model)
    if not verify:
        return patch_model(bare, wanted)
    from porter.patching.verify import check_patch  # which patches, too

    report = check_patch(bare, wanted)
    return replace(patch_model(bare, wanted), report=report)


def unpatch(model: Any) -> None:
    """Takes porter's kernels out again: every class, function and hook is the object it was before.

    Args:
        model: a model, or a type, as patch takes them; one that is not patched stays as it is.

    Raises:
        PatchError: a module's class was exchanged again after the patch; nothing is changed then.
    """
    if isinstance(model, (str, type)):
        kind: Any = _class_of(model)
        original = getattr(kind.__init__, _ORIGINAL, None)
        if original is not None:
            kind.__init__ = original
        return
    bare = unwrapped(model)
    found = [*fused_modules(bare)]
    for path, module in found:
        if not can_restore(module):
            raise PatchError(
                f"{path} is a {type(module).__name__}, a class that was made of porter's since (fully_shard does so)",
                f"the {PREFIX}{type(module).original.__name__} that the patch made",
                "Unpatch before the model is sharded.",
            )  # fmt: skip
    for _, module in found:
        restore(module)
    restore_head(bare)


def patch_model(model: Any, wanted: frozenset[str], blueprint: Blueprint | None = None) -> Patch:
    """Patches a bare model; see patch."""
    _check_dtypes(model)
    found = preview(model, wanted, blueprint)
    for step in found.left:
        if step.op == "linear_cross_entropy":
            raise PatchError(
                f"linear_cross_entropy: {step.reason}", "a head that is a torch Linear, and HuggingFace's own loss",
                "Pass linear_cross_entropy=False: the other ops are patched.",
            )  # fmt: skip
    for each in found.replaced:
        each.apply()
    return found


def preview(model: Any, wanted: frozenset[str], blueprint: Blueprint | None = None) -> Patch:
    """What patching a bare model would do."""
    steps = [step for step in plan(model, blueprint or blueprint_of(model)) if step.op in wanted]
    replaced = tuple(step for step in steps if isinstance(step, Replacement))
    return Patch(type(model).__name__, replaced, tuple(step for step in steps if isinstance(step, Left)))


def unwrapped(model: Any) -> Any:
    """The model of HuggingFace's within PEFT, DistributedDataParallel or torch.compile.

    Raises:
        PatchError: there is none.
    """
    bare = model
    for _ in range(8):
        if isinstance(bare, PreTrainedModel):
            return bare
        if "_orig_mod" in getattr(bare, "_modules", {}):
            bare = bare._orig_mod  # which torch.compile's wrapper forwards every attribute to
            continue
        within = bare.get_base_model() if hasattr(bare, "get_base_model") else getattr(bare, "module", None)
        if not isinstance(within, nn.Module):
            break
        bare = within
    raise PatchError(
        f"{type(model).__name__} is no model of HuggingFace's",
        "a model with a config and an output head, or its class or model_type",
        "Pass what AutoModelForCausalLM.from_pretrained gives.",
    )


def blueprint_of(model: Any) -> Blueprint:
    """The blueprint of a model's config.

    Raises:
        SpecError: no family is of its model_type, or the config has a feature that no spec says.
    """
    config: Mapping[str, Any] = model.config.to_dict()
    return resolve(find_model_type(str(config.get("model_type"))), config, [], {}).blueprint


def _check_dtypes(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype not in _DTYPES and parameter.dtype.itemsize > 1:
            raise PatchError(f"{name} is {parameter.dtype}", "float32, bfloat16 or float16", "model.to(torch.float32)")
    if not INTERPRETING and not torch.cuda.is_available():
        raise PatchError(
            "no GPU, and triton was imported before porter.patching", "Triton's interpreter, chosen before that",
            "On a CPU, import porter.patching before transformers, or set TRITON_INTERPRET=1.",
        )  # fmt: skip


# --- types ------------------------------------------------------------------------------------------


def _class_of(model: str | type) -> type:
    """The class whose models are patched.

    Raises:
        UsageError: the class is not the one that a family names.
        SpecError: no family is of that model_type.
    """
    if isinstance(model, str):
        family = find_model_type(model)
        return _import_class(family.tree["architecture"])
    kind: Any = model
    config = getattr(kind, "config_class", None) or getattr(kind, "config", None)
    family = find_model_type(str(getattr(config, "model_type", "")))
    if family.tree["architecture"] != model.__name__:
        raise UsageError(f"the class {model.__name__}", family.tree["architecture"], "Pass that class.")
    return model


def _import_class(name: str) -> type:
    kind: type = getattr(import_module("transformers"), name)
    return kind


def _name(model: str | type) -> str:
    return model if isinstance(model, str) else model.__name__


def _patch_type(kind: Any, wanted: frozenset[str]) -> None:
    """Has a class patch each of its models when it is made."""
    unpatch(kind)
    original: Callable[..., None] = kind.__init__

    @wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if type(self) is kind:
            patch_model(self, wanted)

    setattr(made, _ORIGINAL, original)
    kind.__init__ = made


def _shortened(paths: list[str]) -> str:
    """Paths of layers that differ in the layer's number alone, as one."""
    kinds: dict[str, int] = {}
    for path in paths:
        kind = ".".join("*" if part.isdigit() else part for part in path.split("."))
        kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(kind if count == 1 else f"{kind} ({count})" for kind, count in kinds.items())
