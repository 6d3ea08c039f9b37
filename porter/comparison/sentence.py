"""The one sentence of a report. No torch here: porter recheck writes it anew without any model."""

import re
import shlex

from porter.comparison.observed import Injected
from porter.comparison.report import Behaviour, DiffReport, NodeDiff
from porter.comparison.verdicts import suspects

_PATHS = {  # check of the behaviour stage -> what acts on its path alone
    "cache": "what the cache is given: keys after rotary, and values",
    "decode": "positions and mask of tokens that follow a cache",
    "chunks": "positions and mask of several tokens that follow a cache",
    "window": "which keys a window keeps once the cache is longer than it",
    "padding.left": "positions and mask of padded rows",
    "padding.right": "the mask of padded rows",
    "batch": "what one row of a batch sees of another",
    "packed": "positions and mask of rows with several documents",
    "prompts": "positions and mask of padded rows",
    "logits": "the head, and what precision judged before it",
    "greedy": "decoding, where it writes on",
    "loss": "head and loss in one, linear_cross_entropy",
}

_SAID = 2  # parts of a module that are not called
# Of porter diff, what porter explain has not: with a value, and without.
_DIFF_FLAGS = (
    "--reference", "--layers", "--out", "--json", "--html", "--junit", "--github-summary", "--fail-on", "--stage",
    "--golden-cache",
)  # fmt: skip
_DIFF_SWITCHES = ("--attribution", "--grad", "--axes", "--self-check", "--timings")


def sentence(report: DiffReport) -> str:
    """Verdict, node, number, and on a FAIL what to look at and how."""
    fail = report.first_fail
    if fail is not None:
        return _failed(report, fail)
    if report.first_misbehaviour is not None:
        return _misbehaved(report, report.first_misbehaviour)
    if report.missed and report.verdict == "FAIL":
        return _missed(report, report.missed[0])
    if report.verdict == "PASS":
        dtypes = " and ".join(dict.fromkeys(stage.dtype for stage in report.stages if stage.dtype))
        if not report.compared:
            compared = sum(check.status != "NOT_COMPARED" for check in report.behaviour)
            return f"PASS: {compared} checks of behaviour agree with the reference in {dtypes}."
        unseen = sum(axis.seen is None for axis in report.axes)
        blind = f"; it was blind to {unseen} of {len(report.axes)} axes" if unseen else ""
        bits_alone = all(stage.name == "exact" for stage in report.stages)
        how = "are the reference’s bit for bit" if bits_alone else "agree with the reference"
        agree = f"{report.compared} nodes of {_layers(report)} {how} in {dtypes}"
        return f"PASS: {agree}{blind}."
    if report.verdict == "INCONCLUSIVE":
        stage = next((s for s in report.stages if s.status == "INCONCLUSIVE"), None)
        where = f" at {stage.first} ({stage.name}, {stage.dtype}): {stage.detail}" if stage and stage.first else ""
        return f"INCONCLUSIVE{where or ': no node was compared'}."
    return _warned(report)


def _layers(report: DiffReport) -> str:
    """30 layers, or 4 of 30 layers where --layers left out the others."""
    names = (node.name for node in report.nodes if node.status != "NOT_COMPARED")
    seen = {found[1] for name in names if (found := re.search(r"\blayers\.(\d+)\.", name))}
    return f"{len(seen)} of {report.num_layers} layers" if len(seen) < report.num_layers else f"{len(seen)} layers"


def next_command(report: DiffReport) -> str:
    """porter explain with the flags of the diff; of a diff that was no command, with those of its report."""
    words = shlex.split(report.command) if report.command.startswith("porter diff") else None
    return shlex.join(["porter", "explain", *(_of_report(report) if words is None else _kept(words[2:]))])


def _kept(words: list[str]) -> list[str]:
    """The model and the flags that explain has too."""
    kept, rest = [], iter(words)
    for word in rest:
        flag, equals, _ = word.partition("=")
        if not word.startswith("-"):
            kept.append(word)
        elif flag not in _DIFF_SWITCHES:
            value = [] if equals else [next(rest, "")]
            kept += [] if flag in _DIFF_FLAGS else [word, *value]
    return kept


