"""What a point of a picture says when it is pointed at: escaped text, lines joined by <br> as plotly has them."""

import math
from collections.abc import Iterable, Iterator, Mapping
from html import escape

from porter.comparison.logits_record import LogitsAt
from porter.comparison.report import DiffReport, NodeDiff
from porter.reports.summary import describe_worst, format_error, format_ratio, word_of, worst_token


def describe_local(report: DiffReport, node: NodeDiff) -> str:
    """A node's status, errors, ratios and worst element, on golden's input."""
    lines = [f"{node.status}{f': {node.reason}' if node.reason else ''}"]
    if node.local is not None:
        where = worst_token(report, node)
        lines += [
            f"ρ {format_ratio(node.local.rho)}, ρ_tok {format_ratio(node.local.rho_tok)}",
            f"e_port {format_error(node.local.e_port)}, e_ref {format_error(node.local.e_ref)}",
            *([f"worst {'' if node.is_parameter else 'token '}{where}"] if where else []),
        ]
    if node.propagated is not None and node.propagated.log10_l2 is not None:
        lines.append(f"on its own hidden states ‖port − reference‖₂ {node.propagated.l2:.4g}")
    if node.worst is not None:
        lines.append(f"worst element {describe_worst(node)}")
    if node.exact is not None:
        lines.append("bit-equal" if node.exact else "bits differ")
    if any(node.nonfinite):
        lines.append("not finite: {} in the port, {} in the reference".format(*node.nonfinite))
    return _join(node, f"{node.stage} {node.dtype}", lines)


def describe_propagated(node: NodeDiff) -> str:
    """A node's difference when each side runs on its own hidden states."""
    found = node.propagated
    if found is None:
        return escape(node.name)
    norm = found.floor_l2 / found.e_ref if found.e_ref else 0.0
    difference = f"‖port − reference‖₂ {found.l2:.4g}, relative {format_error(found.rel_l2)}"
    lines = [
        "bit-equal" if found.log10_l2 is None else difference,
        f"independent errors would give {math.hypot(found.floor_l2, found.e_port * norm):.4g}",
        f"e_port {format_error(found.e_port)}, e_ref {format_error(found.e_ref)}",
    ]
    return _join(node, f"{node.stage} {node.dtype}, propagated", lines)


def describe_logits(found: LogitsAt, words: Mapping[int, str]) -> str:
    """The words that both sides would say after one token, and how sure the reference is."""
    lines = [
        f"reference {word_of(found.reference[0][0], words)}, port {word_of(found.port[0][0], words)}",
        f"margin {found.margin:.3g}, floor {found.floor:.2g}",
        f"KL {format_error(found.kl)}",
    ]
    return "<br>".join([f"<b>after token {found.token}</b>", *(escape(line) for line in lines)])


def describe_token(report: DiffReport, node: NodeDiff) -> str:
    """The worst token of a node, as the token heatmap says it."""
    if node.local is None:
        return ""
    where = f"<b>token {escape(worst_token(report, node))}</b>"
    return "<br>".join([where, f"layer {node.layer}", f"ρ_tok {format_ratio(node.local.rho_tok)}"])


def visible_tokens(tokens: Iterable[str]) -> Iterator[str]:
    """Tokens with their white space made visible, escaped, and never half a character."""
    return (escape(repr(token.encode("utf-8", "replace").decode())[1:-1]) for token in tokens)


def _join(node: NodeDiff, where: str, lines: list[str]) -> str:
    return "<br>".join([f"<b>{escape(node.name)}</b>", escape(where), *(escape(line) for line in lines)])
