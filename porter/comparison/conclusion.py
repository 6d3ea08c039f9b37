"""The report of a finished run: its verdict and where it ran."""

import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import torch
import transformers

from porter import __version__
from porter.comparison.changed_port import ChangedPort
from porter.comparison.logits_record import Logits
from porter.comparison.module_port import ModulePort
from porter.comparison.observed import Axis, Injected
from porter.comparison.report import Behaviour, Check, DiffReport, NodeDiff, Prompt, Side, Stage
from porter.comparison.sentence import sentence
from porter.comparison.verdicts import all_limits, conclude
from porter.models.build import Build
from porter.models.matmul import needs_float32
from porter.models.ops import OpsName

MOST_SAMPLES = 6  # nodes of a stage


@dataclass
class Findings:
    """What a run has found so far."""

    reference: str = ""
    prompts: Sequence[Prompt] = ()
    checks: list[Check] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    nodes: list[NodeDiff] = field(default_factory=list)
    logits: list[Logits] = field(default_factory=list)
    axes: list[Axis] = field(default_factory=list)
    behaviour: list[Behaviour] = field(default_factory=list)
    self_check: list[Injected] = field(default_factory=list)
    declared: set[str] = field(default_factory=set)
    golden: Mapping[str, str | int] = field(default_factory=dict)
    notes: Sequence[str] = ()


def make_report(
    build: Build,
    found: Findings,
    *,
    ops: OpsName,
    device: torch.device,
    fail_on: Sequence[str],
    command: str,
    timings_s: Mapping[str, float],
    module: ModulePort | ChangedPort | None = None,
) -> DiffReport:
    """The report of what was found, judged as a whole."""
    missing = sum(node.status == "NOT_COMPARED" for node in found.nodes)
    missed = sum(each.outcome == "missed" for each in found.self_check)
    verdict, exit_code = conclude(found.stages, found.checks, missing, fail_on, missed)
    if module is None:
        what = f"{build.name}, {'plain torch' if ops == 'reference' else 'fused Triton ops'}"
        details: dict[str, str] = {"ops": ops, "spec": build.spec}
    else:
        what, details = module.what, {**module.details, "spec": build.spec}
    report = DiffReport(
        name=build.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        verdict=verdict,
        exit_code=exit_code,
        sentence="",
        port=Side(what, build.dtype, str(device), details),
        reference=Side(found.reference, build.dtype, str(device), {}),
        spec_hash=build.blueprint.hash,
        overrides=build.overrides,
        weights=build.weights,
        num_layers=build.blueprint.dims.layers,
        prompts=tuple(found.prompts),
        stages=tuple(found.stages),
        preflight=tuple(found.checks),
        nodes=tuple(keep_samples(found.nodes)),
        logits=tuple(found.logits),
        axes=tuple(found.axes),
        declared=len(found.declared),
        thresholds=all_limits(),
        environment=_environment(device, getattr(torch, build.dtype)),
        command=command or f"porter.diff({build.name!r})",
        timings_s={name: round(value, 3) for name, value in timings_s.items()},
        warnings=tuple(found.notes),
        fail_on=tuple(fail_on),
        behaviour=tuple(found.behaviour),
        golden=found.golden,
        self_check=tuple(found.self_check),
        proposals=tuple(module.proposals.found.values()) if isinstance(module, ModulePort) else (),
    )
    return replace(report, sentence=sentence(report))


def keep_samples(nodes: Sequence[NodeDiff]) -> Iterator[NodeDiff]:
    """The nodes, samples left to those that a reader looks at first: of each stage the first that did not pass and
    what follows in that unit, or the one with the largest ρ.
    """
    kept: set[int] = set()
    for key in dict.fromkeys((node.stage, node.dtype) for node in nodes):
        mine = [node for node in nodes if (node.stage, node.dtype) == key and node.sample is not None]
        bad = [node for status in ("FAIL", "INCONCLUSIVE", "WARN") for node in mine if node.status == status]
        near = [node for node in bad if node.layer == bad[0].layer]
        largest = sorted(mine, key=lambda node: node.local.rho if node.local else 0.0)[-1:]
        kept |= {id(node) for node in near[:MOST_SAMPLES] or largest}
    return (node if id(node) in kept else replace(node, sample=None) for node in nodes)


def _environment(device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    found = {
        "porter": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": str(torch.get_num_threads()),
        "TF32": str(torch.backends.cuda.matmul.allow_tf32).lower(),
        "TRITON_DEFAULT_FP_FUSION": os.environ.get("TRITON_DEFAULT_FP_FUSION", "unset"),
    }
    if needs_float32(dtype, device):
        found["matmul"] = "in float32, rounded once, on both sides: this CPU has no units for the port's dtype"
    if "triton" in sys.modules:
        found["triton"] = sys.modules["triton"].__version__
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found
