"""A DiffReport from its JSON; what a report of an earlier porter lacks has its default."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, replace
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from porter.comparison.logits_record import Logits, LogitsAt
from porter.comparison.names import NodeKind, StageName
from porter.comparison.observed import Axis, Injected, Proposal, Share
from porter.comparison.report import (
    SCHEMA,
    Behaviour,
    Check,
    DiffReport,
    Local,
    NodeDiff,
    Prompt,
    Propagated,
    Side,
    Stage,
    Verdict,
    Worst,
)
from porter.comparison.sample import Sample
from porter.errors import ArtifactError
from porter.reports.explain_json import explained_from_json

VERDICTS, STAGES, KINDS = get_args(Verdict), get_args(StageName), get_args(NodeKind)
REWRITE = "run porter diff again to write the report anew"
Json = dict[str, Any]
Flat = TypeVar("Flat", Stage, Axis, Injected, Behaviour, Logits, Propagated, Proposal, Share)


def read_report(path: Path) -> DiffReport:
    """The report in a file.

    Raises: ArtifactError: it cannot be read, is cut off, or is none of this schema.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # no UTF-8 and no JSON are ValueErrors
        why = (error.strerror or str(error)) if isinstance(error, OSError) else f"no JSON, or cut off: {error}"
        raise ArtifactError(f"{path}: {why}", "the report.json that porter diff wrote", REWRITE) from error
    return from_json(document)


def from_json(document: Mapping[str, Any]) -> DiffReport:
    """The report that to_json wrote.

    Raises: ArtifactError: another schema, or a key that is missing or malformed.
    """
    schema = document.get("schema") if isinstance(document, Mapping) else None
    if schema != SCHEMA:
        raise ArtifactError(
            f"the report's schema is {schema!r}", repr(SCHEMA), "run porter diff again to write it anew"
        )
    try:
        return _report_from_json(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(
            f"the report is damaged: {type(error).__name__} {error}",
            f"every key of {SCHEMA}, as porter wrote it",
            REWRITE,
        ) from error


def _decode(value: float | str) -> float:
    return float(value)


def _report_from_json(document: Mapping[str, Any]) -> DiffReport:
    run = document["run"]
    return DiffReport(
        name=run["name"],
        created=run["created"],
        verdict=_word(VERDICTS, document["verdict"]),
        exit_code=document["exit"],
        sentence=document["summary"]["sentence"],
        port=_side(run["port"]),
        reference=_side(run["reference"]),
        spec_hash=run["port"]["spec"],
        overrides=tuple(run["port"]["overrides"]),
        weights=run["weights"],
        num_layers=run["num_layers"],
        prompts=tuple(
            Prompt(each["label"], each["ids_sha"], each["len"], tuple(each["ids"]), tuple(each["tokens"]))
            for each in run["prompts"]
        ),
        stages=tuple(_known(Stage, each) for each in document["stages"]),
        preflight=tuple(_check(each) for each in document["preflight"]),
        nodes=tuple(_node(each) for each in document["nodes"]),
        logits=tuple(_logits(each) for each in document["logits"]),
        axes=tuple(_known(Axis, each) for each in document["axes"]),
        declared=document["summary"]["declared"],
        thresholds={
            dtype: {metric: _pair(pair) for metric, pair in metrics.items()}
            for dtype, metrics in document["thresholds"].items()
        },
        environment=dict(run["versions"]),
        command=run["command"],
        timings_s={step: _decode(seconds) for step, seconds in document["timings"].items()},
        warnings=tuple(document.get("warnings", ())),
        fail_on=tuple(run.get("fail_on", ())),
        behaviour=tuple(_known(Behaviour, each) for each in document.get("behaviour", ())),
        golden={key: value for key, value in run.get("golden", {}).items() if key != "dtype"},
        self_check=tuple(_known(Injected, each) for each in document.get("self_check", ())),
        proposals=tuple(_known(Proposal, each) for each in document.get("proposals", ())),
        attribution=tuple(_known(Share, each) for each in document.get("attribution", ())),
        explanations=tuple(explained_from_json(each) for each in document.get("explanations", ())),
    )


def _pair(values: Sequence[float | str]) -> tuple[float, float]:
    passing, failing = values
    return _decode(passing), _decode(failing)


def _known(kind: type[Flat], each: Mapping[str, Any]) -> Flat:
    """A flat dataclass from its own field names; keys that a later porter added are left alone."""
    values: Json = {}
    if "status" in each:
        _word(VERDICTS, each["status"])
    for name, hint in get_type_hints(kind).items():
        if name not in each and kind.__dataclass_fields__[name].default is not MISSING:
            continue  # a report of an earlier porter
        number = hint in (float, float | None) and each[name] is not None
        values[name] = _decode(each[name]) if number else each[name]
    return kind(**values)


def _check(each: Json) -> Check:
    rows = tuple(tuple(row) for row in each.get("rows", ()))
    return Check(each["check"], _word(VERDICTS, each["status"]), each["detail"], tuple(each.get("head", ())), rows)


def _logits(each: Json) -> Logits:
    return replace(_known(Logits, {**each, "at": ()}), at=tuple(_logits_at(token) for token in each.get("at", ())))


def _logits_at(each: Json) -> LogitsAt:
    reference, port = (tuple((i, _decode(value)) for i, value in each[side]) for side in ("reference", "port"))
    return LogitsAt(
        each["token"], _decode(each["kl"]), _decode(each["margin"]), _decode(each["floor"]), reference, port
    )


def _word(words: tuple[str, ...], value: Any) -> Any:
    """A word of a closed set."""
    if value not in words:
        raise ValueError(f"{value!r} is none of {', '.join(words)}")
    return value


def _side(each: Json) -> Side:
    return Side(each["what"], each["dtype"], each["device"], dict(each["details"]))


def _local(each: Json) -> Local:
    token = each["rho_tok"]
    return Local(
        e_port=_decode(each["e_port"]),
        e_ref=_decode(each["e_ref"]),
        rho=_decode(each["rho"]),
        rho_tok=_decode(token["max"]),
        token=token["token"],
        tokens=tuple(_decode(value) for value in token["tokens"]),
    )


def _worst(each: Json) -> Worst:
    return Worst(_decode(each["v"]), tuple(each["at"]), _decode(each["port"]), _decode(each["ref"]))


def _sample(each: Json) -> Sample:
    names = ("golden", "port", "reference", "edges")
    golden, port, reference, edges = (tuple(map(_decode, each[name])) for name in names)
    return Sample(golden, port, reference, edges, tuple(each["port_counts"]), tuple(each["reference_counts"]))


def _node(each: Json) -> NodeDiff:
    ported, lost = each["nonfinite"]
    return NodeDiff(
        name=each["name"],
        kind=_word(KINDS, each["class"]),
        stage=_word(STAGES, each["stage"]),
        dtype=each["dtype"],
        shape=tuple(each["shape"]),
        status=_word(VERDICTS, each["status"]),
        reason=each["reason"],
        exact=each["exact"],
        local=_local(each["local"]) if each["local"] is not None else None,
        propagated=_known(Propagated, each["propagated"]) if each["propagated"] is not None else None,
        worst=_worst(each["max_abs"]) if each["max_abs"] is not None else None,
        bias=_decode(each["bias"]),
        trimmed=_decode(each["rel_l2_trim"]),
        cosine=_decode(each["cos"]),
        ulp_p99=_decode(each["ulp_p99"]),
        nonfinite=(ported, lost),
        prompt=each["prompt"],
        sample=None if each.get("sample") is None else _sample(each["sample"]),
    )
