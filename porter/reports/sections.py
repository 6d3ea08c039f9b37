"""The parts of the page that are text: each takes a DiffReport and gives HTML."""

from collections.abc import Iterable, Sequence

from porter.comparison.report import DiffReport, NodeDiff, Prompt, Stage, Verdict
from porter.reports.markup import Html, definitions, join, table, tag, text
from porter.reports.summary import (
    NO_AXES,
    bits,
    blind_first,
    blocks,
    format_error,
    format_ratio,
    golden_source,
    layers_shown,
    nodes_of,
    offenders,
    peak,
    shortlist,
    token_summary,
    worst_token,
)

SIGNS: dict[Verdict, str] = {"PASS": "✓", "WARN": "▲", "FAIL": "✕", "INCONCLUSIVE": "?", "NOT_COMPARED": "–"}
FIRST_OFFENDERS, MOST_OFFENDERS, MOST_IDS = 10, 500, 4096
DENSE = 36  # layers, from which the bars of a strip are thin
OFFENDER_HEAD = (
    "node",
    "stage",
    "",
    "ρ",
    "ρ_tok",
    "e_port",
    "e_ref",
    "worst token",
    "worst element: port, reference",
    "why",
)


def nothing(why: str) -> Html:
    return tag("p", why, class_="nothing")


def badge(status: Verdict, *, small: bool = False) -> Html:
    """A verdict as a coloured word, or as its sign."""
    label = SIGNS[status] if small else status.replace("_", " ")
    return tag("span", label, class_=f"badge {'small ' if small else ''}{status.lower()}", title=status)


def name_of(node: str | None) -> Html:
    return tag("code", node) if node else Html("")


def link_to(stage: str, dtype: str, node: str | None) -> Html:
    """A node's name that leads to its cell."""
    if not node:
        return Html("")
    name = Html(text(node).replace(".", ".<wbr>"))  # where a narrow cell may break it
    return tag("a", tag("code", name), href="#nodes", class_="node", data_node=f"{stage} {dtype} {node}")


def banner(report: DiffReport) -> Html:
    """The sentence, its verdict set apart, and under it who was compared with whom."""
    rest = report.sentence.removeprefix(report.verdict).lstrip(":").strip()
    said, _, command = rest.partition("; next: ")
    when = f"porter diff · {report.name} · {report.created.replace('T', ' ').removesuffix('+00:00')} UTC"
    heading = tag("h1", badge(report.verdict), " ", tag("span", said))
    following = [tag("p", "Next: ", tag("code", command), class_="next")] if command else []
    if report.explanations:
        link = tag("a", report.explanations[-1].sentence, href="#explanation")
        following = [tag("p", "Explained: " if not report.explanations[-1].exit_code else "", link, class_="next")]
    notes = [tag("p", note, class_="note") for note in report.warnings]
    notes += [tag("p", "Fits: ", tag("code", proposal.line), class_="note") for proposal in report.proposals]
    return join([tag("p", when, class_="eyebrow"), heading, *following, _sides(report), *notes])


def _sides(report: DiffReport) -> Html:
    """Who was compared with whom, on what; and how much of the model, where it was not all."""
    port = f"{report.port.what}, {report.port.dtype}, {report.port.device}"
    changed = [" with ", *(tag("code", f"--set {override}") for override in report.overrides)]
    against = f" against {report.reference.what}, on {token_summary(report)}."
    shown = len(layers_shown(report))
    only = f" {shown} of {report.num_layers} layers were compared." if shown < report.num_layers else ""
    return tag("p", port, *(changed if report.overrides else ()), against, only, class_="sides")


def facts(report: DiffReport) -> Html:
    sides = {"port": report.port, "reference": report.reference}
    pairs: list[tuple[str, str | Html]] = []
    for name, side in sides.items():
        details = "".join(f", {key} {value}" for key, value in side.details.items())
        pairs.append((name, f"{side.what}, {side.dtype}, {side.device}{details}"))
    if report.overrides:
        pairs.insert(1, ("set", join(tag("code", override) for override in report.overrides)))
    pairs += [("weights", report.weights), ("input", token_summary(report))]
    if golden := golden_source(report):
        pairs.append(("golden", golden))
    return definitions(pairs)


def stage_table(report: DiffReport) -> Html:
    """One row a stage: its verdict, its worst nodes, and how bad each layer is."""
    if not report.stages:
        return nothing("No stage ran.")
    head = ("stage", "verdict", "layers", "nodes", "worst ρ", "worst ρ_tok", "first bad node")
    return table(head, (_stage_row(report, stage) for stage in report.stages), numbers=("nodes",))


def _stage_row(report: DiffReport, stage: Stage) -> Sequence[str | Html | None]:
    nodes = list(nodes_of(report, stage.name, stage.dtype))
    peaks: list[Html | None] = [_peak(nodes, metric) for metric in ("rho", "rho_tok")]
    if not any(peaks):
        peaks = [tag("span", bits(nodes) or stage.detail, class_="detail"), None]
    label = join([tag("strong", stage.name), f" {stage.dtype}"])
    count = str(stage.compared) if nodes or stage.compared else ""
    strip = _strip(report, stage) if nodes else ""
    known = stage.first in {node.name for node in report.nodes}
    first = link_to(stage.name, stage.dtype, stage.first) if known else name_of(stage.first)
    return label, badge(stage.status), strip, count, *peaks, first


def _peak(nodes: Iterable[NodeDiff], metric: str) -> Html:
    found = peak(nodes, metric)
    if found is None:
        return Html("")
    node = found.node
    return join([tag("b", format_ratio(found.value)), " ", link_to(node.stage, node.dtype, node.name)])


