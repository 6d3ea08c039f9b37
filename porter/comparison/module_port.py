"""A user's own module as the port of a diff: what it is opened from, and what of a diff it can take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from porter.comparison.behaviour.checks import judge_logits, worst_first
from porter.comparison.logits_record import Logits
from porter.comparison.proposals import Proposals
from porter.comparison.report import Behaviour, Check
from porter.comparison.verdicts import BEHAVIOUR
from porter.errors import UsageError
from porter.models.build import Build
from porter.references.user_module.code import PREFIX, Opening, UserModule, split_target
from porter.references.user_module.draft import check_weights
from porter.references.user_module.lane import ModuleLane
from porter.references.user_module.map_file import NodeMap, read_node_map
from porter.references.user_module.parameters import Holdings
from porter.references.user_module.parts import layer_parts
from porter.specs.blueprint import Blueprint
from porter.weights.reader import WeightReader

_WAYS = "a module is fed whole prompts: its cache, padding and batches are its own affair"


@dataclass
class ModulePort:
    """The port of a run.

    Attributes:
        exact: its bits are compared with the reference's too.
        notes, proposals, checks: what the report should say of it.
    """

    module: UserModule
    map: NodeMap
    build: Build
    exact: bool
    notes: list[str] = field(default_factory=list)
    proposals: Proposals = field(default_factory=Proposals)
    checks: list[Check] = field(default_factory=list)

    @property
    def what(self) -> str:
        """What it is called in a report."""
        return f"{self.module.name}, a torch module"

    @property
    def details(self) -> dict[str, str]:
        return {"module": self.module.name, "map": self.map.source}

    def lane(
        self, folder: Path, reader: WeightReader, dtype: torch.dtype, device: torch.device, *, check: bool = True
    ) -> ModuleLane:
        """The module in a dtype; made anew for each.

        Args:
            check: refuse one without the checkpoint's weights.

        Raises:
            PreflightError: it does not hold the checkpoint's weights.
        """
        module = self.module.open(Opening(folder, self.build.config, dtype, device))
        lane = ModuleLane(self.module.name, module, self.map, self.build.blueprint, dtype, device)
        if check and not self.checks:
            self.checks.append(check_first_layer(lane, reader, self.build.blueprint))
        return lane

    def take_notes(self, lane: ModuleLane) -> None:
        """Keeps what a lane has found of the module."""
        self.notes = list(dict.fromkeys((*self.notes, *self.module.notes, *lane.notes)))


def open_port(
    port: str | nn.Module | None,
    node_map: Path | str | Mapping[str, Any] | None,
    build: Build,
    *,
    stages: Sequence[str],
    fail_on: Sequence[str],
    refused: Mapping[str, object],
) -> ModulePort | None:
    """The module that --port names; None: the port is porter's own assembly.

    Args:
        refused: flag -> what was given for it, of flags that change porter's own assembly alone.

    Raises:
        UsageError: the port is of an unknown kind, has no map, or is given flags that it cannot take.
        ArtifactError, SpecError: the map cannot be read, or is none.
    """
    if port is None:
        if node_map is not None:
            raise UsageError("--map without --port", "--port module:my_model:load", "Name the module, or leave it out.")
        return None
    if isinstance(port, str):
        if not port.startswith(PREFIX):
            raise UsageError(
                f"--port {port!r}", "dump:DIR, or module:pkg.mod:fn", "Leave it out: the port is the build."
            )
        split_target(port)
    if node_map is None:
        name = port.removeprefix(PREFIX) if isinstance(port, str) else "module:pkg.mod:fn"
        raise UsageError(
            "--port without --map", "a file that says where the nodes are", f"porter map {name} --out FILE drafts one."
        )
    changes = [f"--set {override}" for override in build.overrides]
    for flag in (*changes, *(flag for flag, given in refused.items() if given)):
        raise UsageError(f"{flag} with --port", "flags that do not change porter's own port", "Leave it out.")
    wanted_stages = set(stages)
    for stage in ("gradients", "behaviour"):
        if stage in wanted_stages and (stage == "gradients" or not wanted_stages & {"semantics", "precision"}):
            expected = "exact, semantics, precision, and behaviour beside these"
            raise UsageError(f"--stage {stage} with --port", expected, "Name others.")
    exact = "exact" in stages or "exact" in fail_on
    return ModulePort(UserModule(port), read_node_map(node_map), build, exact)


def check_first_layer(lane: ModuleLane, reader: WeightReader, blueprint: Blueprint) -> Check:
    """Whether a module's first layer holds the checkpoint's matrices, in whatever order.

    Raises:
        PreflightError: it holds none.
    """
    parts = {name: value for name, value in layer_parts(reader, blueprint, 0).items() if value.ndim == 2}
    holdings = Holdings(lane.passes.layers[0], loose=False)
    held = {name: holdings.find(value) for name, value in parts.items()}
    check_weights(lane.name, list(held.values()), f"{len(parts)} matrices of the checkpoint's layer 0")
    absent = [name for name, where in held.items() if where is None]
    said = f"{len(parts) - len(absent)} of {len(parts)} matrices of layer 0 are in {lane.passes.paths[0]}"
    if lane.dtype == torch.float32 and any(where is not None and where.rounded for where in held.values()):
        return Check("weights.module", "WARN", f"{said}, rounded to a narrower dtype than the checkpoint's")
    if absent:
        return Check("weights.module", "NOT_COMPARED", f"{said}; {', '.join(absent)} with other values, or turned")
    return Check("weights.module", "PASS", said)


def judge_module(dtype: str, logits: Sequence[Logits]) -> list[Behaviour]:
    """The checks of the behaviour stage that a module takes: its logits, of the stage in that dtype."""
    checks = worst_first(judge_logits(each) for each in logits if each.dtype == dtype)
    if dtype == "float32":
        checks.append(Behaviour("decode", dtype, "NOT_COMPARED", 0.0, BEHAVIOUR[dtype]["route"][0], _WAYS))
    return checks
