"""What a DiffReport says, reduced to what a reader needs: shared by the terminal, the HTML page and the plots."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from porter.comparison.names import StageName
from porter.comparison.observed import Axis, Injected
from porter.comparison.report import DiffReport, Local, NodeDiff, Stage, Verdict

SEVERITY: tuple[Verdict, ...] = ("NOT_COMPARED", "PASS", "WARN", "INCONCLUSIVE", "FAIL")
BEFORE_LAYERS = "embed"
AFTER_LAYERS = ("final", "logits")
NO_AXES = "No axis was tried: this run cannot say what it could have seen."
DEFAULT_LIMITS = (1.5, 3.0)  # for a dtype that the report states no threshold for


@dataclass(frozen=True)
class Peak:
    """The node at which a stage is worst by one metric."""

    node: NodeDiff
    value: float


@dataclass(frozen=True)
class Block:
    """The worst status of one layer, or of what comes before and after the layers."""

    label: str  # embed, 0, 1, ..., final, logits
    status: Verdict
    worst: str  # name of the first node with that status


def worst_status(statuses: Iterable[Verdict]) -> Verdict:
    """The most severe of them; NOT_COMPARED where there is none."""
    return max(statuses, key=SEVERITY.index, default="NOT_COMPARED")


def nodes_of(report: DiffReport, stage: StageName, dtype: str) -> Iterator[NodeDiff]:
    """The nodes of one stage in one dtype, in order of the forward pass."""
    return (node for node in report.nodes if node.stage == stage and node.dtype == dtype)


def limits(report: DiffReport, dtype: str, metric: str) -> tuple[float, float]:
    """Where a metric stops to pass and where it fails; ρ's limits where the metric has none."""
    metrics = report.thresholds.get(dtype, {})
    return metrics.get(metric) or metrics.get("rho") or DEFAULT_LIMITS


def peak(nodes: Iterable[NodeDiff], metric: str) -> Peak | None:
    """The observable node with the largest rho or rho_tok; a value that is not a number is the largest of all."""
    measured = [
        Peak(node, float(getattr(node.local, metric)))
        for node in nodes
        if isinstance(node.local, Local) and node.kind == "observable" and node.status != "NOT_COMPARED"
    ]
    return max(measured, key=lambda each: math.inf if math.isnan(each.value) else each.value, default=None)


def layer_peaks(report: DiffReport, stage: Stage) -> list[tuple[str, Peak]]:
    """The largest ρ of each layer's observable nodes, and of what stands outside the layers but the logits."""
    inside: dict[str, list[NodeDiff]] = {}
    for node in nodes_of(report, stage.name, stage.dtype):
        inside.setdefault(block_of(node), []).append(node)
    return [(place, found) for place, nodes in inside.items() if place != "logits" and (found := peak(nodes, "rho"))]


def worst_of(report: DiffReport, stage: Stage) -> NodeDiff | None:
    """The node of a stage to look at first: its first FAIL, else the first that did not pass, else the largest ρ."""
    nodes = list(nodes_of(report, stage.name, stage.dtype))
    for status in ("FAIL", "INCONCLUSIVE", "WARN"):
        found = next((node for node in nodes if node.status == status), None)
        if found is not None:
            return found
    largest = peak(nodes, "rho")
    return largest.node if largest else next(iter(nodes), None)


def bits(nodes: Iterable[NodeDiff]) -> str:
    """Whether every node is bit-equal, or how many are not; empty where bits were not compared."""
    exact = [node.exact for node in nodes if node.exact is not None]
    if not exact:
        return ""
    return "every node bit-equal" if all(exact) else f"bits differ at {exact.count(False)} of {len(exact)} nodes"


def layers_shown(report: DiffReport) -> tuple[int, ...]:
    """The layers that pictures have room for: those with a node, all where there is none."""
    found = {node.layer for node in report.nodes if node.layer is not None}
    return tuple(sorted(found)) or tuple(range(report.num_layers))


def vocabulary(report: DiffReport) -> dict[int, str]:
    """The words of the ids that stand in a prompt; a report has no others."""
    return {i: word for prompt in report.prompts for i, word in zip(prompt.ids, prompt.tokens, strict=False)}


def word_of(i: int, words: Mapping[int, str]) -> str:
    """' the', or #1234 where the id has no known word."""
    return repr(words[i]) if i in words else f"#{i}"


_BLOCKS = {"pos": "embed", "embed_norm": "embed", "final_norm": "final", "head": "logits"}  # of parameters


def block_labels(report: DiffReport) -> tuple[str, ...]:
    return (BEFORE_LAYERS, *(str(layer) for layer in range(report.num_layers)), *AFTER_LAYERS)


def block_of(node: NodeDiff) -> str:
    """The block that a node belongs to: its layer, else embed, final or logits."""
    if node.layer is not None:
        return str(node.layer)
    place = node.place.split(".")[0].split("#")[0]
    return _BLOCKS.get(place, place)


def blocks(report: DiffReport, stage: Stage) -> tuple[Block, ...]:
    """The worst status of each layer of a stage, with what comes before and after."""
    inside: dict[str, list[NodeDiff]] = {label: [] for label in block_labels(report)}
    for node in nodes_of(report, stage.name, stage.dtype):
        inside.setdefault(block_of(node), []).append(node)
    found = []
    for label, nodes in inside.items():
        status = worst_status(node.status for node in nodes)
        found.append(Block(label, status, next((node.name for node in nodes if node.status == status), "")))
    return tuple(found)


