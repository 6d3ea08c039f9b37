"""A list of the config with an entry a layer, as an expression that also gives it where the config leaves it out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_WORDS = ("interval", "pattern", "every", "period", "freq", "step", "first", "dense", "num_")


def tell_apart(key: str, items: Sequence[Any], config: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The expression that gives each layer a case by the list `key`, and the cases: its texts, or on and off."""
    texts = all(isinstance(each, str) for each in items)
    taken = [str(each) if texts else "on" if each else "off" for each in items]
    instead = induce(taken, config)
    if texts:
        return (f"=first(cfg.{key}, {instead})" if instead else f"=cfg.{key}"), taken
    flags = f"flags(cfg.{key}, 'on', 'off')"
    return (f"={flags} if cfg.{key} else {instead}" if instead else f"={flags}"), taken


def induce(cases: Sequence[str], config: Mapping[str, Any]) -> str | None:
    """A list as every(n, layers, a, b) or head(n, layers, a, b), n being a key of the config where one says it."""
    count = len(cases)
    for path, items in _listed(config):
        if len(items) < count and all(each == items[i % len(items)] for i, each in enumerate(cases)):
            return f"cycle(cfg.{path}, layers)"
    for n in range(2, count + 1):
        last, other = cases[n - 1], cases[0]
        if last != other and all(each == (last if (i + 1) % n == 0 else other) for i, each in enumerate(cases)):
            return f"every({_number(n, config)}, layers, {last!r}, {other!r})"
    for n in range(3, count):
        first, other = cases[0], cases[1]
        if first != other and all(each == (first if i % n == 0 else other) for i, each in enumerate(cases)):
            return f"cycle([{', '.join(map(repr, cases[:n]))}], layers)"
    for n in range(1, count):
        if all(each == (cases[0] if i < n else cases[-1]) for i, each in enumerate(cases)):
            return f"head({_number(n, config)}, layers, {cases[0]!r}, {cases[-1]!r})"
    for n in range(2, count // 2 + 1):
        if all(each == cases[i % n] for i, each in enumerate(cases)):
            return f"cycle([{', '.join(map(repr, cases[:n]))}], layers)"
    return None


def _listed(config: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str]]]:
    """Lists of texts that stand in lists of the config, [[["global", "local"], 6]] say, under their paths."""
    for key, value in config.items():
        waiting = [(key, value)] if isinstance(value, list) else []
        for path, items in waiting:
            if items and all(isinstance(each, str) for each in items):
                yield path, items
            waiting += [(f"{path}[{i}]", each) for i, each in enumerate(items) if isinstance(each, list)]


def _number(n: int, config: Mapping[str, Any]) -> str:
    keys = [
        key for key, held in config.items() if type(held) is int and held == n and any(word in key for word in _WORDS)
    ]
    return f"cfg.{keys[0]}" if len(keys) == 1 else str(n)
