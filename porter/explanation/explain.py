"""porter explain: which axis of the port's spec is wrong, and what it should be.

The port's spec is run in plain torch, a unit at a time, on golden's hidden states in float32, then bit for bit on the
reference's in the port's dtype. Where a unit fails, changes of the spec are tried on it until its nodes are at the
floor. float32 looks at the first layer of each kind, bits at every layer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from porter.comparison.lanes import Lane, Nodes
from porter.comparison.module_port import ModulePort, open_port
from porter.comparison.one_unit import Captured
from porter.comparison.preflight import load_tokenizer
from porter.comparison.progress import Progress, Silent, Work
from porter.comparison.prompts import read_prompts
from porter.comparison.request import find_build
from porter.explanation.fit import explain_misfits
from porter.explanation.search import Outcome, Search, Step
from porter.explanation.trial import By, Unit
from porter.models.build import Build
from porter.models.choices import pick_device
from porter.references.hf import HfReference
from porter.specs.blueprint import Blueprint
from porter.specs.ledger import misfits
from porter.weights.reader import SharedTensors, WeightReader, open_weights

_MOST_BYTES = 2**31
_HEAD_TOKENS = 16  # of the head, which is as wide as the vocabulary, the last tokens alone


@dataclass(frozen=True)
class Explanation:
    """What explain found.

    Attributes:
        steps: one for each fault, in the order of the forward pass.
        kept: the changes that mend the spec, axis=value.
        looked_at: the units of each dtype.
    """

    name: str
    outcome: Outcome
    steps: tuple[Step, ...]
    kept: tuple[str, ...]
    tokens: int
    dtype: str
    looked_at: tuple[str, ...]
    module: str = ""  # whose mistake the steps are, where it is a module's

    @property
    def exit_code(self) -> int:
        """0: explained, or nothing to explain; 1: partly, or not."""
        return 0 if self.outcome in ("nothing", "explained") else 1


@torch.no_grad()
def explain(
    model: str | Build | None = None,
    *,
    size: str | None = None,
    weights: str | None = None,
    overrides: Sequence[str] = (),
    dtype: str | None = None,
    ops: str | None = None,
    device: str | None = None,
    prompt: str | None = None,
    prompts: Path | None = None,
    tokens: int | None = None,
    port: str | nn.Module | None = None,
    map: Path | str | Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Explanation:
    """The changes that make the port's spec compute what its reference computes; or, of a module, what that computes.

    Args:
        model: a build, its name, a size, a family or a path to a YAML; None: the build just made.
        port, map: a module, as in diff: the spec is changed until it computes what the module does, in float32.
        overrides: axis=value, changing the port alone, after the build's own.
        prompt, prompts, tokens: see read_prompts; of several, the longest is taken.
        progress: told what there is to do, and each unit when it is done.

    Raises:
        PorterError: the comparison could not be made.
    """
    build = find_build(model, size, weights, overrides, dtype, ops, device)
    folder, progress = build.checkpoint(), progress or Silent()
    given = prompt if prompt is not None or prompts is not None else build.prompt
    length = build.tokens if tokens is None else tokens
    found = read_prompts(build.blueprint, load_tokenizer(folder), given, prompts, length)
    ids_BT = torch.tensor([max((each.ids for each in found), key=len)])
    search, looked_at = Search(build), []
    module = open_port(port, map, build, stages=(), fail_on=(), refused={f"--ops {ops}": ops})
    stages: list[tuple[By, str]] = [("semantics", "float32")]
    stages += [("exact", build.dtype)] if module is None else []
    units = build.blueprint.dims.layers + 2
    progress.plan([Work(f"{by} {kind}", units, ids_BT.shape[1]) for by, kind in stages])
    if module is None:
        explain_misfits(search, folder)
    for by, kind in stages if not search.stuck else ():
        walk = _Walk(search, folder, ids_BT, by, getattr(torch, kind), module)
        together: list[Unit] = []
        for name, unit in walk.units():
            progress.done(f"{by} {kind}", name)
            if unit is not None:
                looked_at.append(f"{kind} {name}")
                together.append(unit)
                if not walk.fits_in_memory:
                    search.visit(together.pop())
            if search.stuck:
                break
        for unit in together:
            search.visit(unit, together)
        if search.stuck:
            break
    return Explanation(
        build.name, search.outcome, tuple(search.steps), tuple(search.kept), ids_BT.shape[1], build.dtype,
        tuple(looked_at), module.module.name if module else "",
    )  # fmt: skip


class _Walk:
    """The reference in one dtype, and golden for semantics, through embedding, layers and head."""

    reference: Lane
    golden: Lane | None

    def __init__(
        self, search: Search, folder: Path, ids_BT: torch.Tensor, by: By, dtype: torch.dtype,
        module: ModulePort | None,
    ) -> None:  # fmt: skip
        self.port, self.by, self.dtype, self.ids_BT = search.resolved.blueprint, by, dtype, ids_BT
        self.device = torch.device(pick_device(search.build.device))
        right = open_weights(self.port, folder)
        self.reader: WeightReader = replace(right, shared=SharedTensors(right.checkpoint))
        blueprint = search.build.reference_blueprint
        if misfits(blueprint, {name: info.shape for name, info in right.checkpoint.tensors.items()}):
            blueprint = self.port  # a family of one's own, whose file has the fault
        if module is None:
            reference = HfReference(blueprint, folder, dtype, self.device, tensors=self.reader.shared)
            self.reference, self.golden = reference, reference.golden_of(folder) if by == "semantics" else None
        else:  # what the spec is to compute is what the module does, and its own float64 is golden
            self.reference = module.lane(folder, self.reader, dtype, self.device)
            self.golden = module.lane(folder, self.reader, torch.float64, self.device)
        self.lanes = [lane for lane in (self.reference, self.golden) if lane is not None]
        self.kinds = _kinds(self.port, blueprint)

    @property
    def fits_in_memory(self) -> bool:
        """Whether the nodes of all units that are looked at may be held at once."""
        dims, units = self.port.dims, len(self.kinds) + 2 if self.by == "semantics" else self.port.dims.layers
        wide = 8 * dims.hidden + 4 * dims.ffn + 4 * (dims.heads + 2 * dims.kv_heads) * dims.head_dim
        return units * self.ids_BT.shape[1] * wide * 12 < _MOST_BYTES  # 4 of float32 and 8 of float64

    def units(self) -> Iterator[tuple[str, Unit | None]]:
        """Each unit by its name, with what is judged there; None where it is only passed through."""
        stream, num_layers = self.golden or self.reference, self.port.dims.layers
        for lane in self.lanes:
            lane.start(self.ids_BT)
        nodes = [lane.embed() for lane in self.lanes]
        yield "embed", self._unit("embed", {}, nodes)
        x_BTD = nodes[-1]["embed.out"]
        for index in range(num_layers):
            self._release()
            given = x_BTD.to(self.dtype)
            after = stream.layer(index, given.to(stream.dtype))
            x_BTD, unit = after["resid_post"], None
            if self.by == "exact" or index in self.kinds:
                both = [after] if self.golden is None else [self.reference.layer(index, given), after]
                unit = self._unit(f"layers.{index}", {index: given}, both)
            yield f"layers.{index}", unit
        self._release()
        given = x_BTD.to(self.dtype)
        nodes = [lane.head(given[:, -_HEAD_TOKENS:].to(lane.dtype)) for lane in self.lanes]
        yield "head", self._unit("head", {num_layers: given}, nodes)
        self._release()

    def _unit(self, name: str, inputs: dict[int, torch.Tensor], nodes: list[Nodes]) -> Unit:
        captured = Captured(self.ids_BT, inputs)
        golden = nodes[1] if self.golden is not None else None
        alike = self.kinds.get(next(iter(inputs), -1), ()) if self.by == "semantics" else ()
        return Unit(name, self.by, self.dtype, self.device, captured, self.reader, nodes[0], golden, alike)

    def _release(self) -> None:
        for lane in reversed(self.lanes):
            lane.release()


def _kinds(port: Blueprint, reference: Blueprint) -> dict[int, tuple[int, ...]]:
    """The first layer of each kind with all of them; a layer's kind is what the port has there, and the spec had."""
    alike: dict[tuple[str, str], list[int]] = {}
    for index, blocks in enumerate(zip(port.blocks, reference.blocks, strict=True)):
        alike.setdefault((blocks[0].model_dump_json(), blocks[1].model_dump_json()), []).append(index)
    return {layers[0]: tuple(layers) for layers in alike.values()}
