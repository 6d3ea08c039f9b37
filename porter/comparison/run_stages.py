"""The stages of a diff, one after another: what there is to do, and its doing."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from porter.comparison.behaviour.checks import judge_logits, worst_first
from porter.comparison.behaviour.lanes import HfRoutes, PortRoutes
from porter.comparison.behaviour.routes import choose_others
from porter.comparison.behaviour.stage import count_units, run_behaviour
from porter.comparison.behaviour.walk import Sides
from porter.comparison.cached_lane import Models, reference_lanes, units_of_run
from porter.comparison.changed_port import ChangedPort
from porter.comparison.conclusion import Findings
from porter.comparison.exact_stage import run_exact
from porter.comparison.gradients.lanes import BackwardLane, HfLane, PortBackward
from porter.comparison.gradients.run import run_gradients
from porter.comparison.lanes import Lane, PortLane
from porter.comparison.merge import merge_nodes
from porter.comparison.module_port import ModulePort, judge_module
from porter.comparison.names import StageName
from porter.comparison.one_unit import Captured
from porter.comparison.progress import Progress, Work
from porter.comparison.report import NodeDiff, Prompt
from porter.comparison.stages import Lanes, Selection, StageRun, run_stage
from porter.comparison.verdicts import summarize, summarize_behaviour, summarize_exact, summarize_gradients
from porter.models.build import Build
from porter.models.decoder import Decoder, Streamed
from porter.models.ops import OpsName, make_ops
from porter.references.backward import HfBackward
from porter.references.golden_cache import GoldenCache, Units
from porter.references.hf import HfReference
from porter.references.user_module.lane import ModuleLane
from porter.specs.axes import first_of_each_kind
from porter.weights.reader import SharedTensors, WeightReader

STAGES = ("exact", "semantics", "precision", "gradients", "behaviour")
DEFAULT_STAGES = ("semantics", "precision", "behaviour")


@dataclass
class Run:
    """How a diff runs, and what it has found so far."""

    build: Build
    device: torch.device
    ops: OpsName
    selection: Selection
    stages: frozenset[str]
    cache: GoldenCache | None
    progress: Progress
    self_check: bool
    module: ModulePort | None = None
    changed: ChangedPort | None = None
    reader: WeightReader = field(init=False)
    found: Findings = field(default_factory=Findings)
    captured: Captured | None = None
    timings_s: dict[str, float] = field(default_factory=dict)

    @property
    def behaves(self) -> bool:
        """All ways of feeding are tried; of a module that is not porter's the logits alone are judged."""
        return self.module is None and self.changed is None and self.judges_logits

    @property
    def judges_logits(self) -> bool:
        return "behaviour" in self.stages and self.selection.whole and not self.selection.first_bad

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.timings_s[what] = self.timings_s.get(what, 0.0) + time.perf_counter() - start


def planned(run: Run) -> list[tuple[StageName, str]]:
    """The stages that compare nodes, with their dtypes."""
    stages: list[tuple[StageName, str]] = [("semantics", "float32")]
    return stages if run.build.dtype == "float32" else [*stages, ("precision", run.build.dtype)]


def wanted_units(run: Run, cache: GoldenCache) -> Iterator[tuple[Units, str]]:
    """What this run may ask the cache for."""
    num_layers, gradients = run.build.blueprint.dims.layers, "gradients" in run.stages
    for stage, dtype in planned(run):
        nodes = stage in run.stages
        for prompt in run.found.prompts if nodes or gradients else ():
            ids_BT = torch.tensor([prompt.ids])
            for side, unit in units_of_run(run.selection, num_layers, nodes=nodes, gradients=gradients):
                yield cache.units(side, dtype, ids_BT), unit


def planned_work(run: Run) -> list[Work]:
    """The units of all stages, in order."""
    work, num_layers, selection = [], run.build.blueprint.dims.layers, run.selection
    units = num_layers + 2 if selection.whole else selection.last + 2
    longest = _longest(run.found.prompts).length
    for stage, dtype in planned(run):
        if stage in run.stages or "exact" in run.stages:
            called = stage if stage in run.stages else "exact"
            work += [Work(f"{called} {dtype}", units, prompt.length) for prompt in run.found.prompts]
        if "gradients" in run.stages:
            prompts = [prompt for prompt in run.found.prompts if prompt.length > 1]
            back = num_layers + 2 if selection.whole else num_layers + 1 - min(selection.layers)
            work += [Work(f"gradients {dtype}", back, 2 * prompt.length) for prompt in prompts]
        if run.behaves:
            work.append(Work(f"behaviour {dtype}", count_units(run.build, dtype, longest), longest))
    if run.stages & {"exact", "semantics", "precision"} and not selection.first_bad:
        work.append(Work("observability", 1, 2 * longest))  # 4 % of the time of a diff of Gemma-3-270M
        work += [Work("self-check", 1, 10 * longest)] if run.self_check else []
    return work


