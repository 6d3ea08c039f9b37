"""The report of a finished run: its verdict, the one sentence, and where it ran."""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import torch
import transformers

from porter import __version__
from porter.comparison.report import Axis, Check, DiffReport, Logits, NodeDiff, Prompt, Side, Stage
from porter.comparison.verdicts import THRESHOLDS, conclude, suspects
from porter.models.build import Build
from porter.models.matmul import needs_float32
from porter.models.ops import OpsName


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
    declared: set[str] = field(default_factory=set)


def make_report(
    build: Build,
    found: Findings,
    *,
    ops: OpsName,
    device: torch.device,
    fail_on: Sequence[str],
    command: str,
    timings_s: Mapping[str, float],
) -> DiffReport:
    """The report of what was found, judged as a whole."""
    missing = sum(node.status == "NOT_COMPARED" for node in found.nodes)
    verdict, exit_code = conclude(found.stages, found.checks, missing, fail_on)
    what = f"{build.name}, {'executor' if ops == 'reference' else 'fused Triton ops'}"
    report = DiffReport(
        name=build.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        verdict=verdict,
        exit_code=exit_code,
        sentence="",
        port=Side(what, build.dtype, str(device), {"ops": ops, "spec": build.spec}),
        reference=Side(found.reference, build.dtype, str(device), {}),
        spec_hash=build.blueprint.hash,
        overrides=build.overrides,
        weights=build.weights,
        num_layers=build.blueprint.dims.layers,
        prompts=tuple(found.prompts),
        stages=tuple(found.stages),
        preflight=tuple(found.checks),
        nodes=tuple(found.nodes),
        logits=tuple(found.logits),
        axes=tuple(found.axes),
        declared=len(found.declared),
        thresholds={dtype: dict(limits) for stage in THRESHOLDS.values() for dtype, limits in stage.items()},
        environment=_environment(device, getattr(torch, build.dtype)),
        command=command or f"porter.diff({build.name!r})",
        timings_s={name: round(value, 3) for name, value in timings_s.items()},
    )
    return replace(report, sentence=_sentence(report, fail_on))


def _sentence(report: DiffReport, fail_on: Sequence[str]) -> str:
    """Verdict, node, number, and what to look at."""
    fail = report.first_fail
    if fail is not None:
        return f"FAIL at {fail.name} ({fail.stage}, {fail.dtype}): {fail.reason}. Look at {suspects(fail.name)}."
    if report.verdict == "PASS":
        dtypes = " and ".join(dict.fromkeys(stage.dtype for stage in report.stages))
        return f"PASS: {report.compared} nodes of {report.num_layers} layers agree with the reference in {dtypes}."
    if report.verdict == "INCONCLUSIVE":
        stage = next((s for s in report.stages if s.status == "INCONCLUSIVE"), None)
        where = f" at {stage.first} ({stage.name}, {stage.dtype}): {stage.detail}" if stage and stage.first else ""
        return f"INCONCLUSIVE{where or ': no node was compared'}."
    return _warned(report, fail_on)


def _warned(report: DiffReport, fail_on: Sequence[str]) -> str:
    """The sentence of a WARN, or of one that --fail-on made a FAIL."""
    unequal = next((s for s in report.stages if s.name == "exact" and s.status == "WARN"), None)
    judged = next((s for s in report.stages if s.name != "exact" and s.status == "WARN"), None)
    if unequal is not None and (judged is None or "exact" in fail_on):
        where = f"{unequal.first} (exact, {unequal.dtype}): {unequal.detail}"
        return f"{report.verdict} at {where}. Same function, other rounding: look at {suspects(str(unequal.first))}."
    if judged is not None:
        return f"{report.verdict} at {judged.first} ({judged.name}, {judged.dtype}): {judged.detail}."
    check = next((check for check in report.preflight if check.status == "WARN"), None)
    if check is not None:
        return f"{report.verdict}: {check.name} {check.detail}."
    missing = sum(node.status == "NOT_COMPARED" for node in report.nodes)
    return f"{report.verdict}: {missing} nodes were not compared."


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
