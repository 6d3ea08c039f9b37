"""Reports on disk, each whole or not at all: written beside its place, then renamed into it.

<folder>/<name>/<utc>/report.json and report.html
"""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path

from porter.comparison.report import DiffReport
from porter.errors import UsageError
from porter.reports.html import to_html
from porter.reports.json_report import to_text


def write_report(
    report: DiffReport, folder: Path, *, json_path: Path | None = None, html_path: Path | None = None
) -> Path:
    """Writes report.json and report.html into a new folder of their own, and says which.

    Args:
        folder: holds the reports of all models, diff_reports by default; created where it is missing.
        json_path, html_path: second places for the JSON and for the page, replaced if they exist.
    Raises: UsageError: the place cannot be written to.
    """
    json_bytes = to_text(report).encode("utf-8", "backslashreplace")  # a lone surrogate becomes its JSON escape
    html_bytes = to_html(report).encode("utf-8", "replace")
    parent = folder / folder_name(report.name)
    with ExitStack() as stack:
        second = []
        for path, content in ((json_path, json_bytes), (html_path, html_bytes)):
            if path is not None:
                stack.enter_context(_refusing(path))
                stack.enter_context(_created(path.parent))
                beside = stack.enter_context(_staged(path.with_name(f".{secrets.token_hex(6)}")))
                _refuse_others(path)
                beside.write_bytes(content)
                second.append((beside, path))
        with _refusing(parent), _created(parent), _staged(parent / f".{secrets.token_hex(6)}") as staged:
            staged.mkdir()
            (staged / "report.json").write_bytes(json_bytes)
            (staged / "report.html").write_bytes(html_bytes)
            placed = _place(staged, parent / _stamp(report.created))
        for beside, path in second:
            beside.replace(path)
    return placed


def write_file(path: Path, content: bytes) -> None:
    """Writes one file, replaced if it exists, whole or not at all.

    Raises: UsageError: the place cannot be written to.
    """
    with _refusing(path), _created(path.parent), _staged(path.with_name(f".{secrets.token_hex(6)}")) as beside:
        _refuse_others(path)
        beside.write_bytes(content)
        beside.replace(path)


def write_text(text: str, place: str) -> None:
    """A text into a file, replaced if it exists, or of "-" to stdout.

    Raises: UsageError: the place cannot be written to.
    """
    if place == "-":
        print(text)
    else:
        write_file(Path(place), f"{text}\n".encode())


def check_writable(folder: Path, *, json_path: Path | None = None, html_path: Path | None = None) -> None:
    """Refuses a place that a report could not be written to, before the long computation; leaves nothing behind.

    Raises: UsageError: the place cannot be written to.
    """
    _probe(folder)
    check_distinct(json_path, html_path)
    for path in (json_path, html_path):
        if path is not None:
            _refuse_others(path)
            _probe(path.parent)


def check_distinct(json_path: Path | str | None, html_path: Path | None, report: Path | None = None) -> None:
    """Refuses a page in the place of the JSON beside it, or of the report it is drawn from.   Raises UsageError."""
    for what, path in (("--json", json_path), ("the report", report)):
        if path and html_path is not None and os.path.realpath(path) == os.path.realpath(html_path):
            raise UsageError(f"{what} and --html are both {path}", "two files", "Name another for one of them.")


def folder_name(name: str) -> str:
    """A model's name as one folder: gemma-3-270m stays, models/my spec.yaml becomes models-my-spec.yaml."""
    return re.sub(r"[^\w.+-]+", "-", name).strip(".-") or "report"


def _stamp(created: str) -> str:
    return f"{datetime.fromisoformat(created):%Y-%m-%dT%H%M%SZ}"


def _place(staged: Path, wanted: Path) -> Path:
    """Renames a folder to the wanted name, or to that with -2, -3, ... where another report has it."""
    for attempt in count(1):
        target = wanted if attempt == 1 else wanted.with_name(f"{wanted.name}-{attempt}")
        try:
            return staged.rename(target)
        except OSError:
            if not target.exists():  # else another report has the name
                raise
    raise AssertionError("count ends")


@contextmanager
def _staged(path: Path) -> Iterator[Path]:
    """Removes what is left of a temporary file or folder, whatever happened."""
    try:
        yield path
    finally:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink(missing_ok=True)


@contextmanager
def _created(folder: Path) -> Iterator[None]:
    """Creates a folder with its parents; takes those it created away again if the block fails."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for each in missing:  # innermost first; one that another run filled stays
            with suppress(OSError):
                each.rmdir()
        raise


@contextmanager
def _refusing(place: Path) -> Iterator[None]:
    """Turns an OSError of the block into a UsageError about the place."""
    try:
        yield
    except OSError as error:
        raise _refusal(place, error.strerror or str(error)) from error


def _refusal(place: Path, why: str) -> UsageError:
    return UsageError(
        f"the report cannot be written to {place}: {why}",
        "a folder that can be written to, or created",
        "give another place with --out (or --json, --html), or free this one",
    )


def _refuse_others(path: Path) -> None:
    """Refuses what is there and no file: a rename would put the report in the place of a device, or of a pipe."""
    if path.exists() and not path.is_file():
        what = "folder" if path.is_dir() else "device or a pipe"
        raise _refusal(path, f"it is a {what}, and a file is to be written")


def _probe(folder: Path) -> None:
    """Writes and removes a folder where the report would go, or in the closest parent that exists."""
    with _refusing(folder):
        nearest = next(each for each in (folder, *folder.absolute().parents) if os.path.lexists(each))
        probe = nearest / f".{secrets.token_hex(6)}"
        try:
            probe.mkdir()
        finally:
            with suppress(OSError):
                probe.rmdir()
