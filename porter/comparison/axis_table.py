"""Each family's own mutations: is a wrong value of every axis that its file sets caught, in float32 or by other bits?

One layer of each kind is run on what the right spec gives it, at the size tiny with weights that hide nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from porter.comparison.exactness import plan_exact
from porter.comparison.observability import observe_axes
from porter.comparison.observed import Axis
from porter.comparison.one_unit import Captured
from porter.models.build import Build
from porter.models.decoder import Decoder, Streamed
from porter.models.ops import make_ops
from porter.specs.family import Family
from porter.specs.overview import axes_off_the_base

TOKENS = 320


@dataclass(frozen=True)
class FamilyAxes:
    """A family and its axes.

    Attributes:
        axes: those that were changed, each with where the change showed.
        own: paths among them that the family's file, or a parent's, sets.
        untried: axes that the file sets and no wrong value is known for: what needs other tensors, or has no number.
    """

    family: str
    axes: tuple[Axis, ...]
    own: frozenset[str]
    untried: tuple[str, ...]

    @property
    def missed(self) -> tuple[Axis, ...]:
        """Own axes whose change did not show."""
        return tuple(axis for axis in self.axes if axis.path in self.own and axis.seen is None)


def mutate_family(family: Family) -> FamilyAxes:
    """Every axis of a family changed, at its size tiny."""
    build = plan_exact(str(family.path), "tiny")
    axes = tuple(
        observe_axes(build.blueprint, build.reader(), capture_inputs(build), torch.bfloat16, torch.device("cpu"))
    )
    paths = {axis.path for axis in axes}
    sets = {_full(path) for path in axes_off_the_base(family)}
    own = frozenset(path for path in paths if any(path == each or path.startswith(f"{each}.") for each in sets))
    covered = {each for each in sets if any(path == each or path.startswith(f"{each}.") for path in paths)}
    return FamilyAxes(family.name, axes, own, tuple(sorted(sets - covered)))


def _full(path: str) -> str:
    """block.attn.scale for attn.scale, as axes of a block are called for short."""
    return path if path.split(".")[0] in ("embed", "norm", "final_norm", "head", "patterns") else f"block.{path}"


@torch.no_grad()
def capture_inputs(build: Build) -> Captured:
    """What each layer, and the head, is given by the right spec in float32."""
    cpu = torch.device("cpu")
    decoder = Decoder(
        build.blueprint, Streamed(build.blueprint, make_ops("reference"), build.reader(), torch.float32, cpu)
    )
    ids_BT = torch.randint(build.blueprint.dims.vocab, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    found: dict[str, torch.Tensor] = {}

    def keep(name: str, value: torch.Tensor) -> None:
        if name.endswith("resid_post") or name == "embed.out":
            found[name] = value

    decoder(ids_BT, tap=keep)
    outputs = [found["embed.out"], *(found[f"layers.{i}.resid_post"] for i in range(build.blueprint.dims.layers))]
    return Captured(ids_BT, dict(enumerate(outputs)))


def mutate_families(families: list[Family]) -> Iterator[FamilyAxes]:
    """Each in turn."""
    yield from map(mutate_family, families)
