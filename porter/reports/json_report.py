"""A DiffReport as strict JSON in schema porter.diff/1, and back without loss.

JSON has no infinity and no NaN: such a number is the string "inf", "-inf" or "nan". A log10_l2 of bit-equal
tensors is null.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, replace
from typing import Any, TypeVar, get_type_hints

from porter.comparison.report import (
    SCHEMA,
    Axis,
    Check,
    DiffReport,
    Local,
    Logits,
    LogitsAt,
    NodeDiff,
    Prompt,
    Propagated,
    Side,
    Stage,
    Worst,
)
from porter.errors import ArtifactError

REWRITE = "run porter diff again to write the report anew"
Json = dict[str, Any]
Flat = TypeVar("Flat", Stage, Axis, Logits, Propagated)


def to_json(report: DiffReport) -> Json:
    """A report as plain JSON values, keys in the order of the schema."""
    first = report.first_fail
    return {
        "schema": SCHEMA,
        "verdict": report.verdict,
        "exit": report.exit_code,
        "summary": {
            "first_fail": first.name if first else None,
            "stage": first.stage if first else None,
            "compared": report.compared,
            "declared": report.declared,
            "inconclusive": sum(node.status == "INCONCLUSIVE" for node in report.nodes),
            "sentence": report.sentence,
            "explanation": None,
        },
        "run": _run_to_json(report),
        "thresholds": {
            dtype: {metric: [_encode(limit) for limit in pair] for metric, pair in metrics.items()}
            for dtype, metrics in report.thresholds.items()
        },
        "stages": [_fields(stage) for stage in report.stages],
        "preflight": [
            {
                "check": check.name,
                "status": check.status,
                "detail": check.detail,
                "head": _encode(check.head),
                "rows": _encode(check.rows),
            }
            for check in report.preflight
        ],
        "nodes": [_node_to_json(node) for node in report.nodes],
        "logits": [{**_fields(logits), "at": [_fields(each) for each in logits.at]} for logits in report.logits],
        "axes": [_fields(axis) for axis in report.axes],
        "artifacts": {"html": "report.html"},
        "timings": {step: _encode(seconds) for step, seconds in report.timings_s.items()},
        "warnings": list(report.warnings),
    }


def to_text(report: DiffReport) -> str:
    """The report as a JSON document: a line for each entry of a list, so that nodes can be searched and compared."""
    lines = []
    for key, value in to_json(report).items():
        if isinstance(value, list) and value:
            entries = ",\n".join(f"  {_strict(entry)}" for entry in value)
            lines.append(f" {_strict(key)}: [\n{entries}\n ]")
        else:
            lines.append(f" {_strict(key)}: {_strict(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


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


def _strict(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _encode(value: Any) -> Any:
    """A field's value in JSON: tuples as lists, numbers that JSON lacks as strings."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, (tuple, list)):
        return [_encode(each) for each in value]
    return value


def _decode(value: float | str) -> float:
    return float(value)


def _fields(item: Any) -> Json:
    """A flat dataclass under its own field names."""
    return {name: _encode(getattr(item, name)) for name in item.__dataclass_fields__}


def _side_to_json(side: Side) -> Json:
    return {"what": side.what, "dtype": side.dtype, "device": side.device, "details": dict(side.details)}


def _run_to_json(report: DiffReport) -> Json:
    return {
        "name": report.name,
        "created": report.created,
        "port": {"spec": report.spec_hash, "overrides": list(report.overrides), **_side_to_json(report.port)},
        "reference": _side_to_json(report.reference),
        "golden": {"dtype": "float64"},
        "weights": report.weights,
        "num_layers": report.num_layers,
        "prompts": [
            {
                "label": prompt.label,
                "ids_sha": prompt.ids_sha256,
                "len": prompt.length,
                "ids": list(prompt.ids),
                "tokens": list(prompt.tokens),
            }
            for prompt in report.prompts
        ],
        "versions": dict(report.environment),
        "command": report.command,
        "fail_on": list(report.fail_on),
        "seed": report.environment.get("seed"),
    }


def _local_to_json(local: Local) -> Json:
    return {
        "e_port": _encode(local.e_port),
        "e_ref": _encode(local.e_ref),
        "rho": _encode(local.rho),
        "rho_tok": {"max": _encode(local.rho_tok), "token": local.token, "tokens": _encode(local.tokens)},
    }


def _propagated_to_json(propagated: Propagated) -> Json:
    log10_l2 = propagated.log10_l2
    return {**_fields(propagated), "log10_l2": None if log10_l2 == -math.inf else _encode(log10_l2)}


def _node_to_json(node: NodeDiff) -> Json:
    worst = node.worst
    return {
        "name": node.name,
        "class": node.kind,
        "stage": node.stage,
        "dtype": node.dtype,
        "shape": list(node.shape),
        "status": node.status,
        "reason": node.reason,
        "exact": node.exact,
        "local": _local_to_json(node.local) if node.local else None,
        "propagated": _propagated_to_json(node.propagated) if node.propagated else None,
        "max_abs": {
            "v": _encode(worst.difference),
            "at": list(worst.at),
            "port": _encode(worst.port),
            "ref": _encode(worst.reference),
        }
        if worst
        else None,
        "bias": _encode(node.bias),
        "rel_l2_trim": _encode(node.trimmed),
        "cos": _encode(node.cosine),
        "ulp_p99": _encode(node.ulp_p99),
        "nonfinite": list(node.nonfinite),
        "prompt": node.prompt,
    }


def _report_from_json(document: Mapping[str, Any]) -> DiffReport:
    run = document["run"]
    return DiffReport(
        name=run["name"],
        created=run["created"],
        verdict=document["verdict"],
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
    )


def _pair(values: Sequence[float | str]) -> tuple[float, float]:
    passing, failing = values
    return _decode(passing), _decode(failing)


def _known(kind: type[Flat], each: Mapping[str, Any]) -> Flat:
    """A flat dataclass from its own field names; keys that a later porter added are left alone."""
    values: Json = {}
    for name, hint in get_type_hints(kind).items():
        if name not in each and kind.__dataclass_fields__[name].default is not MISSING:
            continue  # a report of an earlier porter
        number = hint in (float, float | None) and each[name] is not None
        values[name] = _decode(each[name]) if number else each[name]
    return kind(**values)


def _check(each: Json) -> Check:
    rows = tuple(tuple(row) for row in each.get("rows", ()))
    return Check(each["check"], each["status"], each["detail"], tuple(each.get("head", ())), rows)


def _logits(each: Json) -> Logits:
    return replace(_known(Logits, {**each, "at": ()}), at=tuple(_logits_at(token) for token in each.get("at", ())))


def _logits_at(each: Json) -> LogitsAt:
    reference, port = (tuple((i, _decode(value)) for i, value in each[side]) for side in ("reference", "port"))
    return LogitsAt(
        each["token"], _decode(each["kl"]), _decode(each["margin"]), _decode(each["floor"]), reference, port
    )


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


def _node(each: Json) -> NodeDiff:
    ported, lost = each["nonfinite"]
    return NodeDiff(
        name=each["name"],
        kind=each["class"],
        stage=each["stage"],
        dtype=each["dtype"],
        shape=tuple(each["shape"]),
        status=each["status"],
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
    )
