"""porter diff: a port and its reference on the same tokens, stage by stage, and the verdict."""

import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

import porter
from porter.comparison.lanes import PortLane
from porter.comparison.observability import Captured, observe_axes
from porter.comparison.preflight import check_tokenizer, load_tokenizer
from porter.comparison.prompts import read_prompts
from porter.comparison.report import (
    Axis,
    Check,
    DiffReport,
    Logits,
    NodeDiff,
    Prompt,
    Side,
    Stage,
    StageName,
    Verdict,
)
from porter.comparison.stages import Lanes, Selection, StageRun, run_stage
from porter.comparison.verdicts import FAIL_ON, THRESHOLDS, conclude, suspects, summarize, summarize_exact
from porter.errors import UsageError, closest
from porter.models.build import Build, pick_device, pick_ops, plan_build, read_build
from porter.models.decoder import Decoder, Streamed
from porter.models.matmul import needs_float32
from porter.models.ops import OpsName, make_ops
from porter.references.hf import HfReference
from porter.specs.axes import first_of_each_kind
from porter.specs.blueprint import Blueprint

Progress = Callable[[str, str], None]  # (stage, unit), called when a unit is done


@dataclass
class _Run:
    """What a diff has gathered so far."""

    build: Build
    device: torch.device
    ops: OpsName
    selection: Selection
    timings_s: dict[str, float] = field(default_factory=dict)
    nodes: list[NodeDiff] = field(default_factory=list)
    logits: list[Logits] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    declared: set[str] = field(default_factory=set)
    captured: Captured | None = None
    reference: str = ""

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.timings_s[what] = self.timings_s.get(what, 0.0) + time.perf_counter() - start


def diff(
    model: str | Build | None = None,
    *,
    reference: str = "hf",
    layers: str = "all",
    size: str | None = None,
    weights: str | None = None,
    overrides: Sequence[str] = (),
    dtype: str | None = None,
    ops: str | None = None,
    device: str | None = None,
    prompt: str | None = None,
    prompts: Path | None = None,
    tokens: int | None = None,
    fail_on: Sequence[str] = (),
    progress: Progress = lambda stage, unit: None,
    command: str = "",
) -> DiffReport:
    """Compares a port with its reference, layer by layer.

    Args:
        model: a build, its name, a size, a family or a path to a YAML; None: the build just made.
        reference: hf.
        layers: all, first-bad, or a list such as 0-3,7.
        overrides: axis=value, changing the port alone, after the build's own.
        prompt, prompts, tokens: see read_prompts.
        fail_on: warn, exact, missing: what counts as divergence besides FAIL.

    Returns:
        The report; its exit_code is 0 for PASS and WARN, 1 for FAIL, 4 when nothing could be judged.

    Raises:
        PorterError: the comparison could not be made.
    """
    build = find_build(model, size, weights, overrides, dtype, ops, device)
    if reference != "hf":
        raise UsageError(f"--reference {reference!r}", "hf", "Leave it out.")
    for each in fail_on:
        if each not in FAIL_ON:
            raise UsageError(f"--fail-on {each!r}", closest(each, FAIL_ON), f"Any of {', '.join(FAIL_ON)}, with commas.")
    started, at = time.perf_counter(), torch.device(pick_device(build.device))
    selection = select_layers(layers, build.blueprint.dims.layers)
    run = _Run(build, at, pick_ops(build.ops, str(at)), selection)
    with run.timed("weights"):
        folder = build.checkpoint()
        build.reader()
    with run.timed("preflight"):
        tokenizer = load_tokenizer(folder)
        checks = check_tokenizer(build.blueprint, folder, tokenizer)
        checks += _check_config(build)
        given = prompt if prompt is not None or prompts is not None else build.prompt
        found = read_prompts(build.blueprint, tokenizer, given, prompts, tokens or build.tokens)
    _run_stages(run, folder, found, progress)
    axes: list[Axis] = []
    if run.captured is not None and not selection.first_bad:
        with run.timed("observability"):
            at_dtype: torch.dtype = getattr(torch, build.dtype)
            axes = observe_axes(build.blueprint, build.reader(), run.captured, at_dtype, at)
    run.timings_s["total"] = time.perf_counter() - started
    return _report(run, found, checks, axes, fail_on, command)


