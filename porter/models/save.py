"""Writes a build's weights as a HF-layout checkpoint: config.json, safetensors shards, tokenizer where there is one."""

import json
import shutil
from pathlib import Path

from porter.errors import UsageError
from porter.models.build import Build
from porter.weights.cache import temporary_beside
from porter.weights.safetensors_files import INDEX, SINGLE, open_checkpoint, write_checkpoint
from porter.weights.sources import STORED

_BESIDE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "generation_config.json",
)


def save_checkpoint(made: Build, folder: Path) -> None:
    """Streams the weights of `made` to `folder`, a block of a tensor at a time; whole, or not at all.

    Random weights are made on the way and never held; others are copied as they are stored.

    Raises:
        UsageError: the folder holds a checkpoint already, or cannot be written.
        ArtifactError: the disk is too full.
    """
    if any((folder / name).exists() for name in ("config.json", SINGLE, INDEX)):
        raise UsageError(f"{folder} holds a checkpoint already", "a new or empty folder", "Name another with --save.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with temporary_beside(folder) as part:
            _write(made, part)
            folder.mkdir(exist_ok=True)
            for path in sorted(part.iterdir(), key=lambda path: path.name == "config.json"):
                path.rename(folder / path.name)  # the config last: without it a folder is no checkpoint
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written ({error.strerror})",
            "a folder porter may write to, with room for the weights",
            "Name another with --save.",
        ) from error


def _write(made: Build, folder: Path) -> None:
    if made.folder is None:
        from porter.weights.random_init import write_random

        write_random(made.reference_blueprint, made.config, folder, kind=made.weights, dtype=STORED[made.dtype])
        return
    source = open_checkpoint(Path(made.folder))
    write_checkpoint(folder, source.tensors.values(), source.blocks)
    for name in _BESIDE:
        if (source.folder / name).is_file():
            shutil.copyfile(source.folder / name, folder / name)
    head = {"model_type": made.blueprint.model_type, "architectures": [made.blueprint.architecture]}
    (folder / "config.json").write_text(json.dumps({**head, **made.config}, indent=2) + "\n", encoding="utf-8")
