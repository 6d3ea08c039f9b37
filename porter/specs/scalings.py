"""What ports get wrong in a scaling of RoPE: a switch, two numbers exchanged, one list for both lengths, a key."""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

_DEFAULTS = {"yarn": {"truncate": True}}  # what HF takes where a config does not say
_MSCALES = {"mscale": 1.0, "mscale_all_dim": 1.0}
_OPTIONAL = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor")  # HF has a value for each
_OWN = {"rope_type", "factor", "original_max_position_embeddings"}  # exchanged with nothing


def other_scalings(scaling: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each mistake in a scaling, one at a time."""
    whole = {**_DEFAULTS.get(scaling.get("rope_type", ""), {}), **scaling}
    for key, value in whole.items():
        if isinstance(value, bool):
            yield {**whole, key: not value}
    yield from _exchanged(whole)
    if scaling.get("rope_type") == "yarn":
        yield {**whole, **_MSCALES}
        yield {**whole, "attention_factor": 1.0}
    for key in (each for each in _OPTIONAL if each in whole):
        yield {each: value for each, value in whole.items() if each != key}


def _exchanged(whole: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Two numbers in each other's place; two lists likewise, or one in the place of both."""
    numbers = [key for key, value in whole.items()
               if isinstance(value, int | float) and not isinstance(value, bool) and key not in _OWN]  # fmt: skip
    lists = [key for key, value in whole.items() if isinstance(value, list | tuple)]
    for one, other in (*combinations(numbers, 2), *combinations(lists, 2)):
        yield {**whole, one: whole[other], other: whole[one]}
    for one, other in combinations(lists, 2):
        yield {**whole, one: whole[other]}
        yield {**whole, other: whole[one]}
