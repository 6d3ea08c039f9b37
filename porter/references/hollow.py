"""HF's model without its weights: made by HF's own from_pretrained, buffers and all, from tensors that come later.

A parameter is then filled from the checkpoint when it is needed, and emptied again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from porter.errors import PreflightError, WeightError
from porter.references.deferred import Deferred, Recipe, Slice
from porter.references.quiet import quiet_transformers
from porter.weights.reader import SharedTensors
from porter.weights.safetensors_files import Checkpoint


@dataclass(frozen=True)
class Slot:
    """A place in HF's model for a tensor of the checkpoint.

    Attributes:
        name: the parameter's full name.
        empty: what the place holds while it is empty, of its shape and dtype.
    """

    name: str
    module: nn.Module
    attribute: str
    recipe: Recipe
    empty: Tensor

    @property
    def value(self) -> Tensor:
        value: Tensor = getattr(self.module, self.attribute)
        return value

    def fill(self, value: Tensor) -> None:
        """Puts a tensor there; it is not copied."""
        is_buffer = self.attribute in self.module._buffers
        setattr(self.module, self.attribute, value if is_buffer else nn.Parameter(value, requires_grad=False))

    def fill_tracked(self, value: Tensor) -> nn.Parameter:
        """Puts a tensor there as a parameter with a gradient; it is not copied."""
        parameter = nn.Parameter(value)
        setattr(self.module, self.attribute, parameter)
        return parameter

    @property
    def is_parameter(self) -> bool:
        return self.attribute in self.module._parameters

    def clear(self) -> None:
        setattr(self.module, self.attribute, self.empty)

    def compute(self, tensors: SharedTensors, device: torch.device) -> Tensor:
        """Its tensor, as from_pretrained would give it, but never at an odd address: see aligned."""
        return aligned(self.recipe.compute(lambda name, dtype: tensors.read(name, dtype, device)))


def open_hollow(
    folder: Path, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> tuple[Any, list[Slot]]:
    """HF's model of a folder, its buffers on `device`, and the slots of everything that the checkpoint fills.

    Raises:
        WeightError: HF lacks a tensor, does not know one, or expects another shape; it would fill it at random.
        PreflightError: HF cannot make a model of its config.
    """
    auto: Any = AutoModelForCausalLM  # its functions have no types
    slices = {name: Slice(name, info.shape, info.torch_dtype) for name, info in checkpoint.tensors.items()}
    with quiet_transformers():
        try:
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
            with torch.device("meta"):
                kind: Any = type(auto.from_config(config))
        except (TypeError, ValueError, KeyError, AttributeError) as error:  # HF computes with what the config says
            wrong = f"HF makes no model of {folder / 'config.json'} ({type(error).__name__}: {error})"
            fix = "Correct config.json: a key is null, or of another kind, where HF has no default."
            raise PreflightError(wrong, "a config that its own reference can read", fix) from error
        model, info = kind.from_pretrained(
            None, config=config, state_dict=slices, dtype=dtype, attn_implementation="eager",
            experts_implementation="eager", output_loading_info=True, ignore_mismatched_sizes=True,
        )  # fmt: skip
    check_keys(model, info)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not isinstance(buffer, Deferred):
                module._buffers[name] = buffer.to(device)
    return model.eval(), list(_make_slots(model))


def _make_slots(model: nn.Module) -> Iterable[Slot]:
    for path, module in model.named_modules():
        for tensors in (module._parameters, module._buffers):
            for attribute, value in tensors.items():
                if isinstance(value, Deferred):
                    empty = torch.empty(value.shape, dtype=value.dtype, device="meta")
                    empty = nn.Parameter(empty, requires_grad=False) if tensors is module._parameters else empty
                    slot = Slot(f"{path}.{attribute}".lstrip("."), module, attribute, value.recipe, empty)
                    slot.clear()
                    yield slot


def check_keys(model: nn.Module, info: Mapping[str, Any]) -> None:
    """Refuses what from_pretrained reports of tensors that do not match."""
    for problem, what in (
        ("missing_keys", "are not in the checkpoint, but HF's model has them"),
        ("unexpected_keys", "are in the checkpoint, but HF's model has no such tensors"),
        ("mismatched_keys", "have another shape in HF's model"),
    ):
        if info[problem]:
            names = sorted(str(key[0] if isinstance(key, tuple) else key) for key in info[problem])
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise WeightError(
                f"{', '.join(names[:3])}{more}: {what}",
                f"the tensors of {type(model).__name__}",
                "Correct `weights`, or the axis that adds or shapes them, in the spec; then build again.",
            )


def aligned(value: Tensor) -> Tensor:
    """The tensor where torch would put it, not at the odd bytes of a mapped file or of a part of another.

    MKL sums a matrix-vector product in another order when its weights are not aligned to 16 bytes: one token of a
    right port would not be bit-equal (torch 2.13, AVX2).
    """
    return value.clone() if value.data_ptr() % 64 else value
