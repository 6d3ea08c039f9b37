"""The report that porter explain explains: the newest that holds, else that of a diff made now; and its card."""

import shlex
import sys
from dataclasses import replace
from datetime import datetime
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import click

from porter.comparison.diff import diff
from porter.comparison.explained import Explained
from porter.comparison.preflight import load_tokenizer
from porter.comparison.progress import Progress
from porter.comparison.prompts import read_prompts
from porter.comparison.report import DiffReport
from porter.comparison.request import find_build
from porter.errors import PreflightError
from porter.models.records import read_build
from porter.references.dump import PREFIX as DUMP
from porter.references.dump import is_dump
from porter.references.user_module.code import PREFIX as MODULE
from porter.reports.explain_json import explain_to_text
from porter.reports.html import to_html
from porter.reports.json_report import to_text
from porter.reports.latest import Wanted, find_report, newest_of
from porter.reports.write import write_file, write_report

Held = tuple[Path, DiffReport]


def report_to_explain(model: str | None, out: Path, given: dict[str, Any], progress: Progress) -> Held | None:
    """The report with its folder; None where the checkpoint's tensors do not fit the spec, so that nothing runs.

    Args:
        given: what porter diff takes, by name.

    Raises: PorterError: the comparison could not be made.
    """
    held = find_report(out, _wanted(model, given))
    if held is not None:
        click.echo(f"explaining {held[0]}", err=True)
        return held
    click.echo("no report is newer than this port: porter diff runs first", err=True)
    try:
        report = diff(model, progress=progress, command=_diff_command(sys.argv), **given)
    except PreflightError as error:
        click.echo(f"porter diff refuses this port: {error.wrong}", err=True)
        return None
    return write_report(report, out), report


def add_explanation(held: Held, found: Explained) -> Path:
    """Writes explain.json beside a report, and the report anew with what it says; the page."""
    folder, report = held
    explained = replace(report, explanations=(found,))
    write_file(folder / "explain.json", explain_to_text(found, "report.json").encode())
    write_file(folder / "report.json", to_text(explained).encode("utf-8", "backslashreplace"))
    write_file(folder / "report.html", to_html(explained).encode("utf-8", "replace"))
    return folder / "report.html"


def _wanted(model: str | None, given: dict[str, Any]) -> Wanted:
    port, node_map = given["port"], given["map"]
    dumped = port is not None and is_dump(port)
    build = find_build(model, given["size"], given["weights"], given["overrides"], given["dtype"], given["ops"],
                       given["device"])  # fmt: skip
    recorded = None if model and given["size"] else read_build(model)
    folder = build.checkpoint()
    sources = [folder, *([node_map] if node_map else []), *(_code_of(port) if port and not dumped else [])]
    sources += [Path(port.removeprefix(DUMP))] if dumped else []
    sources += [Path(build.spec)] if build.spec.endswith((".yaml", ".yml")) else []
    sources += [Path(given["prompts"])] if given["prompts"] else []
    since = newest_of(sources)
    if recorded is not None:
        since = max(since, datetime.fromisoformat(recorded.created))
    prompt = given["prompt"] if given["prompt"] is not None or given["prompts"] is not None else build.prompt
    tokens = build.tokens if given["tokens"] is None else given["tokens"]
    found = () if dumped else read_prompts(build.blueprint, load_tokenizer(folder), prompt, given["prompts"], tokens)
    name = None if port is None else str(Path(port.removeprefix(DUMP))) if dumped else port.removeprefix(MODULE)
    return Wanted(build, name, str(node_map) if node_map else None, [each.ids for each in found], since)


def _code_of(port: str) -> list[Path]:
    """The file of a module's function, where it is found from the working directory."""
    name = port.removeprefix(MODULE).partition(":")[0]
    found = PathFinder.find_spec(name.partition(".")[0], [str(Path.cwd())])
    origin = found.origin if found else None
    whole = Path(*name.split(".")).with_suffix(".py")
    return [Path(each) for each in (origin, whole) if each]


def _diff_command(words: list[str]) -> str:
    """porter diff with the flags of this porter explain, for whoever runs it again."""
    kept, rest = [], iter(words[2:])
    for word in rest:
        if word == "--json":
            next(rest, "")
        elif not word.startswith("--json="):
            kept.append(word)
    return shlex.join(["porter", "diff", *kept])
