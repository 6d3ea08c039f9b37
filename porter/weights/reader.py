"""Reads a checkpoint's tensors as parameters: by the ledger, in the dtype asked for, each checked to be finite."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from porter.errors import WeightError
from porter.specs.blueprint import Blueprint
from porter.specs.ledger import Ledger, make_ledger
from porter.weights.safetensors_files import Checkpoint, open_checkpoint


@dataclass(frozen=True)
class WeightReader:
    """The parameters of a blueprint in a checkpoint."""

    checkpoint: Checkpoint
    ledger: Ledger

    def read(self, parameter: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The tensor of `parameter` as stored (a transposed rule keeps [in, out]), rounded once to `dtype`.

        Raises:
            WeightError: it holds a NaN or an infinity.
        """
        source = self.ledger.entries[parameter].source
        tensor = self.checkpoint.read(source)
        if not torch.isfinite(tensor.sum(dtype=torch.float32)) and not torch.isfinite(tensor).all():  # the sum is quick
            bad = int((~torch.isfinite(tensor)).sum())
            raise WeightError(
                f"{source} ({parameter}) holds {bad} values that are NaN or infinite, of {tensor.numel():,}",
                "finite weights",
                "Fetch or convert the checkpoint again; a float16 conversion of a bfloat16 model overflows so.",
            )
        return tensor.to(device=device, dtype=dtype)


def open_weights(blueprint: Blueprint, folder: Path) -> WeightReader:
    """A reader of the checkpoint in `folder` after its ledger was drawn up; no tensor is read yet.

    Raises:
        ArtifactError: the checkpoint cannot be read.
        WeightError: the ledger does not balance, or a tied head is stored with other values than the embedding.
    """
    checkpoint = open_checkpoint(folder)
    ledger = make_ledger(blueprint, {name: info.shape for name, info in checkpoint.tensors.items()})
    for twin, original in ledger.twins:
        if not torch.equal(checkpoint.read(twin), checkpoint.read(original)):
            raise WeightError(
                f"{twin} differs from {original}, but the spec ties the head to the embedding",
                "equal tensors, or head.tied: false",
                "Set `tie_word_embeddings: false` in config.json if the head was trained on its own.",
            )
    return WeightReader(checkpoint, ledger)
