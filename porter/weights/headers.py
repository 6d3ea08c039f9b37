"""Names and shapes of a checkpoint's tensors: from whole files, files cut after their header, or an index."""

import json
from pathlib import Path
from typing import Any

from porter.errors import ArtifactError
from porter.weights.safetensors_files import INDEX

Shape = tuple[int, ...]
_MOST_BYTES = 100_000_000


def read_shapes(folder: Path) -> dict[str, Shape | None]:
    """Tensor -> its shape, or None where only the index names it.

    Raises:
        ArtifactError: the folder names no tensor.
    """
    found: dict[str, Shape | None] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= _read_header(path)
    index = folder / INDEX
    if index.is_file():
        try:
            names = json.loads(index.read_bytes())["weight_map"]
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"{index} cannot be read", 'JSON with "weight_map"', "Fetch the file again.") from error
        found = {name: found.get(name) for name in names} | found
    if not found:
        raise ArtifactError(
            f"{folder} names no tensor",
            f"a safetensors file, or {INDEX}; the header of a file, or the index alone, will do",
            "Fetch one of them beside config.json.",
        )
    return found


def _read_header(path: Path) -> dict[str, Shape | None]:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(length)) if length < _MOST_BYTES else {}
        return {name: tuple(map(int, entry["shape"])) for name, entry in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(
            f"{path} has no readable header", "a safetensors file, cut after its header or not", "Fetch it again."
        ) from error
