"""porter explain: which axis of the port's spec is wrong, and what it should be.

The port's spec is run in plain torch, a unit at a time, on golden's hidden states in float32, then bit for bit on the
reference's in the port's dtype. Where a unit fails, changes of the spec are tried on it until its nodes are at the
floor. float32 looks at the first layer of each kind, bits at every layer.

A module or a dump has no spec: there the right one is changed, until it computes what the port computed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from porter.comparison.dump_diff import Dumps, check_dumps, open_dumps, prompt_of_dump
from porter.comparison.dump_lane import DumpLane
from porter.comparison.explained import Explained, Outcome
from porter.comparison.lanes import Lane
from porter.comparison.module_port import ModulePort, open_port
from porter.comparison.preflight import load_tokenizer
from porter.comparison.progress import Progress, Silent, Work
from porter.comparison.prompts import read_prompts
from porter.comparison.request import find_build
from porter.errors import UsageError, WeightError
from porter.explanation.fit import explain_misfits
from porter.explanation.search import Search
from porter.explanation.steps import Step
from porter.explanation.told import tell
from porter.explanation.trial import AnyUnit, By, ForeignUnit
from porter.explanation.walk import ForeignWalk, SpecWalk
from porter.explanation.weight_notes import note_weights
from porter.models.build import Build
from porter.models.choices import pick_device
from porter.references.dump import is_dump
from porter.weights.reader import open_weights


@dataclass(frozen=True)
class Explanation:
    """What explain found.

    Attributes:
        steps: one for each fault, in the order of the forward pass.
        kept: the changes that mend the spec, axis=value; of a foreign port, those that make the right spec compute what
            it computed.
        tensors: sentences about what became of the port's tensors, and what its code does otherwise.
        foreign: the port is a module or a dump, whose spec is not known.
        looked_at: the units of each dtype.
        record: the same as plain values, as a report holds it.
        notes: what the checkpoint's tensors say of themselves; no fault of the port, which computes with them.
    """

    name: str
    outcome: Outcome
    steps: tuple[Step, ...]
    kept: tuple[str, ...]
    tokens: int
    dtype: str
    looked_at: tuple[str, ...]
    record: Explained
    foreign: bool = False
    tensors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def told(self) -> tuple[str, ...]:
        """All that it names."""
        return (*self.kept, *self.tensors)

    @property
    def exit_code(self) -> int:
        """0: explained, or nothing to explain; 1: partly, or not."""
        return self.record.exit_code


@torch.no_grad()
def explain(
    model: str | Build | None = None,
    *,
    port: str | nn.Module | None = None,
    map: Path | str | Mapping[str, Any] | None = None,
    size: str | None = None,
    weights: str | None = None,
    overrides: Sequence[str] = (),
    dtype: str | None = None,
    ops: str | None = None,
    device: str | None = None,
    prompt: str | None = None,
    prompts: Path | None = None,
    tokens: int | None = None,
    progress: Progress | None = None,
) -> Explanation:
    """The changes that make the port's spec compute what its reference computes.

    Args:
        model: a build, its name, a size, a family or a path to a YAML; None: the build just made.
        port: as porter.diff takes it: a module, module:pkg.mod:fn, or dump:DIR; None: the build.
        map: where the nodes of a module are.
        overrides: axis=value, changing the port alone, after the build's own.
        dtype: of the build; a module is run in float32 and then in the build's where none is given.
        prompt, prompts, tokens: see read_prompts; of several, the longest is taken.
        progress: told what there is to do, and each unit when it is done.

    Raises:
        PorterError: the comparison could not be made.
    """
    dumped = isinstance(port, str) and is_dump(port)
    dumps = open_dumps(str(port), "hf", dtype) if dumped else None
    build = find_build(model, size, weights, overrides, dumps.dtype if dumps else dtype, ops, device)
    module = open_port(None if dumped else port, map, build, stages=(), fail_on=(), refused={f"--ops {ops}": ops})
    if dumps is not None and build.overrides:
        raise UsageError(f"--set {build.overrides[0]} with {port}", "it changes the port, and that is a dump",
                         "Leave it out.")  # fmt: skip
    folder, progress = build.checkpoint(), progress or Silent()
    given = prompt if prompt is not None or prompts is not None else build.prompt
    length = build.tokens if tokens is None else tokens
    ids_BT = _ids(build, folder, dumps, given, prompts, length)
    if dumps is not None:
        lanes = {dumps.dtype: partial(_dump_lane, build, folder, dumps)}
        return _explain_foreign(build, folder, lanes, ids_BT, progress)
    if module is not None:
        kinds = [dtype] if dtype else ["float32", build.dtype]
        lanes = {kind: partial(_module_lane, build, folder, module, kind) for kind in kinds}
        return _explain_foreign(build, folder, lanes, ids_BT, progress)
    return _explain_spec(build, folder, ids_BT, progress)


def _explain_spec(build: Build, folder: Path, ids_BT: torch.Tensor, progress: Progress) -> Explanation:
    search, looked_at = Search(build), list[str]()
    stages: list[tuple[By, str]] = [("semantics", "float32"), ("exact", build.dtype)]
    units = build.blueprint.dims.layers + 2
    progress.plan([Work(f"{by} {kind}", units, ids_BT.shape[1]) for by, kind in stages])
    explain_misfits(search, folder)
    for by, kind in stages:
        if not search.stuck and not (by == "exact" and search.others):  # so mended, it has other bits and other names
            walk = SpecWalk(search, folder, ids_BT, by, getattr(torch, kind))
            looked_at += _visit(search, walk, f"{by} {kind}", kind, progress)
    return _conclude(search, ids_BT, build.dtype, looked_at, _notes(search, folder), foreign=False)


def _explain_foreign(
    build: Build, folder: Path, lanes: Mapping[str, Callable[[], Lane]], ids_BT: torch.Tensor, progress: Progress
) -> Explanation:
    """What a port of another make computed, in one dtype after the other; a lane is made when it is its turn."""
    search, looked_at, units = Search(build), list[str](), build.blueprint.dims.layers + 2
    progress.plan([Work(f"port {kind}", units, ids_BT.shape[1]) for kind in lanes])
    for kind, make in lanes.items():
        if not search.stuck:
            walk = ForeignWalk(search, folder, ids_BT, make())
            looked_at += _visit(search, walk, f"port {kind}", kind, progress)
    return _conclude(search, ids_BT, list(lanes)[-1], looked_at, _notes(search, folder), foreign=True)


def _visit(search: Search, walk: SpecWalk | ForeignWalk, stage: str, kind: str, progress: Progress) -> list[str]:
    """Explains unit after unit, with all of them at hand where they fit in memory; the names of those looked at."""
    together: list[AnyUnit] = []
    looked_at = []
    units: Iterator[tuple[str, AnyUnit | None]] = walk.units()
    for name, unit in units:
        progress.done(stage, name)
        if unit is not None:
            looked_at.append(f"{kind} {name}")
            together.append(unit)
            if not walk.fits_in_memory:
                search.visit(together.pop())
        if search.stuck:
            return looked_at
    for unit in together:
        search.visit(unit, together)
    for unit in together:
        if isinstance(unit, ForeignUnit):
            search.visit_bits(replace(unit, by="exact"))
    return looked_at


def _conclude(
    search: Search,
    ids_BT: torch.Tensor,
    dtype: str,
    looked_at: Iterable[str],
    notes: tuple[str, ...],
    *,
    foreign: bool,
) -> Explanation:
    steps, kept, tokens = tuple(search.steps), tuple(search.kept), ids_BT.shape[1]
    tensors, looked = tuple(each.override for each in search.others), tuple(looked_at)
    record = tell(
        search.build, search.outcome, steps, kept=kept, tensors=tensors, tokens=tokens, dtype=dtype, looked_at=looked,
        notes=notes, foreign=foreign,
    )  # fmt: skip
    return Explanation(
        search.build.name, search.outcome, steps, kept, tokens, dtype, looked, record, foreign, tensors, notes
    )


def _notes(search: Search, folder: Path) -> tuple[str, ...]:
    try:
        reader = open_weights(search.resolved.blueprint, folder)
    except WeightError:  # which stays unexplained
        return ()
    return tuple(note_weights(search.resolved.blueprint, reader))


def _ids(
    build: Build, folder: Path, dumps: Dumps | None, prompt: str | None, prompts: Path | None, tokens: int | None
) -> torch.Tensor:
    """[1, T]: the longest prompt; of a dump, its own."""
    tokenizer = load_tokenizer(folder)
    if dumps is not None:
        return torch.tensor([prompt_of_dump(dumps, (), build.blueprint.dims.vocab, tokenizer).ids])
    found = read_prompts(build.blueprint, tokenizer, prompt, prompts, tokens)
    return torch.tensor([max((each.ids for each in found), key=len)])


def _module_lane(build: Build, folder: Path, module: ModulePort, dtype: str) -> Lane:
    kind, device = getattr(torch, dtype), torch.device(pick_device(build.device))
    return module.lane(folder, build.reader(), kind, device, check=False)  # what became of its weights is to be found


def _dump_lane(build: Build, folder: Path, dumps: Dumps) -> Lane:
    assert dumps.port is not None
    for _ in check_dumps(dumps, build, folder):
        pass
    return DumpLane(dumps.port, build.blueprint.dims.layers, torch.device(pick_device(build.device)))
