"""Modules that HF calls otherwise than the checkpoint does: it renames tensors and stacks experts as it loads them."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from porter.references.pinned import find_layers, load_pinned
from porter.weights.safetensors_files import open_checkpoint


@dataclass(frozen=True)
class Renamed:
    """What is called what.

    Attributes:
        layers: HF's path of its list of layers.
        modules: HF's path of a module -> the checkpoint's, of all whose tensors are the same, bit for bit.
        stacked: names in HF's layers of parameters that hold all experts, [experts, rows, columns].
        wide: the checkpoint's modules that HF keeps in float32 when it loads the folder in bfloat16.
    """

    layers: str
    modules: Mapping[str, str]
    stacked: tuple[str, ...]
    wide: frozenset[str]

    def of_layer(self, index: int, path: str, prefix: str) -> str:
        """The checkpoint's name in a layer for HF's; HF's own where nothing says otherwise.

        Args:
            prefix: of layers in the checkpoint, with {i}.
        """
        found = self.modules.get(f"{self.layers}.{index}.{path}")
        start = prefix.replace("{i}", str(index)) + "."
        return found.removeprefix(start) if found is not None and found.startswith(start) else path

    def alias(self, index: int, path: str, prefix: str) -> str | None:
        """How a rule names HF's module where the checkpoint's own name, `path`, does not lead to it; None: it does."""
        there = self.outside(f"{prefix.replace('{i}', str(index))}.{path}")
        if there is None:
            return None
        inside = there.removeprefix(f"{self.layers}.{index}.")
        return inside if f"{self.layers}.{{i}}" == prefix else f"/{self.layers}.{{i}}.{inside}"

    def outside(self, module: str) -> str | None:
        """HF's path of a module that the checkpoint calls so; None: it is the same."""
        if self.modules.get(module) == module:
            return None
        return next((path for path, name in self.modules.items() if name == module), None)


def read_renamed(folder: Path, num_layers: int) -> Renamed:
    """The names of HF's model of a folder, beside the folder's own.

    Raises:
        WeightError, ComparisonError: HF does not load the folder.
    """
    model = load_pinned(folder, torch.float32, torch.device("cpu"))
    path, layers = find_layers(model, num_layers)
    tensors = open_checkpoint(folder)
    stored = {_key(tensors.read(name).float()): name for name in tensors.tensors}
    modules = {}
    for name, value in model.state_dict().items():
        found = stored.get(_key(value))
        if found is not None and _owner(found) and _owner(name):
            modules[_owner(name)] = _owner(found)
    inside = dict.fromkeys(name for layer in layers for name, value in layer.named_parameters() if value.ndim == 3)
    narrow = load_pinned(folder, torch.bfloat16, torch.device("cpu")).state_dict()
    wide = {_owner(name) for name, value in narrow.items() if value.dtype == torch.float32}
    return Renamed(path, modules, tuple(inside), frozenset(modules.get(name, name) for name in wide))


def _owner(name: str) -> str:
    """The module of a weight or bias, a parameter by itself else."""
    module, _, last = name.rpartition(".")
    return module if last in ("weight", "bias") else name


def _key(value: Tensor) -> tuple[tuple[int, ...], bytes]:
    return tuple(value.shape), sha256(value.detach().contiguous().numpy().tobytes()).digest()
