"""Builds: which spec, config, weights, dtype and ops make a model, recorded under builds/<name>/ and used by diff."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from porter.errors import PreflightError, SpecError, UsageError
from porter.models.choices import DEFAULT_DTYPE, check_flags, pick_device, pick_ops
from porter.specs.blueprint import Blueprint
from porter.specs.family import Family, find_family, find_model_type, find_size
from porter.specs.overrides import parse_override
from porter.specs.resolve import Resolved, check_config_is_read, resolve
from porter.weights.sources import Source, find_weights, random_folder, read_config

if TYPE_CHECKING:
    from porter.models.decoder import Decoder
    from porter.weights.reader import WeightReader


@dataclass(frozen=True)
class Build:
    """One build, as recorded; weights are referenced, not copied.

    Attributes:
        spec: name of a family, or path of its YAML file.
        weights: as named: a hub id, a folder, a .gguf, demo, random, random:stress.
        folder: the HF-layout folder they were found in; None for random weights.
        config: config.json, or the size's; overrides never touch it.
        overrides: changes of the port's spec, axis=value.
        dtype: of the port: bfloat16, float16 or float32.
        ops: reference, triton, or auto: triton on a GPU.
        prompt, tokens: what a diff runs on unless told otherwise.
    """

    name: str
    spec: str
    size: str | None
    weights: str
    folder: str | None
    config: Mapping[str, Any]
    overrides: tuple[str, ...]
    dtype: str
    ops: str
    device: str
    prompt: str | None
    tokens: int | None
    spec_hash: str
    created: str

    @cached_property
    def family(self) -> Family:
        return find_family(self.spec)

    @cached_property
    def resolved(self) -> Resolved:
        """The port's spec, overrides applied."""
        return self._resolve([parse_override(text, self.family.tree) for text in self.overrides])

    @cached_property
    def reference_resolved(self) -> Resolved:
        """The spec without overrides: what HF computes, and what the checkpoint's layout is."""
        return self._resolve([])

    @property
    def reference_blueprint(self) -> Blueprint:
        return self.reference_resolved.blueprint

    @property
    def blueprint(self) -> Blueprint:
        return self.resolved.blueprint

    def changed(self, overrides: Sequence[str]) -> Resolved:
        """The port's spec with further changes, axis=value, after the build's own.

        Raises:
            SpecError: a value is not allowed, or changes nothing.
        """
        return self._resolve(
            [parse_override(text, self.family.tree) for text in (*self.overrides, *overrides)], self._held
        )

    @cached_property
    def _held(self) -> dict[tuple[str, ...], Resolved]:
        """What a search changes again and again, resolved once."""
        return {}

    def checkpoint(self) -> Path:
        """The HF-layout folder of the weights; random ones are written now if they were not yet."""
        if self.folder is not None:
            return Path(self.folder)
        source = Source(self.weights, None, None)
        return random_folder(source, self.reference_blueprint, self.config, self.dtype)

    def reader(self) -> "WeightReader":
        """The port's parameters, read from the checkpoint."""
        from porter.weights.reader import open_weights

        return open_weights(self.blueprint, self.checkpoint())

    def model(self, dtype: str | None = None, *, ops: str | None = None, device: str | None = None) -> "Decoder":
        """The model, ready to run.

        Args:
            dtype: torch's name of it; default: the build's.
            ops: reference or triton; default: the build's.
            device: cpu or cuda; default: the build's.
        """
        import torch

        from porter.models.decoder import Decoder, Resident
        from porter.models.ops import make_ops

        at = torch.device(pick_device(device or self.device))
        chosen = make_ops(pick_ops(ops or self.ops, str(at)))
        kind: torch.dtype = getattr(torch, dtype or self.dtype)
        return Decoder(self.blueprint, Resident(self.blueprint, chosen, self.reader(), kind, at)).eval()

    def _resolve(self, overrides: list[Any], held: dict[tuple[str, ...], Resolved] | None = None) -> Resolved:
        tokenizer = self.family.size(self.size).tokenizer if self.size is not None else {}
        return resolve(self.family, self.config, overrides, tokenizer, held)


