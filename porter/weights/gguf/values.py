"""The metadata of one GGUF's architecture, as config.json wants it; what nobody reads is told at the end."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from porter.errors import ArtifactError
from porter.weights.gguf.reader import GgufFile

_WITHOUT_MEANING = {"vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "expert_used_count"}


class Values:
    """Reads keys without the architecture's prefix, and remembers which keys and tensors it was asked for."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._file, self._prefix = file, f"{architecture}."
        self._asked: set[str] = set()
        self.taken: set[str] = set()  # tensors that went into the config

    def get(self, key: str, default: Any) -> Any:
        """The value, floats as the shortest decimal of their float32, else the default."""
        self._asked.add(key)
        value = self._file.metadata.get(self._prefix + key, default)
        if isinstance(value, list):
            wrong = f"{self._file.path}: {self._prefix}{key} is a list of {len(value)}, one value a layer"
            raise ArtifactError(wrong, "one value for all layers", "use the model's safetensors")
        return shortest(value) if isinstance(value, float) else value

    def __getitem__(self, key: str) -> Any:
        return self.first([key])

    def first(self, keys: Sequence[str]) -> Any:
        """The value of the first of these keys that is there."""
        present = [key for key in keys if self._prefix + key in self._file.metadata]
        if not present:
            wrong = f"{self._file.path} has no {self._prefix}{keys[0]} in its metadata"
            raise ArtifactError(wrong, "every size of the model", "convert the model to GGUF again")
        return self.get(present[0], None)

    def must_equal(self, key: str, wanted: Any) -> None:
        """Refuses a value that transformers' config of this family cannot say."""
        if self.get(key, wanted) != wanted:
            wrong = f"{self._file.path}: {self._prefix}{key} is {self.get(key, wanted)}"
            raise ArtifactError(wrong, f"{wanted}, all that this family has", "use the model's safetensors")

    def has_tensor(self, ending: str) -> bool:
        return any(name.endswith(ending) for name in self._file.tensors)

    def take_tensor(self, name: str) -> Tensor | None:
        """A tensor that describes the config, if it is there; it is then no weight."""
        if name not in self._file.tensors:
            return None
        self.taken.add(name)
        return self._file.read(name)

    def refuse_unread(self) -> None:
        """Raises ArtifactError when a key was never asked for: it may change what the model computes."""
        keys = {key.removeprefix(self._prefix) for key in self._file.metadata if key.startswith(self._prefix)}
        told = {key for key in keys - self._asked - _WITHOUT_MEANING if self._file.metadata[self._prefix + key] != 0}
        if told:
            names = ", ".join(self._prefix + key for key in sorted(told))
            wrong = f"{self._file.path}: porter does not know what {names} would be in config.json"
            raise ArtifactError(wrong, f"of {self._prefix}*, only keys that porter reads", "use its safetensors")


def shortest(value: float) -> float:
    """The shortest decimal with the same float32: GGUF says 9.999999974752427e-07 where 1e-06 was meant."""
    narrow = np.float32(value)
    return float(str(narrow)) if float(narrow) == value else value
