"""Writes what CI services read: JUnit XML, and a GitHub step's summary."""

from pathlib import Path

from porter.comparison.report import DiffReport
from porter.errors import UsageError
from porter.reports.github import to_markdown
from porter.reports.junit import to_junit
from porter.reports.write import write_file


def write_summaries(report: DiffReport, *, junit_path: Path | None, github_path: Path | None) -> None:
    """Writes those that a path is given for.

    Args:
        junit_path: replaced if it exists.
        github_path: appended to, as GitHub has its $GITHUB_STEP_SUMMARY.

    Raises: UsageError: a place cannot be written to.
    """
    if junit_path is not None:
        write_file(junit_path, to_junit(report).encode("utf-8", "replace"))
    if github_path is not None:
        try:
            github_path.parent.mkdir(parents=True, exist_ok=True)
            with github_path.open("a", encoding="utf-8", errors="replace") as file:
                file.write(to_markdown(report))
        except OSError as error:
            wrong = f"the summary cannot be written to {github_path}: {error.strerror or error}"
            raise UsageError(wrong, "a file that can be appended to", "Give another with --github-summary.") from error
