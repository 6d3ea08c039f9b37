"""The figure: log-L2 over the layers, a curve for every combination of changes, and the one that is the reference.

Each combination runs on its own hidden states beside the reference, all of them in lock-step, so that a layer's weights
are read once. A combination that is right is bit-equal to the reference after every layer: the spec is run in plain
torch, so rounding is no excuse. The band is what rounding costs the reference itself, from golden.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from porter.comparison.lanes import Lane, PortLane
from porter.comparison.preflight import load_tokenizer
from porter.comparison.progress import Progress, Silent, Work
from porter.comparison.prompts import read_prompts
from porter.comparison.request import find_build
from porter.errors import UsageError
from porter.models.build import Build
from porter.models.choices import pick_device
from porter.models.decoder import Decoder, Streamed
from porter.models.ops import make_ops
from porter.references.hf import HfReference
from porter.specs.axes import SWAPS
from porter.weights.reader import SharedTensors, WeightReader, open_weights

MOST_CHANGES = 6  # 64 curves
BOS = "tokenizer.add_bos=false"  # a change of the prompt: the port does without its first token


@dataclass(frozen=True)
class Change:
    """One thing that a port may have otherwise: its name in the figure, and axis=value."""

    label: str
    override: str


@dataclass(frozen=True)
class Curve:
    """One combination.

    Attributes:
        made: for each change, whether it is made.
        l2: ‖h_port − h_reference‖₂ after the embedding and after each layer; 0.0: bit-equal.
    """

    made: tuple[bool, ...]
    l2: tuple[float, ...]

    @property
    def is_reference(self) -> bool:
        """Bit-equal everywhere."""
        return not any(self.l2)


@dataclass(frozen=True)
class Curves:
    """All combinations on one prompt.

    Attributes:
        places: embed, 0, 1, …
        floor: ‖h_reference − golden‖₂ at each place.
        size: ‖h_reference‖₂ at each place.
    """

    name: str
    dtype: str
    tokens: int
    prompt: str
    changes: tuple[Change, ...]
    places: tuple[str, ...]
    curves: tuple[Curve, ...]
    floor: tuple[float, ...]
    size: tuple[float, ...]
    command: str

    @property
    def winners(self) -> list[Curve]:
        """The combinations that compute what the reference does; of several, the prompt cannot tell them apart."""
        return [curve for curve in self.curves if curve.is_reference]

    def told(self, curve: Curve) -> str:
        """A combination in words."""
        labels = [change.label for change, made in zip(self.changes, curve.made, strict=True) if made]
        return " + ".join(labels) if labels else "nothing changed"


def default_changes(build: Build) -> list[Change]:
    """What ports of such a model got wrong: activation, RoPE positions, embedding, norm, BOS, as far as it has them."""
    blueprint = build.blueprint
    block, found = blueprint.blocks[0], []
    if other := SWAPS["mlp.act"].get(block.mlp.act):
        found.append(Change(f"{other} for {block.mlp.act}", f"block.mlp.act={other}"))
    if any(each.rope for each in blueprint.blocks):
        found.append(Change("positions in the activations' dtype", "block.rope.pos_dtype=act"))
    if blueprint.embed.scale is not None:
        other = SWAPS["scale_rounding"][blueprint.embed.scale_rounding]
        found.append(Change("embedding scale not rounded" if other == "none" else "embedding scale rounded",
                            f"embed.scale_rounding={other}"))  # fmt: skip
    if blueprint.norm.kind == "rms":
        other = SWAPS["math"][blueprint.norm.math]
        place = "before" if other == "cast_then_scale" else "after"
        found.append(Change(f"norm cast {place} the weight", f"norm.math={other}"))
    if blueprint.tokenizer.add_bos:
        found.append(Change("no BOS", BOS))
    return found


def parse_change(text: str) -> Change:
    """axis=value, or LABEL: axis=value.   Raises UsageError."""
    label, colon, override = text.rpartition(": ")
    override = override.strip()
    if "=" not in override:
        raise UsageError(
            f"--change {text!r} has no =",
            "axis=value, or 'a name: axis=value'",
            "For example --change block.mlp.act=gelu.",
        )
    return Change(label.strip() if colon else override, override)


@torch.no_grad()
def trace_curves(
    model: str | Build | None = None,
    *,
    changes: Sequence[Change] = (),
    size: str | None = None,
    weights: str | None = None,
    overrides: Sequence[str] = (),
    dtype: str | None = None,
    device: str | None = None,
    prompt: str | None = None,
    tokens: int | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> Curves:
    """Every combination of the changes against the reference, layer by layer.

    Args:
        model: as porter.diff takes it; its spec, in plain torch, is what is changed.
        changes: empty: see default_changes.

    Raises:
        UsageError: more changes than MOST_CHANGES, or none.
        PorterError: a change is unknown or changes nothing, or the comparison could not be made.
    """
    build = find_build(model, size, weights, overrides, dtype, "reference", device)
    chosen = tuple(changes) or tuple(default_changes(build))
    if not 1 <= len(chosen) <= MOST_CHANGES:
        raise UsageError(f"{len(chosen)} changes", f"1 to {MOST_CHANGES}; each doubles the curves", "Name fewer.")
    folder, progress = build.checkpoint(), progress or Silent()
    length = build.tokens if tokens is None else tokens
    given = read_prompts(build.blueprint, load_tokenizer(folder), prompt or build.prompt, None, length)[0]
    walk = _Walk(build, folder, chosen, torch.tensor([given.ids]), progress)
    walk.run()
    return Curves(
        name=build.name, dtype=build.dtype, tokens=given.length, prompt=given.label, changes=chosen,
        places=("embed", *map(str, range(build.blueprint.dims.layers))),
        curves=tuple(Curve(each.made, tuple(each.l2)) for each in walk.variants), floor=tuple(walk.floor),
        size=tuple(walk.size), command=command,
    )  # fmt: skip


@dataclass
class _Variant:
    """One combination on its way through the layers."""

    made: tuple[bool, ...]
    lane: PortLane
    skipped: int  # tokens of the prompt that it does without
    x_BTD: Tensor
    l2: list[float]


class _Walk:
    """Reference, golden and all combinations in lock-step."""

    def __init__(
        self, build: Build, folder: Path, changes: Sequence[Change], ids_BT: Tensor, progress: Progress
    ) -> None:
        self.build, self.changes, self.ids_BT, self.progress = build, changes, ids_BT, progress
        self.dtype, self.device = getattr(torch, build.dtype), torch.device(pick_device(build.device))
        right = open_weights(build.reference_blueprint, folder)
        self.shared = SharedTensors(right.checkpoint)
        self.reference: Lane = HfReference(
            build.reference_blueprint, folder, self.dtype, self.device, tensors=self.shared
        )
        assert isinstance(self.reference, HfReference)
        self.golden: Lane = self.reference.golden_of(folder)
        combinations = [tuple(reversed(each)) for each in product((False, True), repeat=len(changes))]
        self.variants = [self._variant(made, folder) for made in combinations]
        self.floor: list[float] = []
        self.size: list[float] = []

    def run(self) -> None:
        """Fills in every curve, the floor and the size."""
        num_layers = self.build.blueprint.dims.layers
        self.progress.plan([Work("curves", num_layers + 1, len(self.variants) + 2)])
        for lane in (self.reference, self.golden):
            lane.start(self.ids_BT)
        reference, golden = self.reference.embed()["embed.out"], self.golden.embed()["embed.out"]
        for each in self.variants:
            each.lane.start(self.ids_BT[:, each.skipped :])
            each.x_BTD = each.lane.embed()["embed.out"]
            each.lane.release()
        self._note(reference, golden)
        self.progress.done("curves", "embed")
        for index in range(num_layers):
            golden = self.golden.output(index, golden.to(self.dtype).to(torch.float64))
            reference = self.reference.output(index, reference)
            for each in self.variants:
                each.x_BTD = each.lane.output(index, each.x_BTD)
                each.lane.release()
            for lane in (self.golden, self.reference):
                lane.release()
            self.shared.release()
            self._note(reference, golden)
            self.progress.done("curves", f"layers.{index}")

    def _note(self, reference: Tensor, golden: Tensor) -> None:
        wide = reference.double()
        self.floor.append(_norm(wide - golden.double()))
        self.size.append(_norm(wide))
        for each in self.variants:
            each.l2.append(_norm(each.x_BTD.double() - wide[:, each.skipped :]))

    def _variant(self, made: tuple[bool, ...], folder: Path) -> _Variant:
        overrides = [change.override for change, on in zip(self.changes, made, strict=True) if on]
        skipped = self._skipped() if BOS in overrides else 0
        blueprint = self.build.changed([each for each in overrides if each != BOS]).blueprint
        right = open_weights(blueprint, folder)
        reader = WeightReader(right.checkpoint, right.ledger, self.shared)
        decoder = Decoder(blueprint, Streamed(blueprint, make_ops("reference"), reader, self.dtype, self.device))
        return _Variant(made, PortLane(decoder, self.dtype, self.device), skipped, torch.empty(0), [])

    def _skipped(self) -> int:
        bos = self.build.blueprint.tokenizer.bos_id
        if bos is None or int(self.ids_BT[0, 0]) != bos:
            wrong = f"--change {BOS}: the prompt does not begin with BOS"
            raise UsageError(wrong, f"the id {bos} first", "Leave it out.")
        return 1


def _norm(difference: Tensor) -> float:
    found = float(torch.linalg.vector_norm(difference))
    return found if math.isfinite(found) else math.inf
