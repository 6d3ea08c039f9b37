"""A DiffReport as GitHub-flavoured markdown, for the summary of a workflow's step."""

import re

from porter.comparison.report import DiffReport, NodeDiff, Stage, Verdict
from porter.reports.summary import coverage, format_error, format_ratio, nodes_of, peak, shortlist, token_summary

SIGNS: dict[Verdict, str] = {"PASS": "✅", "WARN": "⚠️", "FAIL": "❌", "INCONCLUSIVE": "❔", "NOT_COMPARED": "➖"}
MOST = 10
STAGES = ("stage", "dtype", "verdict", "nodes", "worst ρ", "first bad node")


def to_markdown(report: DiffReport) -> str:
    """Verdict, stages, the first nodes that did not pass, coverage; the command to run again, folded."""
    said = report.sentence.removeprefix(report.verdict).lstrip(": ")
    parts = [
        f"### {SIGNS[report.verdict]} {report.verdict}: `{_code(report.name)}`", _text(said),
        f"{_text(report.port.what)} ({report.port.dtype}) against {_text(report.reference.what)}, "
        f"on {_text(token_summary(report))}.",
        _table(STAGES, [_stage(report, stage) for stage in report.stages]),
    ]  # fmt: skip
    bad = shortlist(report, MOST)
    if bad:
        head = ("node", "stage", "verdict", "ρ", "e_port", "e_ref", "why")
        parts += [f"**First of what did not pass** ({len(bad)} shown)", _table(head, [_node(node) for node in bad])]
    changed = [f"`{_code(check.name)}` {SIGNS[check.status]} {_text(check.detail)}"
               for check in report.preflight if check.status in ("WARN", "FAIL")]  # fmt: skip
    parts += [f"Preflight: {'; '.join(changed)}"] if changed else []
    parts.append(f"<sub>{_text(coverage(report))}</sub>")
    parts.append(f"<details><summary>Run again</summary>\n\n```\n{report.command}\n```\n</details>")
    return "\n\n".join(parts) + "\n"


def _stage(report: DiffReport, stage: Stage) -> tuple[str, ...]:
    worst = peak(nodes_of(report, stage.name, stage.dtype), "rho")
    ratio = format_ratio(worst.value) if worst else ""
    first = f"`{_code(stage.first)}`" if stage.first else ""
    return stage.name, stage.dtype, f"{SIGNS[stage.status]} {stage.status}", str(stage.compared), ratio, first


def _node(node: NodeDiff) -> tuple[str, ...]:
    local = node.local
    numbers = (
        (format_ratio(local.rho), format_error(local.e_port), format_error(local.e_ref)) if local else ("", "", "")
    )
    where = f"{node.stage} {node.dtype}"
    return f"`{_code(node.name)}`", where, f"{SIGNS[node.status]} {node.status}", *numbers, _text(node.reason)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(text: str) -> str:
    """Text that markdown and HTML leave as it is, in one line of a table."""
    escaped = re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", " ".join(text.split()))
    return escaped.replace("@", "@\u200b")  # no one is notified


def _code(text: str) -> str:
    return " ".join(text.split()).replace("`", "'").replace("|", "\\|")
