"""The errors porter raises on purpose; the command line prints them without a traceback.

Exit codes: 0 pass, 1 divergence, 2 usage or spec, 3 artifact unreadable, 4 nothing comparable, 5 preflight mismatch.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class PorterError(Exception):
    """What was wrong, what was expected, and how to fix it, each as its own argument."""

    exit_code = 2

    def __init__(self, wrong: str, expected: str, fix: str) -> None:
        super().__init__(f"{wrong}\n  expected: {expected}\n  fix: {fix}")
        self.wrong, self.expected, self.fix = wrong, expected, fix


class UsageError(PorterError):
    """A command, flag or argument that porter cannot follow."""


class SpecError(PorterError):
    """A model spec that porter cannot use, or an axis it does not have."""


class ArtifactError(PorterError):
    """A checkpoint, prompt, dump or report that cannot be read, or is not what it says."""

    exit_code = 3


class ComparisonError(PorterError):
    """A comparison that has nothing to compare."""

    exit_code = 4


class PreflightError(PorterError):
    """A tokenizer, config or weight ledger that disagrees with the spec."""

    exit_code = 5


class WeightError(PreflightError):
    """A tensor that is missing, left over, misshapen or not finite."""


def closest(name: str, valid: Iterable[str]) -> str:
    """The sentence that names the closest valid name, else all of them."""
    names = sorted(valid)
    matches = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {matches[0]}?" if matches else f"one of {', '.join(names)}"
