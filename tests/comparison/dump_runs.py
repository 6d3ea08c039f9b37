"""Dumps of a tiny model for tests, and diffs of them."""

from pathlib import Path
from typing import Any

from porter.comparison.capture import Which, capture
from porter.comparison.diff import diff
from porter.comparison.report import DiffReport
from tests.models.tiny import tiny

FAMILY, TOKENS = "gemma3", 160  # past its window of 128


def dump(folder: Path, *overrides: str, dtype: str = "float32", side: Which = "port", tokens: int = TOKENS) -> str:
    """dump:FOLDER, written now."""
    return f"dump:{capture(tiny(FAMILY, *overrides, dtype=dtype), out=folder, side=side, tokens=tokens)}"


def judge(port: str | None, reference: str = "hf", *overrides: str, dtype: str = "float32", **given: Any) -> DiffReport:
    return diff(tiny(FAMILY, *overrides, dtype=dtype), port=port, reference=reference, **given)


def found(report: DiffReport) -> tuple[bool, str | None]:
    """Whether it failed, and where first."""
    return report.verdict == "FAIL", report.first_fail.name if report.first_fail else None
