"""Reads a checkpoint's tensors as parameters: by the ledger, in the dtype asked for, each checked to be finite.

Tensors are read and rounded a block at a time, so that beside a tensor in its dtype 32 MiB of it lie in memory. A
SharedTensors reads each tensor once for all who compute with it, and forgets them together.
"""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import torch
from torch import Tensor

from porter.errors import WeightError
from porter.specs.blueprint import Blueprint
from porter.specs.ledger import Ledger, make_ledger
from porter.weights.safetensors_files import Checkpoint, open_checkpoint

_FLOATS = frozenset([torch.float32, torch.bfloat16, torch.float16, torch.float64])
_CHUNK_ELEMENTS = 2**25  # of a vocabulary table: 128 MiB in float32


class SharedTensors:
    """A checkpoint whose tensors are read once and held until they are let go of; who reads them must not write."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._held: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def read(self, name: str, dtype: torch.dtype, device: torch.device, parameter: str = "") -> Tensor:
        """The tensor, rounded once to `dtype`; see read_finite."""
        key = (name, dtype, device)
        if key not in self._held:
            self._held[key] = read_finite(self.checkpoint, name, dtype, device, parameter)
        return self._held[key]

    def retain(self, names: Set[str]) -> None:
        """Forgets all tensors but these: called by whoever goes on to another layer, so that one is held at a time."""
        self._held = {key: tensor for key, tensor in self._held.items() if key[0] in names}

    def release(self) -> None:
        """Forgets what was read."""
        self._held.clear()


@dataclass(frozen=True)
class WeightReader:
    """The parameters of a blueprint in a checkpoint; with `shared`, whole tensors come from there."""

    checkpoint: Checkpoint
    ledger: Ledger
    shared: SharedTensors | None = None

    def read(self, parameter: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The tensor of `parameter` as stored (a transposed rule keeps [in, out]), rounded once to `dtype`.

        Of several tensors that are stacked, one at a time lies in memory besides, or all of them where they are shared.

        Raises:
            WeightError: it holds a NaN or an infinity.
        """
        entry = self.ledger.entries[parameter]
        if len(entry.sources) == 1:
            whole = self._read(entry.source, dtype, device, parameter)
            return whole.view(entry.stored) if entry.flat or entry.row else whole
        stacked = torch.empty((len(entry.sources), *entry.shape), dtype=dtype, device=device)
        for at, source in enumerate(entry.sources):
            stacked[at] = self._read(source, dtype, device, parameter)
        return stacked.view(entry.stored)

    def _read(self, source: str, dtype: torch.dtype, device: torch.device, parameter: str) -> Tensor:
        if self.shared is not None:
            return self.shared.read(source, dtype, device, parameter)
        return read_finite(self.checkpoint, source, dtype, device, parameter)

    def check(self, parameter: str) -> None:
        """Reads the tensor a block at a time and keeps nothing. Raises WeightError as read does."""
        for source in self.ledger.entries[parameter].sources:
            for block in self.checkpoint.blocks(source):
                _check_finite(self.checkpoint, source, block, parameter)

    def retain(self, parameters: Iterable[str]) -> None:
        """Of what is shared, forgets all but these parameters."""
        if self.shared is not None:
            self.shared.retain({name for parameter in parameters for name in self.ledger.entries[parameter].sources})

    def rows(self, parameter: str, rows_N: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
        """[N, D]: some rows of a table. Raises WeightError as read does."""
        return read_rows(self.checkpoint, self.ledger.entries[parameter].source, rows_N, dtype, device, parameter)

    def chunks(self, parameter: str, dtype: torch.dtype, device: torch.device) -> Iterator[Tensor]:
        """A table in chunks of rows, as read_chunks gives them. Raises WeightError as read does."""
        yield from read_chunks(self.checkpoint, self.ledger.entries[parameter].source, dtype, device, parameter)


def read_finite(
    checkpoint: Checkpoint, name: str, dtype: torch.dtype, device: torch.device, parameter: str = ""
) -> Tensor:
    """A tensor of the checkpoint in fresh, aligned memory, rounded once to `dtype`.

    Args:
        parameter: what it is called besides, for the message.

    Raises:
        WeightError: it holds a NaN or an infinity.
    """
    info = checkpoint.info(name)
    if not info.shape or not info.size_bytes or info.torch_dtype == dtype:
        tensor = checkpoint.read(name)
        _check_finite(checkpoint, name, tensor, parameter)
        return tensor.to(device=device, dtype=dtype)
    tensor, row = torch.empty(info.shape, dtype=dtype, device=device), 0
    for block in checkpoint.blocks(name):
        _check_finite(checkpoint, name, block, parameter)
        tensor[row : row + len(block)] = block
        row += len(block)
    return tensor


def read_rows(
    checkpoint: Checkpoint, name: str, rows_N: Tensor, dtype: torch.dtype, device: torch.device, parameter: str = ""
) -> Tensor:
    """[N, ...]: some rows of a tensor, rounded once to `dtype`. Raises WeightError as read_finite does."""
    rows = checkpoint.rows(name, rows_N.tolist())
    _check_finite(checkpoint, name, rows, parameter)
    return rows.to(device=device, dtype=dtype)


def read_chunks(
    checkpoint: Checkpoint, name: str, dtype: torch.dtype, device: torch.device, parameter: str = ""
) -> Iterator[Tensor]:
    """A table [V, D] in chunks of rows, as many in each (the last may be shorter) for every reader of such a table.

    Alike for all, because a product of another size may sum in another order. Raises WeightError as read_finite does.
    """
    for block in checkpoint.blocks(name, chunk_rows(checkpoint.info(name).shape[1])):
        _check_finite(checkpoint, name, block, parameter)
        yield block.to(device=device, dtype=dtype)


def chunk_rows(width: int) -> int:
    """How many rows of a table of that width make a chunk."""
    return max(1, _CHUNK_ELEMENTS // width)


def _check_finite(checkpoint: Checkpoint, name: str, part: Tensor, parameter: str) -> None:
    # Twenty times as quick as a float32 sum of bfloat16, which torch adds up one by one; a NaN is both bounds.
    bounds = torch.aminmax(part) if part.dtype in _FLOATS and part.numel() else (part.sum(dtype=torch.float32),)
    if all(torch.isfinite(bound) for bound in bounds) or torch.isfinite(part).all():
        return
    bad = sum(int((~torch.isfinite(block)).sum()) for block in checkpoint.blocks(name))
    called = f"{name} ({parameter})" if parameter else name
    raise WeightError(
        f"{called} holds {bad} values that are NaN or infinite, of {checkpoint.info(name).numel:,}",
        "finite weights",
        "Fetch or convert the checkpoint again; a float16 conversion of a bfloat16 model overflows so.",
    )


def open_weights(blueprint: Blueprint, folder: Path) -> WeightReader:
    """A reader of the checkpoint in `folder` after its ledger was drawn up; no tensor is read yet.

    Raises:
        ArtifactError: the checkpoint cannot be read.
        WeightError: the ledger does not balance, or a tied head is stored with other values than the embedding.
    """
    checkpoint = open_checkpoint(folder)
    ledger = make_ledger(blueprint, {name: info.shape for name, info in checkpoint.tensors.items()})
    for twin, original in ledger.twins:
        if not _equal(checkpoint, twin, original):
            raise WeightError(
                f"{twin} differs from {original}, but the spec ties the head to the embedding",
                "equal tensors, or head.tied: false",
                "Set `tie_word_embeddings: false` in config.json if the head was trained on its own.",
            )
    return WeightReader(checkpoint, ledger)


def _equal(checkpoint: Checkpoint, one: str, other: str) -> bool:
    """Whether two tensors hold the same values, a block at a time."""
    if checkpoint.info(one).shape != checkpoint.info(other).shape:
        return False
    rows = chunk_rows(max(1, checkpoint.info(one).shape[-1]))
    pairs = zip_longest(checkpoint.blocks(one, rows), checkpoint.blocks(other, rows))
    return all(torch.equal(a, b) for a, b in pairs)
