"""porter diff with a dump on a side: what a dump says is held against the run, then its stage is judged."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from porter.comparison.cached_lane import Models
from porter.comparison.conclusion import make_report
from porter.comparison.dump_lane import DumpLane
from porter.comparison.lanes import Lane, PortLane
from porter.comparison.names import StageName
from porter.comparison.observability import observe_axes
from porter.comparison.one_unit import Captured
from porter.comparison.preflight import check_config, load_tokenizer
from porter.comparison.progress import Work
from porter.comparison.prompts import make_prompt, read_prompts
from porter.comparison.report import Check, DiffReport, Prompt, Side
from porter.comparison.run_stages import Run
from porter.comparison.self_fed import Sides, run_self_fed
from porter.comparison.sentence import sentence
from porter.comparison.verdicts import SELF_FED, summarize
from porter.errors import ArtifactError, UsageError
from porter.models.build import Build
from porter.models.decoder import Decoder, Streamed
from porter.models.ops import OpsName, make_ops
from porter.references.dump import PREFIX, Dump, check_values, is_dump, open_dump
from porter.references.identity import hash_checkpoint
from porter.specs.axes import first_of_each_kind
from porter.weights.reader import SharedTensors, WeightReader

STAGE: dict[str, StageName] = {"float32": "semantics", "bfloat16": "precision", "float16": "precision"}


@dataclass(frozen=True)
class Dumps:
    """The dumps of a run; None: that side is run."""

    port: Dump | None
    reference: Dump | None

    @property
    def given(self) -> tuple[Dump, ...]:
        return tuple(each for each in (self.port, self.reference) if each is not None)

    @property
    def dtype(self) -> str:
        return self.given[0].manifest.dtype

    @property
    def stages(self) -> tuple[StageName, ...]:
        """The one that judges a dump."""
        return (STAGE[self.dtype],)


def open_dumps(port: str, reference: str, dtype: str | None) -> Dumps | None:
    """The dumps that --port and --reference name; None where neither does.

    Raises:
        ArtifactError: one cannot be read, or they are of other tokens, dtypes or weights than each other or --dtype.
    """
    if not is_dump(port) and not is_dump(reference):
        return None
    found = Dumps(*(open_dump(side) if is_dump(side) else None for side in (port, reference)))
    first = found.given[0]
    if dtype is not None and dtype != found.dtype:
        wrong = f"{first.folder} is a dump in {found.dtype}, and --dtype says {dtype}"
        raise ArtifactError(wrong, f"a dump in {dtype}", "Leave --dtype out, or record the model in it.")
    for other in found.given[1:]:
        for what, one, two in (
            ("dtype", first.manifest.dtype, other.manifest.dtype),
            ("tokens", _said_ids(first.manifest.ids), _said_ids(other.manifest.ids)),
            ("weights", first.manifest.weights, other.manifest.weights),
        ):
            if one is not None and two is not None and one != two:
                wrong = f"{first.folder} has other {what} than {other.folder}: {one}, and {two}"
                raise ArtifactError(wrong, f"two dumps of the same {what}", "Record one of them again.")
    return found


def diff_dumps(
    dumps: Dumps, run: Run, folder: Path, *, prompt: str | None, prompts: Path | None, tokens: int | None,
    fail_on: Sequence[str], command: str,
) -> DiffReport:  # fmt: skip
    """The report of a run with dumps.

    Raises:
        ArtifactError: a dump is not of this run's tokens, weights, layers or dtype.
    """
    build, tokenizer = run.build, load_tokenizer(folder)
    with run.timed("preflight"):
        asked = prompt is not None or prompts is not None or tokens is not None
        wanted = read_prompts(build.blueprint, tokenizer, prompt, prompts, tokens) if asked else []
        run.found.prompts = [prompt_of_dump(dumps, wanted, build.blueprint.dims.vocab, tokenizer)]
        run.found.checks = [*check_dumps(dumps, build, folder), *check_config(build)]
    stage = STAGE[dumps.dtype]
    run.progress.plan([Work(f"{stage} {dumps.dtype}", build.blueprint.dims.layers + 2, run.found.prompts[0].length)])
    with run.timed(f"load {dumps.dtype}"):
        sides = open_sides(dumps, build, run.reader, folder, run.device, ops=run.ops)
    ids_BT = torch.tensor([run.found.prompts[0].ids])
    keep = frozenset(first_of_each_kind(build.blueprint, run.selection.layers)) & run.selection.layers
    with run.timed(stage):
        found = run_self_fed(
            stage, dumps.dtype, sides, ids_BT, run.selection, keep_inputs=keep,
            advance=lambda unit: run.progress.done(f"{stage} {dumps.dtype}", unit),
        )  # fmt: skip
    run.found.nodes, run.found.declared = found.nodes, found.declared
    run.found.stages = [summarize(stage, dumps.dtype, found.nodes)]
    run.found.logits = [found.logits] if found.logits is not None else []
    run.found.reference = sides.reference.describe()  # type: ignore[attr-defined]
    if stage == "semantics" and not run.selection.first_bad:
        with run.timed("observability"):
            seen = Captured(ids_BT, found.inputs, "embed.out" in found.declared, frozenset(["semantics"]))
            run.found.axes = observe_axes(build.blueprint, run.reader, seen, torch.float32, run.device)
    report = make_report(
        build, run.found, ops=run.ops, device=run.device, fail_on=fail_on, command=command, timings_s=run.timings_s
    )
    report = replace(report, **_told(report, dumps, stage))
    return replace(report, sentence=sentence(report))


def refuse_flags(dumps: Dumps, run: Run, *, overrides: Sequence[str]) -> None:
    """Refuses what a dump cannot do.   Raises UsageError."""
    stage = STAGE[dumps.dtype]
    asked = {
        "--grad": "gradients" in run.stages and "a dump has no backward pass",
        "--self-check": run.self_check and "faults cannot be put into a dump",
        "--golden-cache": run.cache is not None and "golden is run on the dump's own hidden states, once",
        "--set": bool(overrides) and dumps.port is not None and "it changes the port, and that is a dump",
        f"--stage {','.join(sorted(run.stages))}": stage not in run.stages
        and f"a dump in {dumps.dtype} is judged by {stage} alone",
    }
    for flag, why in asked.items():
        if why:
            raise UsageError(f"{flag} with {PREFIX}{dumps.given[0].folder}", str(why), "Leave it out.")


def prompt_of_dump(dumps: Dumps, wanted: Sequence[Prompt], vocab: int, tokenizer: Any) -> Prompt:
    """The tokens that were recorded.   Raises ArtifactError where others are asked for."""
    dump = dumps.given[0]
    ids = tuple(dump.manifest.ids)
    if len(wanted) > 1 or (wanted and wanted[0].ids != ids):
        wrong = f"{dump.folder} is a dump of other tokens: {_said_ids(dump.manifest.ids)}"
        asked = _said_ids(wanted[0].ids) if len(wanted) == 1 else f"{len(wanted)} prompts"
        raise ArtifactError(wrong, asked, "Leave --prompt, --prompts and --tokens out, or record these tokens.")
    if not ids or not all(0 <= i < vocab for i in ids):
        wrong = f"{dump.folder}: its ids are outside the vocabulary" if ids else f"{dump.folder} has no tokens"
        raise ArtifactError(wrong, f"ids of 0 to {vocab - 1}", "Name the model that was dumped.")
    return make_prompt(f"the tokens of {dump.folder.name}", ids, tokenizer)


def _said_ids(ids: Sequence[int]) -> str:
    """640 ids, 2 818 1111 …"""
    return f"{len(ids)} ids, {' '.join(map(str, ids[:6]))}{' …' if len(ids) > 6 else ''}"


def check_dumps(dumps: Dumps, build: Build, folder: Path) -> Iterator[Check]:
    """What the manifests say, held against a build.   Raises ArtifactError."""
    num_layers = build.blueprint.dims.layers
    weights = hash_checkpoint(folder, None) if any(each.manifest.weights for each in dumps.given) else None
    for side, dump in (("port", dumps.port), ("reference", dumps.reference)):
        if dump is None:
            continue
        said = dump.manifest
        layers = {int(found[1]) for name in said.nodes if (found := re.match(r"layers\.(\d+)\.", name))}
        if layers and max(layers) >= num_layers:
            wrong = f"{dump.folder} has a layer {max(layers)}"
            raise ArtifactError(wrong, f"layers 0 to {num_layers - 1} of {build.name}", "Name its own model.")
        if said.weights is not None and said.weights != weights:
            wrong = f"{dump.folder} is a dump of other weights: their hash is {said.weights[:12]}…"
            raise ArtifactError(wrong, f"{str(weights)[:12]}…, of {folder}", "Name the weights that were dumped.")
        check_values(dump, ("layers.0.resid_post", f"layers.{num_layers - 1}.resid_post"))
        rows = [("framework", said.framework), ("model", said.model), ("spec", said.spec or "–")]
        rows += [(f"version of {name}", version) for name, version in said.versions.items()]
        detail = f"{len(said.ids)} tokens in {said.dtype}, {len(said.nodes)} nodes of {len(layers)} layers, all intact"
        yield Check(f"dump.{side}", "PASS", detail, ("what", "the manifest says"), tuple(rows))
        if said.weights is None:
            yield Check(f"dump.{side}.weights", "NOT_COMPARED", "the manifest does not say which")
        else:
            yield Check(f"dump.{side}.weights", "PASS", f"the run’s own, {said.weights[:12]}…")


def open_sides(
    dumps: Dumps, build: Build, reader: WeightReader, folder: Path, device: torch.device, *, ops: OpsName = "reference"
) -> Sides:
    """The sides of a run with dumps; what is no dump is run: the build as the port, HuggingFace as the reference."""
    kind, dims = getattr(torch, dumps.dtype), build.blueprint.dims
    shared = SharedTensors(reader.checkpoint)
    models = Models(build.reference_blueprint, folder, kind, device, shared)
    own: Callable[[Dump], Lane] = lambda dump: DumpLane(dump, dims.layers, device)  # noqa: E731
    if dumps.port is not None:
        port = own(dumps.port)
    else:
        streamed = Streamed(build.blueprint, make_ops(ops), replace(reader, shared=shared), kind, device)
        port = PortLane(Decoder(build.blueprint, streamed), kind, device)
    reference = models.reference if dumps.reference is None else own(dumps.reference)
    return Sides(dims, models.golden, models.reference, reference, port)


def _told(report: DiffReport, dumps: Dumps, stage: StageName) -> dict[str, Any]:
    """What the report says of the sides and of the thresholds."""
    limits = SELF_FED[len(dumps.given) == 2][stage][dumps.dtype]
    told: dict[str, Any] = {
        "thresholds": {**report.thresholds, dumps.dtype: {**report.thresholds[dumps.dtype], **limits}}
    }
    for side, dump in (("port", dumps.port), ("reference", dumps.reference)):
        if dump is not None:
            details = {
                "dump": str(dump.folder),
                "framework": dump.manifest.framework,
                "recorded spec": dump.manifest.spec or "",
            }
            told[side] = Side(dump.describe(), dumps.dtype, "recorded", {**getattr(report, side).details, **details})
    if dumps.port is not None:
        told |= {"spec_hash": dumps.port.manifest.spec or "", "overrides": ()}
    return told
