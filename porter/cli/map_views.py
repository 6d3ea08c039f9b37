"""What porter map says of a draft."""

from collections.abc import Iterator
from pathlib import Path

from porter.references.user_module.code import PREFIX
from porter.references.user_module.draft import Draft
from porter.references.user_module.draft_text import by_weights, proposed, unnamed

_SHOWN = 12


def describe(draft: Draft, module: str, out: Path | None) -> Iterator[str]:
    """How many nodes were named, the layouts that are proposed, what was not found, and what to run next."""
    yield f"{draft.named} of {draft.total} nodes named"
    yield from _listed("proposed, as their values fit", proposed(draft))
    yield from _listed("named by their weights, as their values are not the reference's", by_weights(draft))
    yield from _listed("not named", unnamed(draft))
    yield from _listed("tensors of the checkpoint that the module does not hold", draft.absent)
    yield from _listed("parameters that hold no tensor of the checkpoint", draft.left_over)
    if out is not None:
        yield f"next: porter diff --port {PREFIX}{module.removeprefix(PREFIX)} --map {out}"


def _listed(title: str, lines: list[str]) -> Iterator[str]:
    if not lines:
        return
    yield f"{title}:"
    yield from (f"  {line}" for line in lines[:_SHOWN])
    if len(lines) > _SHOWN:
        yield f"  and {len(lines) - _SHOWN} more"
