"""The calls that expressions of specs may make; `first`, which is lazy, is part of the language."""

import math
from collections.abc import Callable
from typing import Any

MAX_ITEMS = 10_000


def _items(length: Any) -> range:
    if isinstance(length, bool) or not isinstance(length, int):
        raise ValueError(f"a length is a whole number, not {length!r}")
    if not 0 <= length <= MAX_ITEMS:
        raise ValueError(f"a list of {length} items; 0 to {MAX_ITEMS} are allowed")
    return range(length)


def _every(n: int, length: int, last: Any, other: Any) -> list[Any]:
    return [last if (i + 1) % n == 0 else other for i in _items(length)]


def _head(count: int, length: int, first: Any, rest: Any) -> list[Any]:
    return [first if i < count else rest for i in _items(length)]


def _flags(items: list[Any], on: Any, off: Any) -> list[Any]:
    return [on if item else off for item in items]


CALLS: dict[str, Callable[..., Any]] = {
    "every": _every,  # every(n, layers, a, b): a on each n-th layer, b on the others
    "head": _head,  # head(k, layers, a, b): a on the first k layers, b on the others
    "cycle": lambda items, length: [items[i % len(items)] for i in _items(length)],
    "each": lambda value, length: value if isinstance(value, list) else [value for _ in _items(length)],
    "const": lambda value, length: [value for _ in _items(length)],
    "flags": _flags,  # flags(cfg.no_rope_layers, a, b): a where the item is true, b elsewhere
    "sqrt": math.sqrt, "log": math.log, "int": int, "min": min, "max": max, "len": len,
}  # fmt: skip
OF_NULL = {"sqrt", "log", "int", "min", "max", "len"}  # arithmetic: null in, null out
