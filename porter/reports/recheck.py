"""Judges the numbers of a report again, by other thresholds: no model, no weights, no torch."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from porter.comparison.report import DiffReport, NodeDiff, Stage
from porter.comparison.sentence import sentence
from porter.comparison.verdicts import FIELDS, SYMBOLS, Limits, conclude, judge, summarize
from porter.errors import ArtifactError, UsageError, closest

SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
EDGES = ("warn", "fail")
JUDGED = ("semantics", "precision", "gradients")  # the stages whose verdicts are made from ρ; others stand as they are


def recheck(report: DiffReport, thresholds: Iterable[str]) -> DiffReport:
    """The report as these thresholds judge it.

    Of several prompts a report keeps each node's worst one, by the thresholds it was made with; that one is judged.

    Args:
        thresholds: bf16.rho.fail=4, f32.rho.warn=2, bf16.rho_tok.fail=5, ...; the report's own hold for all others.
    Raises: UsageError: a threshold that the report does not have, or no number.   ArtifactError: nodes are missing.
    """
    given = list(thresholds)
    limits = _changed(report.thresholds, given)
    nodes = tuple(_judged(node, limits) for node in report.nodes)
    stages = tuple(_summed(stage, nodes) for stage in report.stages)
    missing = sum(node.status == "NOT_COMPARED" for node in nodes)
    verdict, exit_code = conclude(stages, report.preflight, missing, report.fail_on, len(report.missed))
    again = replace(
        report,
        nodes=nodes,
        stages=stages,
        verdict=verdict,
        exit_code=exit_code,
        thresholds=limits,
        warnings=(*report.warnings, *([f"judged again with {', '.join(given)}"] if given else [])),
    )
    return replace(again, sentence=sentence(again))


def names(thresholds: Mapping[str, Limits]) -> dict[str, tuple[str, str, int]]:
    """bf16.rho.fail -> (dtype, metric, which of the pair), for all that a report has."""
    return {
        f"{SHORT.get(dtype, dtype)}.{metric}.{edge}": (dtype, metric, place)
        for dtype, metrics in thresholds.items()
        for metric in metrics
        if metric in SYMBOLS
        for place, edge in enumerate(EDGES)
    }


def _changed(thresholds: Mapping[str, Limits], given: Iterable[str]) -> dict[str, dict[str, tuple[float, float]]]:
    known = names(thresholds)
    changed = {dtype: {metric: [*pair] for metric, pair in metrics.items()} for dtype, metrics in thresholds.items()}
    for text in given:
        name, _, value = text.partition("=")
        if name not in known:
            raise UsageError(
                f"--threshold {text}: no threshold is called {name!r}",
                closest(name, known),
                "Name one that the report has, as in bf16.rho.fail=4.",
            )
        dtype, metric, place = known[name]
        changed[dtype][metric][place] = _number(text, value)
    for name, (dtype, metric, place) in known.items():
        warn, fail = changed[dtype][metric]
        if place == 1 and warn > fail:
            wrong = f"{name} {fail:g} lies under {name.removesuffix('fail')}warn {warn:g}"
            raise UsageError(wrong, "a node warns before it fails", "Give both with --threshold.")
    return {d: {m: (pair[0], pair[1]) for m, pair in metrics.items()} for d, metrics in changed.items()}


def _number(text: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise UsageError(f"--threshold {text}", "a positive number after =", "Write it as bf16.rho.fail=4.")
    return number


def _judged(node: NodeDiff, limits: Mapping[str, Limits]) -> NodeDiff:
    if node.local is None or node.status == "NOT_COMPARED" or node.stage not in JUDGED or node.dtype not in limits:
        return node
    own = {
        metric: pair
        for metric, pair in limits[node.dtype].items()
        if metric in SYMBOLS and (metric in FIELDS) == (node.stage == "gradients")
    }
    if not own:  # a report of an earlier porter has no limits of gradients
        return node
    status, reason = judge(node.stage, node.dtype, node.kind, node.local, node.nonfinite, own)
    return replace(node, status=status, reason=reason)


def _summed(stage: Stage, nodes: Iterable[NodeDiff]) -> Stage:
    own = [node for node in nodes if (node.stage, node.dtype) == (stage.name, stage.dtype)]
    if stage.name not in JUDGED:
        return stage
    if len(own) < stage.compared:
        raise ArtifactError(
            f"the report is damaged: {stage.name} {stage.dtype} compared {stage.compared} nodes, {len(own)} are here",
            "every node, as porter wrote it",
            "run porter diff again to write the report anew",
        )
    return summarize(stage.name, stage.dtype, own) if own else stage
