"""What some layers have and others have not, as an expression in i, the number of a layer."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from porter.explanation.draft.sketch import evaluated, keys_read
from porter.specs.expressions import is_expression

_COUNTS = ("dense", "first", "start", "last", "end", "replace")
_STEPS = ("interval", "step", "freq", "pattern", "every", "period", "sparse")


def tell_layers(truth: Sequence[bool], names: Mapping[str, Any], options: Iterable[Any]) -> str:
    """The expression that is true in just these layers.

    Args:
        names: what expressions see, but i.
        options: of known families; those that read keys which the config has come first, then what the config's own
            keys give, then plain numbers.
    """
    known = [text for text in options if tells(text, truth, names)]
    known.sort(key=lambda text: -_present(text, names))
    if known and (all(truth) or _present(known[0], names)):
        return str(known[0])
    return next(text for text in _candidates(truth, names["cfg"].values) if tells(text, truth, names))


def tells(text: Any, truth: Sequence[bool], names: Mapping[str, Any]) -> bool:
    """Whether an expression is true in just these layers."""
    return is_expression(text) and all(bool(evaluated(text, {**names, "i": i})) == each for i, each in enumerate(truth))


def _present(text: str, names: Mapping[str, Any]) -> int:
    read = keys_read(text, {**names, "i": 0})
    return sum(names["cfg"].values.get(key.split(".")[0]) is not None for key in read)


def _candidates(truth: Sequence[bool], config: Mapping[str, Any]) -> Iterator[str]:
    for key, value in config.items():  # what the checkpoint's own file says comes first in it
        if isinstance(value, list) and len(value) == len(truth) and all(isinstance(each, str) for each in value):
            words = {each for each, held in zip(value, truth, strict=True) if held}
            if len(words) == 1:
                yield f"=cfg.{key}[i] == {next(iter(words))!r}"
        elif isinstance(value, list):
            yield from (f"=i in cfg.{key}", f"=i not in cfg.{key}")
        if type(value) is int and any(word in key for word in _COUNTS):
            yield from (f"=i >= cfg.{key}", f"=i < cfg.{key}")
        if type(value) is int and any(word in key for word in _STEPS):
            yield from (f"=(i + 1) % cfg.{key} == 0", f"=i % cfg.{key} == 0", f"=(i + 1) % cfg.{key} != 0")
    yield from ("=i == layers - 1", "=i == 0", "=i > 0", "=i < layers - 1", "=i % 2 == 1", "=i % 2 == 0")
    yield f"=i in [{', '.join(str(i) for i, each in enumerate(truth) if each)}]"
