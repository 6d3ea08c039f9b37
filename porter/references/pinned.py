"""HuggingFace's whole model of a folder, pinned: what no unit at a time is run of."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from porter.errors import ComparisonError
from porter.references.hollow import aligned, check_keys
from porter.references.quiet import quiet_transformers


def load_pinned(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """HF's whole model of a folder, in eval mode; dtype goes through from_pretrained, so tables stay HF's own.

    Raises:
        WeightError: HF lacks a tensor, does not know one, or expects another shape; it would fill it at random.
    """
    with quiet_transformers():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager",
            local_files_only=True, output_loading_info=True,
            ignore_mismatched_sizes=True,
        )  # fmt: skip
    model, info = loaded
    check_keys(model, info)
    for parameter in model.to(device).parameters():
        parameter.data = aligned(parameter.data)
    return model.eval()


def ordinary_forward(model: Any, layers: nn.ModuleList, ids_BT: Tensor) -> tuple[list[Tensor], Tensor]:
    """HF's ordinary forward pass: the output of every layer, and the logits."""
    outputs: list[Tensor] = []

    def keep(_module: nn.Module, _args: Any, out: Any) -> None:
        outputs.append(out[0] if isinstance(out, (tuple, list)) else out)

    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.register_forward_hook(keep).remove)
        logits: Tensor = model(input_ids=ids_BT, use_cache=False).logits
    return outputs, logits


def find_layers(model: nn.Module, num_layers: int) -> tuple[str, nn.ModuleList]:
    """HF's list of decoder layers, and its path.

    Raises:
        ComparisonError: the model has no list of that many layers.
    """
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return path, module
    raise ComparisonError(
        f"{type(model).__name__} has no list of {num_layers} layers",
        "HF's model with the layers of the config, in one stack",
        "Check num_hidden_layers of the config; an architecture of another shape needs code.",
    )