def run_stages(run: Run, folder: Path) -> None:
    blueprint, found = run.build.reference_blueprint, run.found
    for stage, dtype in planned(run):
        alone = "exact" in run.stages and stage not in run.stages
        if stage not in run.stages and not run.behaves and not alone and "gradients" not in run.stages:
            continue
        kind: torch.dtype = getattr(torch, dtype)
        with run.timed(f"load {dtype}"):
            shared = SharedTensors(run.reader.checkpoint)
            reader, models = replace(run.reader, shared=shared), Models(blueprint, folder, kind, run.device, shared)
        if alone:
            with run.timed("exact"):
                _run_exact(run, dtype, reader, models, folder)
            found.reference = models.reference.describe()
            if run.selection.first_bad and found.stages[-1].first is not None:
                break
        if stage in run.stages or "gradients" in run.stages:
            with run.timed(f"load {dtype}"):
                golden, reference = reference_lanes(models, run.cache, dtype)
                lanes = _lanes(run, reader, models, golden, reference)
        if stage in run.stages:
            with run.timed(stage):
                nodes: dict[str, NodeDiff] = {}
                for index in range(len(found.prompts)):
                    merge_nodes(nodes, _run_prompt(run, stage, dtype, lanes, index), index)
            found.nodes += nodes.values()
            if lanes.executor is not None:
                found.stages.append(summarize_exact(dtype, nodes.values()))
            found.stages.append(summarize(stage, dtype, nodes.values()))
            found.reference = reference.describe()
        if run.selection.first_bad and found.stages and found.stages[-1].status == "FAIL":
            break
        if "gradients" in run.stages:
            with run.timed("gradients"):
                _run_gradients(run, dtype, reader, golden, models, lanes.port)
            found.reference = models.reference.describe()
            if run.selection.first_bad and found.stages[-1].status == "FAIL":
                break
        if run.behaves:
            with run.timed("behaviour"):
                _run_behaviour(run, dtype, reader, models)
            found.reference = models.reference.describe()
        if run.module is not None and run.judges_logits and stage in run.stages:
            checks = judge_module(dtype, found.logits)
            found.behaviour += checks
            found.stages.append(summarize_behaviour(dtype, checks))
        if run.changed is not None and run.judges_logits and stage in run.stages:
            ids_BT = torch.tensor([_longest(found.prompts).ids])
            logits = worst_first(judge_logits(each) for each in found.logits if each.dtype == dtype)
            checks = [*logits, *run.changed.judge(dtype, models, ids_BT)]
            found.behaviour += checks
            found.stages.append(summarize_behaviour(dtype, checks))
    found.stages.sort(key=lambda each: STAGES.index(each.name))
    found.nodes.sort(key=lambda node: STAGES.index(node.stage))


def _run_exact(run: Run, dtype: str, reader: WeightReader, models: Models, folder: Path) -> None:
    """Bits alone, of a dtype in which no stage judges nodes by golden."""
    own = None if run.module is None else run.module.lane(folder, reader, models.dtype, run.device)
    executor = own or PortLane(_decoder(run, reader, "reference", models.dtype), models.dtype, run.device)
    nodes: dict[str, NodeDiff] = {}
    for index, prompt in enumerate(run.found.prompts):
        ids_BT, keep = torch.tensor([prompt.ids]), _inputs_to_keep(run, prompt)
        found = run_exact(
            dtype, run.build.blueprint.dims, models.reference, executor, ids_BT, run.selection, keep_inputs=keep,
            advance=lambda unit: run.progress.done(f"exact {dtype}", unit), why=own.why if own else None,
        )  # fmt: skip
        _capture(run, ids_BT, found, keep)
        merge_nodes(nodes, found, index)
    run.found.nodes += nodes.values()
    run.found.stages.append(summarize_exact(dtype, nodes.values()))