def build(
    model: str,
    *,
    size: str | None = None,
    weights: str | None = None,
    overrides: Sequence[str] = (),
    dtype: str = DEFAULT_DTYPE,
    ops: str = "auto",
    device: str = "auto",
    prompt: str | None = None,
    tokens: int | None = None,
    save: Path | None = None,
    dry_run: bool = False,
) -> Build:
    """A build of `model`, recorded and made current.

    Args:
        model: a size (gemma-7b), a family (gemma) with `size`, a path to a YAML, or a folder with config.json.
        weights: a hub id, a folder, a .gguf, demo, random or random:stress; default: the size's hub id.
        overrides: axis=value, changing the port alone.
        save: a new folder that the weights are written to as a HF-layout checkpoint; the build then refers to it.
        dry_run: nothing is fetched, read or recorded.

    Raises:
        SpecError, UsageError: the model, an axis or a flag is wrong.
        ArtifactError: the weights cannot be found or read.
        PreflightError, WeightError: config or tensors disagree with the spec.
    """
    made = plan_build(
        model, size=size, weights=weights, overrides=overrides, dtype=dtype, ops=ops, device=device,
        prompt=prompt, tokens=tokens, fetch=not dry_run,
    )  # fmt: skip
    if not dry_run:
        check_weights(made)
        if save is not None:
            from porter.models.save import save_checkpoint

            save_checkpoint(made, save)
            made = replace(made, folder=str(save.resolve()))
        from porter.models.records import record

        record(made)
    return made


def plan_build(
    model: str,
    *,
    size: str | None,
    weights: str | None,
    overrides: Sequence[str],
    dtype: str,
    ops: str,
    device: str,
    prompt: str | None,
    tokens: int | None,
    fetch: bool = True,
) -> Build:
    """The build of `model`, neither checked against its tensors nor recorded."""
    check_flags(dtype, ops, device, tokens)
    family, size, weights = _find(model, size, weights)
    frozen = family.size(size) if size else None
    weights = weights or (frozen.hf if frozen and frozen.hf else "random:stress")
    source = find_weights(weights, size=size or "", fetch=fetch)
    config = source.config if source.config is not None else frozen.config if frozen else _own_config(model)
    if config is None:
        raise UsageError(f"{model} with --weights {weights} has no config", "a size with a config", "Pass --size.")
    config = {key: value for key, value in config.items() if key != "quantization_config" or value}
    _check_model_type(family, config, source)
    name = size if size and size != "tiny" else f"{family.name}-tiny" if size else family.name
    made = Build(
        name=name, spec=_spec_name(family), size=size, weights=_absolute(weights, source),
        folder=str(source.folder) if source.folder else None, config=config, overrides=tuple(overrides),
        dtype=dtype, ops=ops, device=device, prompt=prompt, tokens=tokens, spec_hash="",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip
    check_config_is_read(made.reference_resolved)  # an override may replace the very field that reads a key
    return replace(made, spec_hash=made.blueprint.hash)


def check_weights(made: Build) -> None:
    """Draws up the ledger and reads every tensor once, so that a bad one is found now; random ones are trusted."""
    if made.folder is None:
        return
    reader = made.reader()
    for name in reader.ledger.entries:
        reader.check(name)


def _find(model: str, size: str | None, weights: str | None) -> tuple[Family, str | None, str | None]:
    """Family, size and weights that a model argument means."""
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file() or ("/" in model and folder.is_dir()):
        config = read_config(folder)
        return find_model_type(str(config.get("model_type"))), size, weights or str(folder)
    if model.endswith((".yaml", ".yml")) or "/" in model:
        family = find_family(model)
    else:
        try:
            family = find_family(model)
        except SpecError:
            if size is not None:
                raise
            family, size = find_size(model)
            return family, size, weights
    return family, size or _default_size(family, weights), weights


def _own_config(model: str) -> dict[str, Any] | None:
    """The config of a model argument that is a folder, for random weights of its shape."""
    folder = Path(model).expanduser()
    return read_config(folder) if (folder / "config.json").is_file() else None


def _default_size(family: Family, weights: str | None) -> str | None:
    sizes: list[str] = list(family.tree["sizes"])
    if weights is not None and weights not in {"random", "random:stress", "demo"}:
        return None  # the checkpoint's config says it
    if len(sizes) > 1:
        raise UsageError(f"{family.name} has {len(sizes)} sizes", ", ".join(sizes), "Name the size, or pass --size.")
    return sizes[0]


def _check_model_type(family: Family, config: Mapping[str, Any], source: Source) -> None:
    found, expected = config.get("model_type"), family.tree["model_type"]
    if found is not None and found != expected:
        raise PreflightError(
            f"{source.label} has model_type {found!r}",
            f"{expected!r}, the model_type of {family.name}",
            "Name its family.",
        )


def _spec_name(family: Family) -> str:
    from porter.specs.tree import spec_folder

    return family.name if family.path.parent == spec_folder() else str(family.path)


def _absolute(weights: str, source: Source) -> str:
    return str(Path(weights).expanduser().resolve()) if Path(weights).expanduser().exists() else source.label