def find_build(
    model: str | Build | None,
    size: str | None,
    weights: str | None,
    overrides: Sequence[str],
    dtype: str | None,
    ops: str | None,
    device: str | None,
) -> Build:
    """The build a model argument means, with the flags over its record."""
    recorded = model if isinstance(model, Build) else None
    if recorded is None and not (model and size):
        recorded = read_build(model)
    if recorded is not None and weights is None and size is None and dtype is None and not overrides:
        return replace(recorded, ops=ops or recorded.ops, device=device or recorded.device)
    if recorded is not None:
        return plan_build(
            recorded.spec, size=size or recorded.size, weights=weights or recorded.weights,
            overrides=(*recorded.overrides, *overrides), dtype=dtype or recorded.dtype, ops=ops or recorded.ops,
            device=device or recorded.device, prompt=recorded.prompt, tokens=recorded.tokens,
        )  # fmt: skip
    assert isinstance(model, str)
    return plan_build(
        model, size=size, weights=weights, overrides=overrides, dtype=dtype or "bfloat16", ops=ops or "auto",
        device=device or "auto", prompt=None, tokens=None,
    )  # fmt: skip


def select_layers(text: str, num_layers: int) -> Selection:
    """The selection that --layers means.

    Raises:
        UsageError: it is no list of layers, or names one the model lacks.
    """
    everything = frozenset(range(num_layers))
    if text in {"all", "first-bad"}:
        return Selection(everything, whole=True, first_bad=text == "first-bad")
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise UsageError(f"--layers {text!r}", "all, first-bad, or a list such as 0-3,7", "Correct it.")
        chosen.update(range(int(first), int(last if dash else first) + 1))
    beyond = sorted(chosen - everything)
    if beyond or not chosen:
        wrong = f"there is no layer {beyond[0]}" if beyond else "it names no layer"
        raise UsageError(f"--layers {text}: {wrong}", f"layers 0 to {num_layers - 1}", "Name layers it has.")
    return Selection(frozenset(chosen), whole=False, first_bad=False)


def _run_stages(run: _Run, folder: Path, prompts: Sequence[Prompt], progress: Progress) -> None:
    blueprint = run.build.reference_blueprint
    stages: list[tuple[StageName, str]] = [("semantics", "float32")]
    if run.build.dtype != "float32":
        stages.append(("precision", run.build.dtype))
    with run.timed("load golden"):
        golden = HfReference(blueprint, folder, torch.float64, run.device)
    for stage, dtype in stages:
        kind: torch.dtype = getattr(torch, dtype)
        with run.timed(f"load {dtype}"):
            golden.round_weights(kind)
            reference = HfReference(blueprint, folder, kind, run.device)
            lanes = _lanes(run, golden, reference, kind)
        run.reference = reference.describe()
        with run.timed(stage):
            merged: dict[str, NodeDiff] = {}
            for index, prompt in enumerate(prompts):
                found = _run_prompt(run, stage, dtype, lanes, prompt, progress)
                _merge(merged, found, index)
                if found.logits is not None:
                    run.logits.append(found.logits)
        run.nodes += merged.values()
        run.stages += [summarize_exact(dtype, merged.values()), summarize(stage, dtype, merged.values())]
        if run.selection.first_bad and run.stages[-1].status == "FAIL":
            return
    # exact first, then semantics and precision, as the stages are named
    run.stages.sort(key=lambda each: each.name != "exact")


def _run_prompt(
    run: _Run, stage: StageName, dtype: str, lanes: Lanes, prompt: Prompt, progress: Progress
) -> StageRun:
    ids_BT = torch.tensor([prompt.ids])
    kinds = frozenset(first_of_each_kind(run.build.blueprint)) if run.captured is None else frozenset[int]()
    found = run_stage(
        stage, dtype, lanes, ids_BT, run.selection, keep_inputs=kinds, advance=lambda unit: progress(stage, unit)
    )
    if run.captured is None and found.inputs:
        run.captured = Captured(ids_BT, found.inputs)
    run.declared |= found.declared
    return found


def _merge(merged: dict[str, NodeDiff], found: StageRun, prompt: int) -> None:
    """Keeps each node's worst prompt; a node is exact only if it was for every prompt."""
    for node in found.nodes:
        node = replace(node, prompt=prompt)
        held = merged.get(node.name)
        if held is None:
            merged[node.name] = node
            continue
        worse = max(held, node, key=lambda each: _RANK[each.status] + _bounded(each.local.rho if each.local else 0.0))
        exact = None if node.exact is None or held.exact is None else node.exact and held.exact
        merged[node.name] = replace(worse, exact=exact)


_RANK: dict[Verdict, int] = {"PASS": 0, "NOT_COMPARED": 0, "WARN": 2, "INCONCLUSIVE": 2, "FAIL": 4}


def _bounded(rho: float) -> float:
    return 1.0 - math.exp(-rho) if math.isfinite(rho) else 1.0