def _run_behaviour(run: Run, dtype: str, reader: WeightReader, models: Models) -> None:
    """The longest prompt on every path, others on some; the logits are judged that the stage before measured."""
    port = PortRoutes(_decoder(run, reader, run.ops, models.dtype), models.dtype, run.device)
    prompts = run.found.prompts
    longest = _longest(prompts)
    logits = [each for each in run.found.logits if each.dtype == dtype]
    sides = Sides(port, HfRoutes(models.reference), HfRoutes(models.golden))
    checks = run_behaviour(
        run.build, run.ops, dtype, sides, longest.ids, logits,
        advance=lambda unit: run.progress.done(f"behaviour {dtype}", unit),
        others=choose_others([prompt.ids for prompt in prompts], prompts.index(longest)),
    )  # fmt: skip
    run.found.behaviour += checks
    run.found.stages.append(summarize_behaviour(dtype, checks))


def _run_gradients(run: Run, dtype: str, reader: WeightReader, golden: Lane, models: Models, port: Lane) -> None:
    backward: BackwardLane
    if isinstance(port, HfReference):
        backward = HfLane(HfBackward(port), reader.ledger)
    else:
        backward = PortBackward(_decoder(run, reader, run.ops, models.dtype), models.dtype, models.device)
    nodes = run_gradients(
        dtype, backward, reader.ledger, models, golden, run.found.prompts, run.selection,
        advance=lambda unit: run.progress.done(f"gradients {dtype}", unit),
    )  # fmt: skip
    run.found.nodes += nodes
    run.found.declared |= {node.name for node in nodes}
    run.found.stages.append(summarize_gradients(dtype, nodes))


def _decoder(run: Run, reader: WeightReader, ops: OpsName, dtype: torch.dtype) -> Decoder:
    blueprint = run.build.blueprint
    return Decoder(blueprint, Streamed(blueprint, make_ops(ops), reader, dtype, run.device))


def _lanes(run: Run, reader: WeightReader, models: Models, golden: Lane, reference: Lane) -> Lanes:
    if run.changed is not None:
        return Lanes(run.build.blueprint.dims, golden, reference, run.changed.open(models), None)
    if run.module is not None:
        own = run.module.lane(models.folder, reader, reference.dtype, run.device)
        looks = partial(run.module.proposals.look, own)
        executor = own if run.module.exact else None
        return Lanes(run.build.blueprint.dims, golden, reference, own, executor, own.why, looks)

    def lane(ops: OpsName) -> PortLane:
        return PortLane(_decoder(run, reader, ops, reference.dtype), reference.dtype, run.device)

    port, dims = lane(run.ops), run.build.blueprint.dims
    return Lanes(dims, golden, reference, port, port if run.ops == "reference" else lane("reference"))


def _run_prompt(run: Run, stage: StageName, dtype: str, lanes: Lanes, index: int) -> StageRun:
    prompt = run.found.prompts[index]
    ids_BT, keep = torch.tensor([prompt.ids]), _inputs_to_keep(run, prompt)
    found = run_stage(
        stage, dtype, lanes, ids_BT, run.selection, keep_inputs=keep,
        advance=lambda unit: run.progress.done(f"{stage} {dtype}", unit),
    )  # fmt: skip
    _capture(run, ids_BT, found, keep)
    if run.module is not None and isinstance(lanes.port, ModuleLane):
        run.module.take_notes(lanes.port)
    if found.logits is not None:
        run.found.logits.append(replace(found.logits, prompt=index))
    return found


def _inputs_to_keep(run: Run, prompt: Prompt) -> frozenset[int]:
    """Layers whose inputs axes are tried on: of the longest prompt, once."""
    if run.captured is not None or prompt is not _longest(run.found.prompts):
        return frozenset()
    return run.selection.layers.intersection(first_of_each_kind(run.build.blueprint, run.selection.layers))


def _capture(run: Run, ids_BT: Tensor, found: StageRun, keep: frozenset[int]) -> None:
    if keep:
        run.captured = Captured(ids_BT, found.inputs, "embed.out" in found.declared, _by(run))
    run.found.declared |= found.declared


def _longest(prompts: Sequence[Prompt]) -> Prompt:
    return max(prompts, key=lambda prompt: prompt.length)


def _by(run: Run) -> frozenset[str]:
    """What axes can be seen by; bits of the port's dtype are compared with the stage in that dtype, or alone."""
    own = "semantics" if run.build.dtype == "float32" else "precision"
    if run.changed is not None or (run.module is not None and not run.module.exact):
        return run.stages & {"semantics", "precision"}
    return run.stages & {"semantics", "precision"} | ({"exact"} if {own, "exact"} & run.stages else set())
