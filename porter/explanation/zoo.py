"""Runs the zoo: does porter diff find each public porting bug where it acts, and stay quiet where there is none?"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from porter.comparison.diff import diff
from porter.comparison.names import StageName
from porter.comparison.report import DiffReport, Verdict
from porter.errors import PorterError, UsageError, WeightError, closest
from porter.explanation.zoo_file import FalseAlarm, Mistake, Outside, Row, Zoo
from porter.models.build import Build, plan_build
from porter.specs.resolve import check_config_is_read

NEEDED = 0.98  # share of the mistakes that must be caught
Status = Literal["caught", "elsewhere", "unobservable", "inconclusive", "quiet", "false alarm", "outside"]
_TENSOR = re.compile(r"[\w.]+\.(?:weight|bias)\b")


@dataclass(frozen=True)
class Found:
    """What a diff found first.

    Attributes:
        stage: preflight: the port's weights were refused; exact: nothing but bits differ; None: nothing differs.
        node: the first FAIL, else the first node with other bits; in preflight the tensor that was refused.
        rho: of that node; None where there is none.
        verdict: of the diff; a refusal of the weights is a FAIL.
    """

    stage: StageName | None
    node: str | None
    rho: float | None
    verdict: Verdict
    detail: str


@dataclass(frozen=True)
class Outcome:
    """One row and what became of it; found is None for a row outside."""

    name: str
    row: Row
    status: Status
    found: Found | None
    seconds: float


@dataclass(frozen=True)
class Score:
    """The outcomes, counted."""

    outcomes: Sequence[Outcome]

    @property
    def mistakes(self) -> int:
        """Rows that are a change of a spec."""
        return sum(isinstance(each.row, Mistake) for each in self.outcomes)

    @property
    def caught(self) -> int:
        """Those found in the stage and at the node expected."""
        return self.count("caught")

    @property
    def passed(self) -> bool:
        """Enough is caught, and nothing failed that is right."""
        return self.caught >= NEEDED * self.mistakes and not self.count("false alarm")

    def count(self, status: Status) -> int:
        return sum(each.status == status for each in self.outcomes)


def choose_rows(zoo: Zoo, names: Iterable[str]) -> list[str]:
    """The rows asked for, in the file's order; all when none is named.

    Raises:
        UsageError: the zoo has no such row.
    """
    wanted = list(names)
    for name in wanted:
        if name not in zoo.rows:
            raise UsageError(f"--row {name}: the zoo has no such row", closest(name, zoo.rows), "Name one it has.")
    return [name for name in zoo.rows if not wanted or name in wanted]


def run_zoo(
    zoo: Zoo, names: Iterable[str] = (), *, progress: Callable[[str], None] = lambda name: None
) -> Iterator[Outcome]:
    """Each row's outcome, as it comes. Rows that make the same change to the same port are run once.

    Args:
        progress: called after each row that is run.

    Raises:
        UsageError: the zoo has no such row.
        PorterError: a row cannot be run; the error names its line.
    """
    held: dict[str, Found] = {}
    for name in choose_rows(zoo, names):
        row, start = zoo.rows[name], time.perf_counter()
        if isinstance(row, Outside):
            yield Outcome(name, row, "outside", None, 0.0)
            continue
        try:
            port = plan_port(row, zoo.tokens)
            key = repr((port.spec, port.size, port.config, port.overrides, port.tokens))
            found = held[key] = held.get(key) or find(port)
        except PorterError as error:
            raise type(error)(f"{zoo.where[name]}: row {name}: {error.wrong}", error.expected, error.fix) from error
        progress(name)
        yield Outcome(name, row, judge(row, found), found, time.perf_counter() - start)


def find(port: Build) -> Found:
    """What a diff of the port finds first: a refusal of its weights, a FAIL, other bits, or nothing."""
    try:
        port.reader()
    except WeightError as error:
        tensor = _TENSOR.search(error.wrong)
        return Found("preflight", tensor[0] if tensor else None, None, "FAIL", error.wrong)
    report = diff(port, layers="first-bad")
    if report.first_fail is not None:
        node = report.first_fail
        return Found(node.stage, node.name, node.local.rho if node.local else None, "FAIL", node.reason)
    unequal = next((stage for stage in report.stages if stage.name == "exact" and stage.status == "WARN"), None)
    if report.verdict == "INCONCLUSIVE" or unequal is None or unequal.first is None:
        return Found(None, None, None, report.verdict, report.sentence)
    rho = _rho(report, unequal.first, unequal.dtype)
    return Found("exact", unequal.first, rho, report.verdict, f"{unequal.dtype}: {unequal.detail}")


def judge(row: Mistake | FalseAlarm, found: Found) -> Status:
    """What a finding makes of a row. A stage or node other than the expected is no catch."""
    if found.verdict == "INCONCLUSIVE":
        return "inconclusive"
    if isinstance(row, FalseAlarm):
        return "false alarm" if found.verdict == "FAIL" else "quiet"
    if found.stage is None:
        return "unobservable"
    return "caught" if (found.stage, found.node) == (row.stage, row.node) else "elsewhere"


def plan_port(row: Mistake | FalseAlarm, tokens: int) -> Build:
    """The port of a row: plain torch on a CPU, where its expectations were measured."""
    planned = plan_build(
        row.family, size=row.size, weights="random:stress", overrides=(), dtype="bfloat16", ops="reference",
        device="cpu", prompt=None, tokens=row.tokens or tokens,
    )  # fmt: skip
    port = replace(planned, config={**planned.config, **row.config}, overrides=row.set)
    check_config_is_read(port.reference_resolved)
    return replace(port, spec_hash=port.blueprint.hash)


def _rho(report: DiffReport, name: str, dtype: str) -> float | None:
    nodes = (node for node in report.nodes if node.name == name and node.dtype == dtype)
    return next((node.local.rho for node in nodes if node.local is not None), None)