def _lanes(run: _Run, golden: HfReference, reference: HfReference, dtype: torch.dtype) -> Lanes:
    build, reader = run.build, run.build.reader()

    def lane(ops: OpsName) -> PortLane:
        loader = Streamed(build.blueprint, make_ops(ops), reader, dtype, run.device)
        return PortLane(Decoder(build.blueprint, loader), dtype, run.device)

    port = lane(run.ops)
    return Lanes(build.blueprint.dims, golden, reference, port, port if run.ops == "reference" else lane("reference"))


def _check_config(build: Build) -> list[Check]:
    """A checkpoint's config against the size of the same name."""
    if build.size is None or build.folder is None:
        return []
    frozen = build.family.size(build.size)
    from porter.specs.resolve import resolve

    expected = resolve(build.family, frozen.config, (), frozen.tokenizer).blueprint
    found = build.reference_blueprint
    differing = [
        name
        for name in Blueprint.model_fields
        if name != "tokenizer" and getattr(expected, name) != getattr(found, name)
    ]
    if not differing:
        return [Check("config", "PASS", f"resolves as the size {build.size} does")]
    return [Check("config", "WARN", f"differs from the size {build.size} in {', '.join(differing)}")]


def _report(
    run: _Run, prompts: Sequence[Prompt], checks: list[Check], axes: list[Axis], fail_on: Sequence[str], command: str
) -> DiffReport:
    build = run.build
    missing = sum(node.status == "NOT_COMPARED" for node in run.nodes)
    verdict, exit_code = conclude(run.stages, checks, missing, fail_on)
    report = DiffReport(
        name=build.name, created=datetime.now(UTC).isoformat(timespec="seconds"), verdict=verdict, exit_code=exit_code,
        sentence="", port=_port_side(run), reference=Side(run.reference, build.dtype, str(run.device), {}),
        spec_hash=build.blueprint.hash, overrides=build.overrides, weights=build.weights,
        num_layers=build.blueprint.dims.layers, prompts=tuple(prompts), stages=tuple(run.stages), preflight=tuple(checks),
        nodes=tuple(run.nodes), logits=tuple(run.logits), axes=tuple(axes), declared=len(run.declared),
        thresholds={dtype: dict(limits) for stage in THRESHOLDS.values() for dtype, limits in stage.items()},
        environment=_environment(run.device, getattr(torch, build.dtype)), command=command or f"porter.diff({build.name!r})",
        timings_s={name: round(value, 3) for name, value in run.timings_s.items()},
    )  # fmt: skip
    return replace(report, sentence=_sentence(report, fail_on))


def _sentence(report: DiffReport, fail_on: Sequence[str]) -> str:
    """The one sentence: verdict, node, number, what to do next."""
    dtypes = " and ".join(dict.fromkeys(stage.dtype for stage in report.stages))
    fail = report.first_fail
    if fail is not None:
        where = f"{fail.stage}, {fail.dtype}"
        return f"FAIL at {fail.name} ({where}): {fail.reason}. Look at {suspects(fail.name)}."
    unequal = next((stage for stage in report.stages if stage.name == "exact" and stage.status == "WARN"), None)
    if report.verdict == "FAIL" and unequal is not None and "exact" in fail_on:
        return f"FAIL at {unequal.first} (exact, {unequal.dtype}): {unequal.detail}. Look at {suspects(str(unequal.first))}."
    if report.verdict in {"FAIL", "WARN"}:
        warned = next((stage for stage in report.stages if stage.name != "exact" and stage.status == "WARN"), unequal)
        check = next((check for check in report.preflight if check.status == "WARN"), None)
        if warned is None:
            return f"{report.verdict}: {check.name if check else 'nodes'} {check.detail if check else 'were not compared'}."
        same = " Same function, other rounding." if warned is unequal else ""
        return f"{report.verdict} at {warned.first} ({warned.name}, {warned.dtype}): {warned.detail}.{same}"
    if report.verdict == "INCONCLUSIVE":
        return f"INCONCLUSIVE: {report.compared} nodes compared, none could be judged in every stage."
    return f"PASS: {report.compared} nodes of {report.num_layers} layers agree with the reference in {dtypes}."


def _port_side(run: _Run) -> Side:
    what = "executor" if run.ops == "reference" else "fused Triton ops"
    return Side(f"{run.build.name}, {what}", run.build.dtype, str(run.device), {"ops": run.ops, "spec": run.build.spec})


def _environment(device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    import os

    import transformers

    found = {
        "porter": porter.__version__,
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
