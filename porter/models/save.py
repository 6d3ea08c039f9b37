"""Writes a build's weights, or a model's own, as a HF-layout checkpoint: config.json, safetensors, tokenizer if any."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from porter.errors import UsageError
from porter.models.build import Build
from porter.specs.ledger import layout
from porter.weights.cache import temporary_beside
from porter.weights.safetensors_files import DTYPES, INDEX, SINGLE, TensorSpec, open_checkpoint, write_checkpoint
from porter.weights.sources import STORED

if TYPE_CHECKING:
    from porter.models.decoder import Decoder

_BESIDE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "generation_config.json",
)

_STORED_AS = {dtype: name for name, dtype in DTYPES.items()}


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


def save_model(model: "Decoder", config: Mapping[str, Any], folder: Path) -> None:
    """Writes the parameters of a model that is in memory, trained say: the weight rules, the other way round.

    Args:
        model: with a Resident loader; its parameters are stored in the dtype they have.
        config: what config.json holds besides model_type and architectures.
        folder: a new one; without a tokenizer, which the model does not have.

    Raises:
        ArtifactError: the folder holds a checkpoint already, or the disk is too full.
    """
    blueprint = model.blueprint
    held = {_parameter_of(name): value.detach() for name, value in model.named_parameters()}
    specs: list[TensorSpec] = []
    parts: dict[str, Tensor] = {}
    for name, entry in layout(blueprint).items():
        value = held[name]
        for source, part in zip(entry.sources, value.reshape(len(entry.sources), *entry.shape), strict=True):
            parts[source] = part
            specs.append(TensorSpec(source, entry.shape, _STORED_AS[value.dtype]))
    write_checkpoint(folder, specs, lambda source: iter([parts[source].contiguous()]))
    head = {"model_type": blueprint.model_type, "architectures": [blueprint.architecture]}
    (folder / "config.json").write_text(json.dumps({**head, **config}, indent=2) + "\n", encoding="utf-8")


def _parameter_of(name: str) -> str:
    """layers.0.attn.q.weight for the name that a resident model has for it."""
    return name.removeprefix("loader.").removeprefix("_embed.").removeprefix("_head.")
