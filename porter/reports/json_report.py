"""A DiffReport as strict JSON in schema porter.diff/1; read_json reads it back without loss.

JSON has no infinity and no NaN: such a number is the string "inf", "-inf" or "nan". A log10_l2 of bit-equal
tensors is null.
"""

import json
import math
from typing import Any, TypeVar

from porter.comparison.logits_record import Logits
from porter.comparison.observed import Axis, Injected, Proposal, Share
from porter.comparison.report import SCHEMA, DiffReport, Local, NodeDiff, Propagated, Side, Stage
from porter.comparison.sample import Sample
from porter.reports.explain_json import explained_to_json

REWRITE = "run porter diff again to write the report anew"
Json = dict[str, Any]
Flat = TypeVar("Flat", Stage, Axis, Injected, Logits, Propagated, Proposal, Sample, Share)


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
            "axes_tried": len(report.axes),
            "axes_observable": sum(axis.seen is not None for axis in report.axes),
            "sentence": report.sentence,
            "explanation": report.explanations[-1].sentence if report.explanations else None,
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
        "behaviour": [_fields(check) for check in report.behaviour],
        "axes": [_fields(axis) for axis in report.axes],
        "self_check": [_fields(fault) for fault in report.self_check],
        "proposals": [_fields(each) for each in report.proposals],
        "attribution": [_fields(each) for each in report.attribution],
        "explanations": [explained_to_json(each) for each in report.explanations],
        "artifacts": {"html": "report.html"} | ({"explain": "explain.json"} if report.explanations else {}),
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


def _strict(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _encode(value: Any) -> Any:
    """A field's value in JSON: tuples as lists, numbers that JSON lacks as strings."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, (tuple, list)):
        return [_encode(each) for each in value]
    return value


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
        "golden": {"dtype": "float64", **report.golden},
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
        "sample": _fields(node.sample) if node.sample else None,
    }
