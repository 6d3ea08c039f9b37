"""What --weights names: a hub id, a folder, a .gguf, demo, random or random:stress. All end as a HF-layout folder."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from porter.errors import ArtifactError, UsageError
from porter.specs.blueprint import Blueprint

RANDOM = ("random", "random:stress")
STORED = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_OTHERS = "a folder, a .gguf file, demo, random or random:stress"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class Source:
    """Weights that were found.

    Attributes:
        label: as the user named them.
        folder: HF-layout; None for random weights, which are made once the blueprint is known.
        config: config.json; None for random weights and for a hub id that was not fetched.
    """

    label: str
    folder: Path | None
    config: Mapping[str, Any] | None

    @property
    def is_random(self) -> bool:
        return self.label in RANDOM


def find_weights(label: str, *, size: str, fetch: bool = True) -> Source:
    """The weights called `label`.

    Args:
        size: name of the size, for `demo`.
        fetch: whether a hub id may be downloaded (not on a dry run).

    Raises:
        ArtifactError: they cannot be found, reached or read.
        UsageError: the label is none of the six kinds.
    """
    if label in RANDOM:
        return Source(label, None, None)
    if label == "demo":
        from porter.weights.demo import demo_checkpoint

        return _folder(label, demo_checkpoint(size))
    path = Path(label).expanduser()
    if label.endswith(".gguf"):
        return _folder(label, _converted(path))
    if path.is_dir():
        return _folder(label, path.resolve(), convert=fetch)
    if label.startswith((".", "/", "~")) or path.exists():
        what = "is no folder and no .gguf file" if path.exists() else "does not exist"
        raise ArtifactError(f"{label} {what}", "a folder with config.json and safetensors", "Check the path.")
    if _HUB_ID.fullmatch(label):
        return _folder(label, _fetched(label)) if fetch else Source(label, None, None)
    raise UsageError(
        f"--weights {label!r} is no kind of weights", f"a hub id (google/gemma-7b), {_OTHERS}", "Name one."
    )


def random_folder(source: Source, blueprint: Blueprint, config: Mapping[str, Any], dtype: str) -> Path:
    """The cached folder of a blueprint's random weights, written the first time it is asked for.

    Args:
        blueprint: of the reference: no overrides, so that every port gets the same weights.
        dtype: stored dtype: float32, bfloat16 or float16.
    """
    from porter.weights.cache import cached
    from porter.weights.random_init import VERSION, write_random

    kind = source.label.replace(":", "-")
    key = f"{kind}-{blueprint.family}-{blueprint.hash[:16]}-{dtype}-v{VERSION}"
    return cached(key, lambda folder: write_random(blueprint, config, folder, kind=source.label, dtype=STORED[dtype]))


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a folder.

    Raises:
        ArtifactError: there is none, or it is no JSON object.
    """
    path = folder / "config.json"
    fix = "Copy config.json of the model into the folder."
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArtifactError(f"{path}: {error.strerror}", "the config.json of a HF-layout checkpoint", fix) from error
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: not JSON ({error})", "the config.json of a HF-layout checkpoint", fix) from error
    if not isinstance(config, dict):
        raise ArtifactError(f"{path}: not a JSON object", "config keys and values", fix)
    return config


def _folder(label: str, folder: Path, *, convert: bool = True) -> Source:
    """A folder as it is; of a quantised one, its cached conversion, if `convert`."""
    config = read_config(folder)
    if config.get("quantization_config") and convert:
        from porter.weights.quantized import dequantized_folder

        folder = dequantized_folder(folder, config)
    return Source(label, folder, {key: value for key, value in config.items() if key != "quantization_config"})


def _converted(path: Path) -> Path:
    import hashlib

    from porter.weights.cache import cached
    from porter.weights.gguf import CONVERTER_VERSION, convert_gguf

    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ArtifactError(f"{path}: {error.strerror}", "a readable .gguf file", "Check the path.") from error
    return cached(f"gguf-{digest[:16]}-v{CONVERTER_VERSION}", lambda folder: convert_gguf(path, folder))


def _fetched(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    wanted = ["config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer*", "special_tokens_map.json"]
    try:
        return Path(snapshot_download(hub_id, allow_patterns=wanted, etag_timeout=10))
    except GatedRepoError as error:
        problem, fix = (
            f"{hub_id} is gated",
            "Accept its terms on the hub and log in (hf auth login), or use another kind.",
        )
        raise ArtifactError(problem, f"weights: {_OTHERS}", fix) from error
    except RepositoryNotFoundError as error:
        raise ArtifactError(f"the hub has no {hub_id}", f"a hub id, {_OTHERS}", "Check the name.") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ArtifactError(
            f"{hub_id} cannot be reached on the hub, and is not in its cache ({_reason(error)})",
            f"a network, or other weights: {_OTHERS}",
            "For example --weights random:stress, or --weights demo for gemma-3-270m and smollm2-135m.",
        ) from error


def _reason(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return type(error).__name__