def _of_report(report: DiffReport) -> list[str]:
    """Spec and size, as a name alone might mean a build with changes of its own."""
    spec = report.port.details.get("spec", report.name)
    stem = spec.rpartition("/")[2].removesuffix(".yaml").removesuffix(".yml")
    size = "tiny" if report.name == f"{stem}-tiny" else report.name if report.name != stem else None
    changed = [part for override in report.overrides for part in ("--set", override)]
    sized = ["--size", size] if size else []
    if "dump" in report.port.details:
        return [spec, *sized, "--weights", report.weights, "--port", f"dump:{report.port.details['dump']}"]
    return [spec, *sized, "--weights", report.weights, "--dtype", report.port.dtype, *changed]


def _failed(report: DiffReport, fail: NodeDiff) -> str:
    where = f"FAIL at {fail.name} ({fail.stage}, {fail.dtype}): {fail.reason}"
    where += _of_module(report, fail) if "module" in report.port.details else ""
    said = f"{where}; look at {suspects(fail.name)}"
    if "dump" in report.reference.details:
        return f"{said}."  # explain runs the reference
    if fail.stage == "gradients":
        return f"{said}; next: {shlex.join(['porter', 'diff', report.name, '--stage', 'gradients'])}"
    if "module" in report.port.details and not report.command.startswith("porter diff"):
        return f"{said}; next: porter.explain(…, port=…, map=…)"  # from Python, where the module is at hand
    return f"{said}; next: {next_command(report)}"


def _of_module(report: DiffReport, fail: NodeDiff | None) -> str:
    """What is known of a module besides: parts that it never calls, and layouts that its data fit."""
    said = ""
    if fail is not None:
        silent = [n for n in report.of_stage(fail.stage) if n.layer == fail.layer and n.reason.endswith("not called")]
        said += "".join(f"; {node.node}: {node.reason}" for node in silent[:_SAID])
    if report.proposals:
        first = next((p for p in report.proposals if fail and p.node == fail.name), report.proposals[0])
        others = len(report.proposals) - 1
        more = f" and {others} more" if others else ""
        said += f"; the data fit the map’s line “{first.line}”{more}"
    return said


def _missed(report: DiffReport, first: Injected) -> str:
    of = sum(each.outcome != "unobservable" for each in report.self_check)
    what = f"{first.path} ({first.value} → {first.tried})" if first.value else f"{first.path} ({first.tried})"
    return (
        f"FAIL: the self-check missed {len(report.missed)} of {of} observable faults, first {what}: {first.reason}; "
        "what this run passes may be wrong."
    )


def _misbehaved(report: DiffReport, fail: Behaviour) -> str:
    where = f"FAIL at {fail.name} (behaviour, {fail.dtype}): {fail.detail}"
    again = shlex.join(["porter", "diff", report.name, "--stage", "behaviour"])
    return f"{where}; look at {_PATHS[fail.name.partition(':')[0]]}; next: {again}"


def _warned(report: DiffReport) -> str:
    """The sentence of a WARN, or of one that --fail-on made a FAIL."""
    unequal = next((s for s in report.stages if s.name == "exact" and s.status == "WARN"), None)
    judged = next((s for s in report.stages if s.name != "exact" and s.status == "WARN"), None)
    if unequal is not None and (judged is None or "exact" in report.fail_on):
        where = f"{unequal.first} (exact, {unequal.dtype}): {unequal.detail}"
        function = "same function, other rounding"
        if not any(stage.name in ("semantics", "precision") for stage in report.stages):
            function = "--stage semantics says whether it is another function"
        same = f"{report.verdict} at {where}; {function}: look at {suspects(str(unequal.first))}"
        return f"{same}; next: {next_command(report)}" if report.verdict == "FAIL" else f"{same}."
    if judged is not None:
        where = f"{judged.first} ({judged.name}, {judged.dtype}): {judged.detail}"
        return f"{report.verdict} at {where}{_of_module(report, None)}."
    check = next((check for check in report.preflight if check.status == "WARN"), None)
    if check is not None:
        return f"{report.verdict}: {check.name} {check.detail}."
    missing = sum(node.status == "NOT_COMPARED" for node in report.nodes)
    return f"{report.verdict}: {missing} nodes were not compared."