def _strip(report: DiffReport, stage: Stage) -> Html:
    """A bar for each layer, and for what comes before and after, as high as its worst node is bad."""
    bars = []
    for block in blocks(report, stage):
        title = f"{block.label}: {block.status}" + (f", first {block.worst}" if block.status != "PASS" else "")
        gap = "" if block.label.isdecimal() and block.label != "0" else " gap"
        bars.append(tag("i", class_=f"{block.status.lower()}{gap}", title=title))
    return tag(
        "span",
        *bars,
        class_="strip dense" if report.num_layers > DENSE else "strip",
        role="img",
        aria_label=f"{stage.name} {stage.dtype}: {stage.status}",
    )


def offender_table(report: DiffReport) -> Html:
    found = offenders(report)
    if not found:
        return nothing("Every node that was compared passed." if report.compared else "No node was compared.")
    first = shortlist(report, FIRST_OFFENDERS)
    listed = _node_rows(report, first)
    if len(found) <= len(first):
        return listed
    every = (
        f"all {len(found)} nodes"
        if len(found) <= MOST_OFFENDERS
        else f"the first {MOST_OFFENDERS} of {len(found)} nodes"
    )
    return join([listed, tag("details", tag("summary", every), _node_rows(report, found[:MOST_OFFENDERS]))])


def _node_rows(report: DiffReport, nodes: Iterable[NodeDiff]) -> Html:
    return table(OFFENDER_HEAD, (_node_row(report, node) for node in nodes), numbers=("ρ", "ρ_tok", "e_port", "e_ref"))


def _node_row(report: DiffReport, node: NodeDiff) -> Sequence[str | Html]:
    local = node.local
    measured = ["", "", "", ""]
    if local is not None:
        measured = [format_ratio(local.rho), format_ratio(local.rho_tok)]
        measured += [format_error(local.e_port), format_error(local.e_ref)]
    stage = f"{node.stage} {node.dtype}"
    words = (worst_token(report, node), _element(node), node.reason)
    return link_to(node.stage, node.dtype, node.name), stage, badge(node.status, small=True), *measured, *words


def _element(node: NodeDiff) -> Html:
    """[0, 312, 1999] 1.2346, 1.2401."""
    if node.worst is None:
        return Html("")
    where = ", ".join(str(index) for index in node.worst.at)
    return join([tag("span", f"[{where}]", class_="quiet"), f" {node.worst.port:.5g}, {node.worst.reference:.5g}"])


def preflight_table(report: DiffReport) -> Html:
    if not report.preflight:
        return nothing("No check ran before the comparison.")
    checks = table(("check", "", "what was found"), ((c.name, badge(c.status), c.detail) for c in report.preflight))
    tables = (
        tag("details", tag("summary", f"{check.name}: {len(check.rows)} rows"), table(check.head, check.rows))
        for check in report.preflight
        if check.rows
    )
    several = len(report.prompts) > 1
    prompts = (_prompt_table(each, number if several else None) for number, each in enumerate(report.prompts, start=1))
    return join([checks, *tables, *prompts])


def _prompt_table(prompt: Prompt, number: int | None) -> Html:
    """The ids that both sides were given, with the text of each."""
    which = "the prompt" if number is None else f"prompt {number}"
    shown = prompt.ids[:MOST_IDS]
    words = [repr(word) for word in prompt.tokens[:MOST_IDS]] or [""] * len(shown)
    rows = ((str(index), str(i), word) for index, (i, word) in enumerate(zip(shown, words, strict=False)))
    more = f", the first {MOST_IDS} shown" if prompt.length > MOST_IDS else ""
    summary = tag("summary", f"ids of {which}, the same for both sides: {prompt.label}, {prompt.length} tokens{more}")
    return tag("details", summary, table(("token", "id", "text"), rows, numbers=("token", "id")))


def axes_table(report: DiffReport) -> Html:
    """Which fields of the spec this run could have judged: first those that it could not."""
    if not report.axes:
        return nothing(NO_AXES)
    rows = (
        (
            tag("code", axis.path),
            axis.value,
            axis.tried,
            axis.seen if axis.seen else tag("span", "not seen", class_="badge warn"),
            join([name_of(axis.node), " ", axis.reason]),
        )
        for axis in blind_first(report)
    )
    return table(("axis", "value", "tried instead", "shows in", "first at, or why not"), rows)


def environment(report: DiffReport) -> Html:
    """What is needed to run it again, and what it was judged by."""
    limits = (
        (dtype, metric.replace("rho", "ρ"), f"≤ {passing:g}", f"> {failing:g}")
        for dtype, metrics in report.thresholds.items()
        for metric, (passing, failing) in metrics.items()
    )
    timings = ((step, f"{seconds:.1f} s") for step, seconds in report.timings_s.items())
    prompts = (
        (f"prompt {prompt.label}", f"{prompt.length} ids, sha256 {prompt.ids_sha256}") for prompt in report.prompts
    )
    ran = [("spec", report.spec_hash), *prompts, *report.environment.items()]
    columns = (
        tag("section", tag("h3", "Ran on"), definitions(ran)),
        tag("section", tag("h3", "Judged by"), table(("dtype", "metric", "pass", "fail"), limits)),
        tag("section", tag("h3", "Time"), definitions(timings)),
    )
    command = tag("pre", tag("code", report.command), class_="command", tabindex="0")
    ran_what = [tag("h3", "What ran"), facts(report)]
    return join([tag("h3", "To run it again"), command, *ran_what, tag("div", *columns, class_="columns")])
