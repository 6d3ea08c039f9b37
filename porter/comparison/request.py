"""What a diff is asked for: which build, and words of closed sets."""

from collections.abc import Sequence
from dataclasses import replace

from porter.errors import UsageError, closest
from porter.models.build import Build, plan_build
from porter.models.choices import DEFAULT_DTYPE, check_flags
from porter.models.records import read_build


def find_build(
    model: str | Build | None,
    size: str | None,
    weights: str | None,
    overrides: Sequence[str],
    dtype: str | None,
    ops: str | None,
    device: str | None,
) -> Build:
    """The build a model argument means, with the flags over its record."""
    if isinstance(model, Build):
        recorded: Build | None = model
    else:
        recorded = None if model and size else read_build(model)
    if recorded is None:
        assert isinstance(model, str)
        return plan_build(
            model, size=size, weights=weights, overrides=overrides, dtype=dtype or DEFAULT_DTYPE, ops=ops or "auto",
            device=device or "auto", prompt=None, tokens=None,
        )  # fmt: skip
    check_flags(dtype or recorded.dtype, ops or recorded.ops, device or recorded.device, None)
    if weights is None and size is None and not overrides:  # whatever config it was given stays
        return replace(
            recorded, ops=ops or recorded.ops, device=device or recorded.device, dtype=dtype or recorded.dtype
        )
    return plan_build(
        recorded.spec, size=size or recorded.size, weights=weights or recorded.weights,
        overrides=(*recorded.overrides, *overrides), dtype=dtype or recorded.dtype, ops=ops or recorded.ops,
        device=device or recorded.device, prompt=recorded.prompt, tokens=recorded.tokens,
    )  # fmt: skip


def check_words(flag: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Refuses a word that a flag does not know.

    Raises:
        UsageError: there is one.
    """
    for each in given:
        if each not in known:
            raise UsageError(f"{flag} {each!r}", closest(each, known), f"Any of {', '.join(known)}, with commas.")
