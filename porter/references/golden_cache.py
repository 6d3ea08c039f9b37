"""Golden and the reference kept on disk, unit by unit, so that a diff of another port need not run them again.

<folder>/<identity>/<dtype>-<prompt>/<side>/<unit>.safetensors: the nodes of one call of one side, bit for bit. A file
says which identity, unit and input it is for, and carries a checksum; one that is damaged, or for something else, is
made again. Files are written beside their place and renamed, so several runs may share a folder.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from porter.errors import ArtifactError, UsageError
from porter.weights.cache import file_beside, remove_abandoned
from porter.weights.checked_file import read_checked, write_checked

Nodes = dict[str, Tensor]
FORMAT = "porter.golden/1"
_ABANDONED_S = 600.0  # a unit is written in seconds


@dataclass(frozen=True)
class Kept:
    """What the cache holds of one call of a side.

    Attributes:
        reference: what the reference is called in a report.
    """

    nodes: Nodes
    reference: str


class GoldenCache:
    """A folder of units, and what one run reads from it and adds to it.

    Attributes:
        folder: holds the units of any number of checkpoints; created where it is missing.
        read, made: units that were found, and that were not.
    """

    def __init__(self, folder: Path) -> None:
        """
        Raises:
            UsageError: the folder is a file, or is not there and cannot be made.
        """
        self.folder, self.read, self.made = folder, 0, 0
        self._identity = ""
        self._damaged: list[str] = []
        self._stopped = ""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise refusal(folder, error.strerror or str(error)) from error
        self._refused = self._probe()
        parts = (*folder.glob("*/*/*/.*.part"), *self.checksums.glob(".*.part"))
        remove_abandoned(parts, _ABANDONED_S)

    @property
    def checksums(self) -> Path:
        """Where checksums of checkpoints are kept."""
        return self.folder / "checkpoints"

    def identify(self, identity: Mapping[str, str]) -> None:
        """Says whose numbers are wanted from here on."""
        said = json.dumps({"format": FORMAT, **identity}, sort_keys=True)
        self._identity = hashlib.sha256(said.encode()).hexdigest()

    def units(self, side: str, dtype: str, ids_BT: Tensor) -> "Units":
        """The units of one side for one prompt in one stage's dtype."""
        prompt = hash_tensor(ids_BT)[:16]
        return Units(self, self.folder / self._identity[:16] / f"{dtype}-{prompt}" / side)

    def check_room(self, wanted: Iterable[tuple["Units", str]]) -> None:
        """Refuses a folder that cannot be written to and lacks something, before the work.

        Raises:
            UsageError: it is so.
        """
        if not self._refused:
            return
        missing = [not units.path(unit).is_file() for units, unit in wanted]
        if any(missing):
            raise refusal(
                self.folder, f"{self._refused}, and it lacks {sum(missing)} of the {len(missing)} units of this run"
            )

    def describe(self) -> dict[str, str | int]:
        """What a report says of it."""
        key, folder = f"sha256:{self._identity}", str(self.folder.resolve())
        return {"cache": key, "cache_folder": folder, "cache_read": self.read, "cache_made": self.made}

    def notes(self) -> list[str]:
        """What went wrong and was made good, in sentences."""
        found = [f"golden cache: {self._stopped}"] if self._stopped else []
        if self._damaged:
            more = f", and {len(self._damaged) - 1} more were, too" if len(self._damaged) > 1 else ""
            found.append(f"golden cache: {self._damaged[0]}: not used, and made again{more}")
        return found

    def recall(self, path: Path, about: Mapping[str, str]) -> Kept | None:
        """The unit in a file; None where there is none, or it is not what `about` says, or is damaged."""
        try:
            nodes, found = read_checked(path)
        except FileNotFoundError:
            return None
        except (ArtifactError, OSError) as error:
            self._damaged.append(error.wrong if isinstance(error, ArtifactError) else str(error))
            return None
        reference = found.pop("reference", "")
        if found != self._about(about):  # another input: something before it was made otherwise
            return None
        self.read += 1
        return Kept(nodes, reference)

    def keep(self, path: Path, about: Mapping[str, str], kept: Kept) -> None:
        """Writes a unit; a disk that is full ends the writing, and is noted once: the run goes on."""
        self.made += 1
        if self._refused or self._stopped:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_checked(path, kept.nodes, {**self._about(about), "reference": kept.reference})
        except OSError as error:
            why = error.strerror or str(error)
            self._stopped = f"{path} cannot be written ({why}); this unit and those after it are not kept"

    def _about(self, about: Mapping[str, str]) -> dict[str, str]:
        return {"kind": FORMAT, "identity": self._identity, **about}

    def _probe(self) -> str:
        """Why the folder cannot be written to; empty when it can."""
        try:
            with file_beside(self.folder / "probe") as part:
                part.touch()
        except OSError as error:
            return error.strerror or str(error)
        return ""


@dataclass(frozen=True)
class Units:
    """The units of one side, for one prompt in one dtype."""

    cache: GoldenCache
    folder: Path

    def path(self, unit: str) -> Path:
        return self.folder / f"{unit}.safetensors"

    def recall(self, unit: str, given: Tensor) -> Kept | None:
        """The unit as it was for that input."""
        return self.cache.recall(self.path(unit), _about(unit, given))

    def keep(self, unit: str, given: Tensor, kept: Kept) -> None:
        self.cache.keep(self.path(unit), _about(unit, given), kept)


def hash_tensor(value: Tensor) -> str:
    """sha256 of a tensor's dtype, shape and bytes."""
    raw = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
    return hashlib.sha256(f"{value.dtype} {list(value.shape)}".encode() + raw).hexdigest()


def refusal(folder: Path, why: str) -> UsageError:
    return UsageError(
        f"the golden cache {folder} cannot be used: {why}",
        "a folder that can be written to, or one that holds all that this run needs",
        "Name another folder with --golden-cache, or leave it out.",
    )


def _about(unit: str, given: Tensor) -> dict[str, str]:
    return {"unit": unit, "input": hash_tensor(given)}