def offenders(report: DiffReport) -> tuple[NodeDiff, ...]:
    """The nodes that did not pass: failures first, each group in order of stages and of the forward pass."""
    bad = [node for node in report.nodes if node.status in ("WARN", "INCONCLUSIVE", "FAIL")]
    return tuple(sorted(bad, key=lambda node: -SEVERITY.index(node.status)))


def shortlist(report: DiffReport, most: int) -> tuple[NodeDiff, ...]:
    """The first offenders, so chosen that each stage has its share among nodes of one severity."""
    places: dict[tuple[Verdict, StageName, str], int] = {}
    ranked = []
    for node in offenders(report):
        key = (node.status, node.stage, node.dtype)
        places[key] = places.get(key, 0) + 1
        ranked.append((-SEVERITY.index(node.status), places[key], node))
    kept = {id(node) for *_, node in sorted(ranked, key=lambda each: each[:2])[:most]}
    return tuple(node for node in offenders(report) if id(node) in kept)


def compared_in(report: DiffReport) -> str:
    return f"nodes compared {report.compared} of {report.declared}"


def axes_seen(report: DiffReport) -> str:
    if not report.axes:
        return "axes not tried"
    return f"{sum(axis.seen is not None for axis in report.axes)} of {len(report.axes)} axes could have shown"


def blind_first(report: DiffReport) -> list[Axis]:
    """The axes, those that could not have shown before the others."""
    return sorted(report.axes, key=lambda axis: axis.seen is not None)


def blind_to(report: DiffReport, most: int | None = None) -> str:
    """The axes that could not have shown, and why: a, b (no bit moved on …), c (…); at most `most` are named."""
    unseen = [axis for axis in report.axes if axis.seen is None]
    named: dict[str, list[str]] = {}
    for axis in unseen[:most]:
        named.setdefault(axis.reason, []).append(axis.path)
    told = ", ".join(f"{', '.join(dict.fromkeys(paths))} ({reason})" for reason, paths in named.items())
    left = len(unseen) - len(unseen[:most])
    return f"{told} and {left} more" if left else told


def coverage(report: DiffReport, most: int | None = 6) -> str:
    """What the run compared and what it was blind to, as one line; at most `most` axes are named."""
    line, unseen = f"{compared_in(report)}; {axes_seen(report)}", blind_to(report, most)
    return f"{line}; blind to: {unseen}" if unseen else line


def self_check_line(report: DiffReport) -> str:
    """self-check: 38 of 38 observable faults caught, 6 unobservable; empty where there was none."""
    outcomes = [each.outcome for each in report.self_check]
    if not outcomes:
        return ""
    caught, missed = outcomes.count("caught"), outcomes.count("missed")
    hidden = outcomes.count("unobservable")
    later = sum(each.outcome == "caught" and each.node != each.expected for each in report.self_check)
    line = f"self-check: {caught} of {caught + missed} observable faults caught, {hidden} unobservable"
    return f"{line}; {later} caught at another node than they move first" if later else line


def worst_first(report: DiffReport) -> list[Injected]:
    """The faults of the self-check, missed before unobservable before caught."""
    order = ("missed", "unobservable", "caught")
    return sorted(report.self_check, key=lambda each: order.index(each.outcome))


def golden_source(report: DiffReport) -> str:
    """How much of golden and the reference was read from a cache; empty where none was used."""
    if "cache" not in report.golden:
        return ""
    read, made, folder = (report.golden.get(f"cache_{name}", "?") for name in ("read", "made", "folder"))
    return f"with the reference, {read} units read from {folder}, {made} run"


def token_summary(report: DiffReport) -> str:
    """640 tokens: 1 prose (512), 2 code (128)."""
    if not report.prompts:
        return "no prompt"
    total = sum(prompt.length for prompt in report.prompts)
    if len(report.prompts) == 1:
        return f"{total} tokens: {report.prompts[0].label}"
    named = (f"{number} {prompt.label} ({prompt.length})" for number, prompt in enumerate(report.prompts, start=1))
    return f"{total} tokens: {', '.join(named)}"


def decoded_tokens(report: DiffReport, node: NodeDiff) -> tuple[str, ...]:
    """The decoded tokens that a node's per-token numbers belong to; empty without a tokenizer."""
    if not 0 <= node.prompt < len(report.prompts):
        return ()
    return report.prompts[node.prompt].tokens


def worst_token(report: DiffReport, node: NodeDiff) -> str:
    """42 ' the', or the index alone where the token cannot be decoded; of several prompts, which: 42 of prompt 3.

    Of a parameter, row 42, where it has rows.
    """
    if node.local is None:
        return ""
    if node.is_parameter:
        return f"row {node.local.token}" if len(node.shape) > 1 else ""
    tokens, index = decoded_tokens(report, node), node.local.token
    token = f"{index} {tokens[index]!r}" if 0 <= index < len(tokens) else str(index)
    return f"{token} of prompt {node.prompt + 1}" if len(report.prompts) > 1 else token


def describe_worst(node: NodeDiff) -> str:
    """[0, 312, 1999]: port 1.2346, reference 1.2401."""
    if node.worst is None:
        return ""
    where = ", ".join(str(index) for index in node.worst.at)
    return f"[{where}]: port {node.worst.port:.5g}, reference {node.worst.reference:.5g}"


def format_ratio(value: float) -> str:
    """1.04, 12.4, 896, 1.2e5: a ρ at the precision that decides something."""
    if not math.isfinite(value):
        return str(value)
    if value >= 10_000:
        return format_error(value)
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def format_error(value: float) -> str:
    """6.8e-4; 0 stays 0."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"
