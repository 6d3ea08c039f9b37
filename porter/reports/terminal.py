"""A DiffReport in the terminal: read in ten seconds, at 80 columns, with colour or without."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from porter.comparison.report import DiffReport, NodeDiff, Stage, Verdict
from porter.reports.shares import told
from porter.reports.summary import (
    Block,
    bits,
    blocks,
    coverage,
    describe_worst,
    format_error,
    format_ratio,
    golden_source,
    nodes_of,
    offenders,
    peak,
    self_check_line,
    shortlist,
    token_summary,
    worst_status,
    worst_token,
)

COLOURS: dict[Verdict, str] = {
    "PASS": "green",
    "WARN": "yellow",
    "FAIL": "bold red",
    "INCONCLUSIVE": "magenta",
    "NOT_COMPARED": "bright_black",
}
BARS: dict[Verdict, str] = {"PASS": "▁", "WARN": "▄", "FAIL": "█", "INCONCLUSIVE": "?", "NOT_COMPARED": "·"}
WORDS: dict[Verdict, str] = {
    "PASS": "pass",
    "WARN": "warn",
    "FAIL": "fail",
    "INCONCLUSIVE": "inconclusive",
    "NOT_COMPARED": "not compared",
}
MOST_OFFENDERS = 8
NAME_WIDTH, STAGE_WIDTH = 26, 20  # layers.17.attn.post_norm is 23, precision bfloat16 is 18
WIDE = 120  # columns, from which a node's worst token and element stand beside its ratios
STRIP_LABEL = len("precision bfloat16") + 2
QUIET = "dim"


def render(report: DiffReport, console: Console, *, page: Path | None = None) -> None:
    """Prints the report; the last line is its sentence, alone and unwrapped.

    Args:
        page: where the HTML was written, to say so.
    """
    _print_header(report, console)
    if report.stages:
        console.print(_stage_table(report))
    if report.nodes:
        _print_strips(report, console)
    if report.logits:
        _print_logits(report, console)
    if report.behaviour:
        _print_behaviour(report, console)
    if report.verdict != "PASS":
        _print_offenders(report, console)
    if report.attribution:
        _line(console, ("attribution ", QUIET), told(report))
    for check in report.preflight:
        if check.status not in ("PASS", "NOT_COMPARED"):
            _line(console, (f"{check.status} ", COLOURS[check.status]), f"{check.name}: {check.detail}")
    for warning in report.warnings:
        _line(console, ("note ", COLOURS["WARN"]), warning)
    for proposal in report.proposals:
        _line(console, ("fits ", COLOURS["WARN"]), proposal.line, wrap=False)
    _line(console, (coverage(report), QUIET))
    if report.self_check:
        _line(console, (self_check_line(report), COLOURS["FAIL"] if report.missed else QUIET))
    if page is not None:
        _line(console, (f"report: {page}", QUIET), wrap=False)
    console.print()
    _line(console, _coloured_sentence(report), wrap=False)


def render_timings(report: DiffReport, console: Console) -> None:
    """Prints where the time went, longest step marked by its share."""
    steps = {step: seconds for step, seconds in report.timings_s.items() if step != "total"}
    total = report.timings_s.get("total", sum(steps.values()))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("step")
    table.add_column("seconds", justify="right")
    table.add_column("share", justify="right")
    for step, seconds in steps.items():
        share = seconds / total if total else 0.0
        table.add_row(Text(step), f"{seconds:.1f}", f"{share:.0%}", Text("█" * round(20 * share), QUIET))
    table.add_row("total", f"{total:.1f}", "", style="bold")
    console.print(table)


def _line(console: Console, *parts: str | tuple[str, str] | Text, wrap: bool = True) -> None:
    """Prints text as it is: no markup, no highlighting; unwrapped where it is meant to be copied or parsed."""
    console.print(Text.assemble(*parts), soft_wrap=not wrap, highlight=False)


def _coloured_sentence(report: DiffReport) -> Text:
    text = Text(report.sentence.replace("\n", " "))
    if report.sentence.startswith(report.verdict):
        text.stylize(COLOURS[report.verdict], 0, len(report.verdict))
    return text


def _print_header(report: DiffReport, console: Console) -> None:
    rows = [
        ("port", f"{report.port.what}, {report.port.dtype}, {report.port.device}"),
        ("reference", f"{report.reference.what}, {report.reference.dtype}, {report.reference.device}"),
        ("weights", report.weights),
        ("input", token_summary(report)),
    ]
    if report.overrides:
        rows.insert(1, ("set", ", ".join(report.overrides)))
    if golden := golden_source(report):
        rows.append(("golden", golden))
    _line(console, (report.name, "bold"), (f"  {report.created}", QUIET))
    table = Table.grid(padding=(0, 2, 0, 0))
    for label, value in rows:
        table.add_row(Text(label, QUIET), Text(value))
    console.print(table)
    console.print()


def _stage_table(report: DiffReport) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=QUIET)
    table.add_column("stage", no_wrap=True)
    table.add_column("dtype", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("nodes", justify="right", no_wrap=True)
    table.add_column("worst node, first bad node")
    for stage in report.stages:
        nodes = str(stage.compared) if stage.compared or stage.name != "preflight" else ""
        verdict = Text(stage.status, COLOURS[stage.status])
        table.add_row(Text(stage.name), Text(stage.dtype), verdict, nodes, _stage_facts(report, stage))
    return table


def _stage_facts(report: DiffReport, stage: Stage) -> Text:
    """The worst ρ and ρ_tok of a stage with their nodes, and its first bad node."""
    nodes = list(nodes_of(report, stage.name, stage.dtype))
    lines = []
    for label, metric in (("ρ", "rho"), ("ρ_tok", "rho_tok")):
        worst = peak(nodes, metric)
        if worst is not None:
            lines.append(Text.assemble(f"{label:<6}{format_ratio(worst.value):>7} ", (worst.node.name, QUIET)))
    said = bits(nodes) or stage.detail
    if said and not lines:
        lines.append(Text(said, QUIET))
    if stage.first is not None:
        lines.append(Text.assemble("first bad     ", (stage.first, COLOURS[stage.status])))
    return Text("\n").join(lines)


def _print_strips(report: DiffReport, console: Console) -> None:
    """A row of bars for each stage: how bad the worst node of each layer is, by height and colour."""
    rows = [(stage, blocks(report, stage)) for stage in report.stages if any(nodes_of(report, stage.name, stage.dtype))]
    group = _layers_a_bar(report.num_layers, console.width - 40)
    console.print()
    several = f"   {group} layers a bar" if group > 1 else ""
    _line(console, (f"{'':{STRIP_LABEL + 2}}{_ruler(report.num_layers, group)}{several}", QUIET))
    for stage, found in rows:
        bars = [(BARS[status], COLOURS[status]) for status in _grouped(found, report.num_layers, group)]
        strip = Text.assemble(bars[0], " ", *bars[1:-2], " ", *bars[-2:])
        _line(console, (f"{stage.name} {stage.dtype}".ljust(STRIP_LABEL), QUIET), strip)
    used = {block.status for _, found in rows for block in found}
    legend = "  ".join(f"{BARS[status]} {WORDS[status]}" for status in BARS if status in used)
    _line(console, (f"{'':{STRIP_LABEL}}embedding, layers, final norm and logits: {legend}", QUIET))


def _layers_a_bar(num_layers: int, width: int) -> int:
    return max(1, -(-num_layers // max(width, 1)))


def _grouped(found: tuple[Block, ...], num_layers: int, group: int) -> Iterator[Verdict]:
    yield found[0].status
    for start in range(1, num_layers + 1, group):
        yield worst_status(block.status for block in found[start : min(start + group, num_layers + 1)])
    yield from (block.status for block in found[num_layers + 1 : num_layers + 3])


def _ruler(num_layers: int, group: int) -> str:
    """The layer at every tenth bar, and the last layer where there is room."""
    bars = -(-num_layers // group)
    ruler = ""
    for bar in range(0, bars, 10):
        ruler = ruler.ljust(bar) + str(bar * group)
    last = str(num_layers - 1)
    if bars - 1 - len(ruler) >= 1:
        ruler = ruler.ljust(bars - 1) + last
    return ruler


def _print_behaviour(report: DiffReport, console: Console) -> None:
    """A line for each check that did not pass; the table of stages names those that did."""
    bad = [check for check in report.behaviour if check.status != "PASS"]
    if bad:
        console.print()
    for check in bad:
        label = (f"{check.status.replace('_', ' ')} {check.name} {check.dtype}: ", COLOURS[check.status])
        where = f" ({check.where})" if check.where else ""
        _line(console, label, f"{check.detail}{where}")


def _print_offenders(report: DiffReport, console: Console) -> None:
    found = offenders(report)
    if not found:
        return
    console.print()
    listed = shortlist(report, MOST_OFFENDERS)
    width = max([NAME_WIDTH, *(len(node.name) + 1 for node in listed)])
    head = f"{'node':<{width}}{'stage':<{STAGE_WIDTH}}{'e_port':>8}{'e_ref':>9}{'ρ':>8}{'ρ_tok':>8}"
    wide = console.width >= WIDE
    _line(console, (f"{head}  worst token, worst element" if wide else head, QUIET), wrap=False)
    for place, node in enumerate(listed):
        _print_offender(report, node, console, name_width=width, wide=wide)
        if not wide and node.local is not None:
            for fact in filter(None, [*(_facts(report, node) if place == 0 else ()), _why(node)]):
                _line(console, (f"  {fact}", QUIET), wrap=False)
    if len(found) > MOST_OFFENDERS:
        _line(console, (f"and {len(found) - MOST_OFFENDERS} more, in the report", QUIET))
    console.print()


def _print_offender(report: DiffReport, node: NodeDiff, console: Console, *, name_width: int, wide: bool) -> None:
    """A node's errors and ratios in columns; on a wide console what is behind them too."""
    name = (f"{node.name} ".ljust(name_width), COLOURS[node.status])
    where = f"{node.stage} {node.dtype} ".ljust(STAGE_WIDTH)
    if node.local is None:
        _line(console, name, where, (node.reason, QUIET), wrap=False)
        return
    errors = f"{format_error(node.local.e_port):>8}{format_error(node.local.e_ref):>9}"
    ratios = f"{format_ratio(node.local.rho):>8}{format_ratio(node.local.rho_tok):>8}"
    parts = [worst_token(report, node), describe_worst(node), _why(node)] if wide else []
    told = "  ".join(filter(None, parts))
    _line(console, name, where, errors, ratios, (f"  {told}" if told else "", QUIET), wrap=False)


def _facts(report: DiffReport, node: NodeDiff) -> list[str]:
    """Where in a node it is worst."""
    token = "worst" if node.is_parameter else "worst token"
    facts = [(token, worst_token(report, node)), ("worst element", describe_worst(node))]
    return [f"{what} {said}" for what, said in facts if said]


def _why(node: NodeDiff) -> str:
    """The reason of a status, where the columns of ρ do not say it already."""
    return "" if node.reason.startswith("ρ") and "(" not in node.reason else node.reason


def _print_logits(report: DiffReport, console: Console) -> None:
    """The logits of each stage: KL beside the reference's own, and words that rounding does not explain."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style=QUIET)
    table.add_column("logits", no_wrap=True)
    for name in ("KL", "reference’s own", "same word", "safe words changed"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in report.logits:
        flips, safe = sum(one.flipped and one.safe for one in each.at), sum(one.safe for one in each.at)
        said = f"{flips} of {safe}" if each.at else ""
        prompt = f", prompt {each.prompt + 1}" if len(report.prompts) > 1 else ""
        table.add_row(
            each.dtype + prompt, format_error(each.kl), format_error(each.kl_ref), f"{each.agreement:.1%}", said
        )
    console.print()
    console.print(table)
