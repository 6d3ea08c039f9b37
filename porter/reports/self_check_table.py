"""The self-check as a table of the page."""

from porter.comparison.observed import Injected
from porter.comparison.report import DiffReport
from porter.reports.markup import Html, join, table, tag
from porter.reports.sections import name_of, nothing
from porter.reports.summary import format_ratio, self_check_line, worst_first

HEAD = ("fault", "value", "tried instead", "", "caught by", "ρ", "first at, or why not")
_BADGES = {"missed": "fail", "unobservable": "warn", "caught": "pass"}


def self_check_table(report: DiffReport) -> Html:
    """One row a known fault: what the run made of it; what was not caught comes first."""
    if not report.self_check:
        return nothing("None was asked for: porter diff --self-check puts known faults into this port.")
    line = tag("p", self_check_line(report))
    return join([line, table(HEAD, (_row(each) for each in worst_first(report)), numbers=("ρ",))])


def _row(fault: Injected) -> tuple[str | Html, ...]:
    badge = tag("span", fault.outcome, class_=f"badge {_BADGES[fault.outcome]}")
    where: list[str | Html] = [name_of(fault.node), fault.reason]
    if fault.outcome == "caught" and fault.expected and fault.expected != fault.node:
        where += [" (moves ", name_of(fault.expected), " first)"]
    rho = format_ratio(fault.rho) if fault.rho is not None else ""
    return tag("code", fault.path), fault.value, fault.tried, badge, fault.stage or "", rho, join(where)
