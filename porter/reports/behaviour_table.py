"""The behaviour stage as a table, for the page and the terminal."""

from porter.comparison.report import Behaviour, DiffReport
from porter.reports.markup import Html, join, table, tag
from porter.reports.sections import badge, nothing
from porter.reports.summary import format_ratio

HEAD = ("check", "dtype", "", "measured", "to pass", "what was compared, and what came of it", "worst at")


def behaviour_table(report: DiffReport) -> Html:
    """One row a check: what was fed otherwise, and how far that is from one forward pass."""
    if not report.behaviour:
        return nothing("No other path was compared.")
    return table(HEAD, (_row(check) for check in report.behaviour), numbers=("measured", "to pass"))


def _row(check: Behaviour) -> tuple[str | Html, ...]:
    compared = check.status != "NOT_COMPARED"
    measured = (format_ratio(check.measured), f"≤ {check.limit:g}") if compared else ("", "")
    where = tag("span", check.where, class_="quiet") if check.where else ""
    return join([tag("strong", check.name)]), check.dtype, badge(check.status), *measured, check.detail, where
