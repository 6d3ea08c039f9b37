"""porter capture: writes what a port or its reference computes for one prompt as a dump."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch
import transformers
from torch import Tensor

from porter import __version__
from porter.comparison.lanes import Lane, Nodes, PortLane
from porter.comparison.names import full_name
from porter.comparison.preflight import check_config, load_tokenizer
from porter.comparison.progress import Progress, Silent, Work
from porter.comparison.prompts import read_prompts
from porter.comparison.request import find_build
from porter.errors import ArtifactError
from porter.models.build import Build
from porter.models.choices import pick_device, pick_ops
from porter.models.decoder import Decoder, Streamed
from porter.models.ops import make_ops
from porter.references.dump import MANIFEST
from porter.references.hf import HfReference
from porter.references.identity import hash_checkpoint
from porter.references.recorder import Recorder
from porter.weights.reader import SharedTensors

Which = Literal["port", "reference"]


def capture(
    model: str | Build | None = None,
    *,
    out: Path,
    side: Which = "port",
    size: str | None = None,
    weights: str | None = None,
    overrides: Sequence[str] = (),
    dtype: str | None = None,
    ops: str | None = None,
    device: str | None = None,
    prompt: str | None = None,
    tokens: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Runs one side on its own hidden states and writes every node it shows; one layer is in memory at a time.

    Args:
        model: as of diff.
        out: the dump's folder, made where it is missing.
        side: port, the build; or reference, HuggingFace's model of the same weights.
        prompt, tokens: see read_prompts.

    Returns:
        The folder.

    Raises:
        ArtifactError: the folder holds a dump already, or cannot be written to.
        PorterError: the build cannot be made, or has another tokenizer or config than its spec says.
    """
    build = find_build(model, size, weights, overrides, dtype, ops, device)
    if (out / MANIFEST).exists():
        raise ArtifactError(f"{out} holds a dump already", "a new folder", "Name another with --out, or delete it.")
    folder, at = build.checkpoint(), torch.device(pick_device(build.device))
    check_config(build)
    given = prompt if prompt is not None else build.prompt
    (found,) = read_prompts(build.blueprint, load_tokenizer(folder), given, None, tokens or build.tokens)
    lane, framework = _open(build, side, folder, at)
    progress = progress or Silent()
    progress.plan([Work("capture", build.blueprint.dims.layers + 2, found.length)])
    spec = build.blueprint.hash if side == "port" else None
    try:
        write_dump(
            out, lane, found.ids, build, framework=framework, weights=hash_checkpoint(folder, None), spec=spec,
            advance=lambda unit: progress.done("capture", unit),
        )  # fmt: skip
    except OSError as error:
        wrong = f"the dump cannot be written to {out}: {error.strerror or error}"
        raise ArtifactError(wrong, "a folder that can be written to", "Name another with --out.") from error
    return out


def write_dump(
    out: Path,
    lane: Lane,
    ids: Sequence[int],
    build: Build,
    *,
    framework: str,
    weights: str | None,
    spec: str | None = None,
    advance: Callable[[str], None] = lambda unit: None,
) -> None:
    """Runs a lane of the build's dtype on its own hidden states and records every node it shows.

    Raises:
        OSError: the folder cannot be written to, or holds a dump.
    """
    versions = {"porter": __version__, "torch": str(torch.__version__), "transformers": transformers.__version__}
    recorder = Recorder(
        out, ids=ids, dtype=build.dtype, model=build.name, framework=framework, versions=versions, spec=spec
    )
    recorder.manifest["weights"] = weights
    with recorder as record:
        for unit, nodes in _units(lane, torch.tensor([list(ids)]), build.blueprint.dims.layers):
            for node, value in nodes.items():
                record(full_name(unit, node), _as_numpy(value))
            advance(unit)


def _open(build: Build, side: Which, folder: Path, device: torch.device) -> tuple[Lane, str]:
    """The lane and what ran it."""
    dtype: torch.dtype = getattr(torch, build.dtype)
    if side == "reference":
        tensors = SharedTensors(build.reader().checkpoint)
        lane = HfReference(build.reference_blueprint, folder, dtype, device, tensors=tensors)
        return lane, lane.describe()
    ops = pick_ops(build.ops, str(device))
    decoder = Decoder(build.blueprint, Streamed(build.blueprint, make_ops(ops), build.reader(), dtype, device))
    what = "plain torch" if ops == "reference" else "fused Triton ops"
    return PortLane(decoder, dtype, device), f"porter {__version__}, {what}"


def _units(lane: Lane, ids_BT: Tensor, num_layers: int) -> Iterator[tuple[str, Nodes]]:
    """Each unit's nodes, the lane on its own hidden states."""
    lane.start(ids_BT)
    nodes = lane.embed()
    x_BTD = nodes["embed.out"]
    yield "embed", nodes
    for index in range(num_layers):
        lane.release()
        nodes = lane.layer(index, x_BTD)
        x_BTD = nodes["resid_post"]
        yield f"layers.{index}", nodes
    lane.release()
    yield "head", lane.head(x_BTD)
    lane.release()


def _as_numpy(value: Tensor) -> object:
    """float16 and wider as they are; bfloat16, which numpy lacks, in float32, from which the recorder takes it back."""
    value = value.detach().cpu().contiguous()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
