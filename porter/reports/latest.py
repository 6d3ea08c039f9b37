"""The report of a port that holds: made of this very port, and after all that it is made of."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from porter.comparison.report import DiffReport
from porter.errors import ArtifactError
from porter.models.build import Build
from porter.reports.read_json import read_report
from porter.reports.write import folder_name

_MOST_READ = 20  # reports of one model, the newest first


@dataclass(frozen=True)
class Wanted:
    """What a report must be of.

    Attributes:
        port: name of a module, or folder of a dump, as a report has it; None: the build itself.
        node_map: place of a module's map.
        ids: of each prompt; of a dump they are its own.
        since: when the newest of what the port is made of was written.
    """

    build: Build
    port: str | None
    node_map: str | None
    ids: Sequence[tuple[int, ...]]
    since: datetime


def find_report(folder: Path, wanted: Wanted) -> tuple[Path, DiffReport] | None:
    """The newest report of the port with its folder; None where there is none that holds.

    Args:
        folder: of all reports, diff_reports by default.
    """
    for place in _newest_first(folder / folder_name(wanted.build.name)):
        try:
            report = read_report(place / "report.json")
        except ArtifactError:  # of another porter, or no report
            continue
        if datetime.fromisoformat(report.created) < wanted.since:
            return None  # the others are older still
        if _is_of(report, wanted):
            return place, report
    return None


def newest_of(paths: Iterable[Path]) -> datetime:
    """When the newest of some files was written, to the second; files in a folder count, missing ones do not."""
    files = (each for path in paths for each in (path.iterdir() if path.is_dir() else (path,)))
    times = [int(each.stat().st_mtime) for each in files if each.is_file()]
    return datetime.fromtimestamp(max(times, default=0), UTC)


def _newest_first(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        return
    found = [each for each in folder.iterdir() if (each / "report.json").is_file()]
    yield from sorted(found, key=lambda each: _stamp_and_number(each.name), reverse=True)[:_MOST_READ]


def _stamp_and_number(name: str) -> tuple[str, int]:
    """2026-03-14T092653Z-10 is newer than 2026-03-14T092653Z-2, and both than 2026-03-14T092653Z."""
    stamp, _, number = name.partition("Z-")
    return stamp.removesuffix("Z"), int(number) if number.isdecimal() else 1


def _is_of(report: DiffReport, wanted: Wanted) -> bool:
    build, details = wanted.build, report.port.details
    if report.weights != build.weights or "dump" in report.reference.details:
        return False
    if (details.get("module") or details.get("dump")) != wanted.port or details.get("map") != wanted.node_map:
        return False
    if "dump" in details:  # of its own spec, and of one prompt
        return True
    if wanted.port is None and report.port.dtype != build.dtype:
        return False
    same = (report.spec_hash, report.overrides) == (build.blueprint.hash, build.overrides)
    return same and [each.ids for each in report.prompts] == list(wanted.ids)
