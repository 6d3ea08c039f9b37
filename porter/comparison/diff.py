"""porter diff: a port and its reference on the same tokens, stage by stage."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from porter.comparison.changed_port import ChangedPort
from porter.comparison.conclusion import make_report
from porter.comparison.dump_diff import diff_dumps, open_dumps, refuse_flags
from porter.comparison.module_port import open_port
from porter.comparison.observability import observe_axes
from porter.comparison.one_unit import Captured
from porter.comparison.preflight import check_config, check_tokenizer, load_tokenizer
from porter.comparison.progress import Progress, Silent
from porter.comparison.prompts import read_prompts
from porter.comparison.report import DiffReport
from porter.comparison.request import check_words, find_build
from porter.comparison.run_stages import DEFAULT_STAGES, STAGES, Run, planned_work, run_stages, wanted_units
from porter.comparison.self_check import check_itself
from porter.comparison.stages import Selection, select_layers
from porter.comparison.verdicts import FAIL_ON
from porter.errors import UsageError
from porter.models.build import Build
from porter.models.choices import pick_device, pick_ops
from porter.references.dump import PREFIX, is_dump
from porter.references.golden_cache import GoldenCache
from porter.references.identity import reference_identity


def diff(
    model: str | Build | None = None,
    *,
    port: str | nn.Module | ChangedPort | None = None,
    map: Path | str | Mapping[str, Any] | None = None,
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
    stages: Sequence[str] = (),
    grad: bool = False,
    golden_cache: Path | None = None,
    self_check: bool = False,
    progress: Progress | None = None,
    command: str = "",
) -> DiffReport:
    """Compares a port with its reference, layer by layer.

    Args:
        model: a build, its name, a size, a family or a path to a YAML; None: the build just made.
        port: in place of the build: dump:DIR, a dump of it, as porter capture or its Recorder wrote; a torch module, or
            module:pkg.mod:fn, whose function gives one; or HuggingFace's own model, changed.
        map: where the nodes of a module are: a map file, or the contents of one.
        reference: hf, or dump:DIR.
        layers: all, first-bad, or a list such as 0-3,7.
        overrides: axis=value, changing the port alone, after the build's own.
        prompt, prompts, tokens: see read_prompts.
        fail_on: warn, exact, missing: what counts as divergence besides FAIL.
        stages: exact (alone, without golden), semantics, precision (each with exact), gradients, behaviour; none: all
            but gradients.
        grad: gradients besides, in float32 and in the port's dtype.
        golden_cache: a folder where golden and the reference are read from, and kept; None: they are run.
        self_check: put known faults into the port too, and see whether this run catches them.
        progress: told what there is to do, and each unit when it is done.

    Returns:
        The report; its exit_code is 0 for PASS and WARN, 1 for FAIL, 4 when nothing could be judged.

    Raises:
        PorterError: the comparison could not be made.
    """
    if reference != "hf" and not is_dump(reference):
        raise UsageError(f"--reference {reference!r}", f"hf, or {PREFIX}DIR", "Leave it out.")
    check_words("--fail-on", fail_on, FAIL_ON)
    check_words("--stage", stages, STAGES)
    cache = None if golden_cache is None else GoldenCache(golden_cache)
    dumped = isinstance(port, str) and is_dump(port)
    dumps = open_dumps(str(port) if dumped else "", reference, dtype)
    build = find_build(model, size, weights, overrides, dumps.dtype if dumps else dtype, ops, device)
    refused = {f"--ops {ops}": ops, "--grad": grad, "--self-check": self_check, f"--reference {reference}": dumps}
    changed = port if isinstance(port, ChangedPort) else None
    module = None if dumped or isinstance(port, ChangedPort) else port
    own = open_port(module, map, build, stages=stages, fail_on=fail_on, refused=refused)
    at = torch.device(pick_device(build.device))
    selection = select_layers(layers, build.blueprint.dims.layers)
    wanted = frozenset(stages or (dumps.stages if dumps else DEFAULT_STAGES)) | ({"gradients"} if grad else set())
    _check_together(layers, selection, stages, wanted, self_check=self_check)
    ops_name = pick_ops(build.ops, str(at))
    run = Run(build, at, ops_name, selection, wanted, cache, progress or Silent(), self_check, own, changed)
    if dumps is not None:
        refuse_flags(dumps, run, overrides=overrides)
    with run.timed("weights"):
        folder = build.checkpoint()
        run.reader = build.reader()
    if dumps is not None:
        return diff_dumps(
            dumps, run, folder, prompt=prompt, prompts=prompts, tokens=tokens, fail_on=fail_on, command=command
        )
    with run.timed("preflight"):
        tokenizer = load_tokenizer(folder)
        run.found.checks = check_tokenizer(build.blueprint, folder, tokenizer) + check_config(build)
        given = prompt if prompt is not None or prompts is not None else build.prompt
        run.found.prompts = read_prompts(
            build.blueprint, tokenizer, given, prompts, build.tokens if tokens is None else tokens
        )
    if cache is not None:
        with run.timed("golden cache"):
            cache.identify(reference_identity(folder, build.reference_blueprint, at, cache.checksums))
            cache.check_room(wanted_units(run, cache))
    run.progress.plan(planned_work(run))
    run_stages(run, folder)
    if cache is not None:
        run.found.golden, run.found.notes = cache.describe(), cache.notes()
    if own is not None:
        run.found.notes = (*run.found.notes, *own.notes)
        run.found.checks += own.checks
    if run.captured is not None and not run.selection.first_bad:
        _observe(run, folder, run.captured)
    return make_report(
        build,
        run.found,
        ops=run.ops,
        device=at,
        fail_on=fail_on,
        command=command,
        timings_s=run.timings_s,
        module=own or changed,
    )


def _check_together(
    layers: str, selection: Selection, stages: Sequence[str], wanted: frozenset[str], *, self_check: bool
) -> None:
    """Refuses stages and layers that do not go together.   Raises UsageError."""
    if set(stages) == {"behaviour"} and (selection.first_bad or not selection.whole):
        raise UsageError(f"--stage behaviour with --layers {layers}", "--layers all", "It takes every layer.")
    if self_check and (selection.first_bad or not wanted & {"exact", "semantics", "precision"}):
        other = "--layers first-bad" if selection.first_bad else f"--stage {','.join(stages)}"
        raise UsageError(f"--self-check with {other}", "whole stages of nodes", "Leave one of the two out.")


def _observe(run: Run, folder: Path, captured: Captured) -> None:
    """Which axes the run could have shown and, where it was asked for, whether it shows known faults."""
    build = run.build
    with run.timed("observability"):
        kind = getattr(torch, build.dtype)
        run.found.axes = observe_axes(build.blueprint, run.reader, captured, kind, run.device)
    run.progress.done("observability", "axes")
    if run.self_check:
        with run.timed("self-check"):
            run.found.self_check = check_itself(
                build, folder, run.reader, captured, run.found.axes, ops=run.ops, device=run.device
            )
        run.progress.done("self-check", "faults")
