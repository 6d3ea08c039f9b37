"""Files of results: read with a reason where that fails, written whole or not at all."""

import json
import os
import secrets
from pathlib import Path
from typing import Any

from porter.errors import ArtifactError, UsageError


def read_document(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises: ArtifactError: it cannot be read, or holds something else."""
    expected, fix = "the JSON of a porter bench", "check the path, or measure again"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}", expected, fix) from error
    if not isinstance(document, dict):
        raise ArtifactError(f"{path} holds a {type(document).__name__}", expected, fix)
    return document


def write_whole(path: Path, text: str) -> None:
    """Writes a file beside its place and renames it. Raises: UsageError: the place cannot be written to."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        if path.parent.is_dir():
            beside.unlink(missing_ok=True)
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", "a folder that can be written to", "give another with --out"
        ) from error
