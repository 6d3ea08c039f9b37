"""Expressions of specs (`=cfg.hidden_size // heads`), read without eval.

Constants, names, `cfg.a.b` (a missing key is null), arithmetic, comparisons, and/or/not, `a if c else b`, lists and
the calls of CALLS. Null propagates through arithmetic, so `first(cfg.a // 2, 8)` does what it says. What an expression
may cost is bounded: its length and depth, the size of a number, the length of a list.
"""

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from porter.errors import SpecError, closest
from porter.specs.calls import CALLS, OF_NULL

MAX_LENGTH, MAX_DEPTH, MAX_EXPONENT, MAX_NUMBER = 400, 25, 64, 2**63

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


class Config:
    """config.json as expressions see it; remembers each key that was read."""

    def __init__(self, values: Mapping[str, Any], read: set[str] | None = None, prefix: str = "") -> None:
        self.values, self.prefix = values, prefix
        self.read: set[str] = set() if read is None else read

    def get(self, key: str) -> Any:
        self.read.add(self.prefix + key)
        return self._seen(self.values.get(key), f"{self.prefix}{key}.")

    def plain(self) -> dict[str, Any]:
        """The values; all of them count as read, at any depth."""
        for key, value in self.values.items():
            self.read.add(self.prefix + key)
            if isinstance(value, Mapping):
                Config(value, self.read, f"{self.prefix}{key}.").plain()
        return dict(self.values)

    def _seen(self, value: Any, prefix: str) -> Any:
        if isinstance(value, Mapping):
            return Config(value, self.read, prefix)
        if isinstance(value, list | tuple):
            return [self._seen(item, prefix) for item in value]
        return value


def is_expression(value: object) -> bool:
    """Whether a value of a spec is an expression: text that starts with =."""
    return isinstance(value, str) and value.startswith("=")


def mentions(text: str, name: str) -> bool:
    """Whether an expression that parses mentions `name`."""
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(_parse(text)))


def check_expression(text: str, names: Iterable[str], where: object) -> None:
    """Refuses an expression that no config could make right: its syntax, names and calls, in every branch.

    Raises:
        SpecError: what is wrong, with the closest name.
    """
    try:
        _check(_parse(text), {*names}, 0)
    except SyntaxError as error:
        raise _no_parse(text, where, error) from error
    except ValueError as error:
        raise _error(text, where, str(error)) from error


def _check(node: ast.expr, names: set[str], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    inside: list[ast.AST] = [*ast.iter_child_nodes(node)]
    match node:
        case ast.Name(id=name):
            _check_name(name, names)
        case ast.Attribute(attr=key):
            _check_key(key)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            _check_call(name)
            inside = [*args]
        case ast.UnaryOp(op=ast.Not() | ast.USub()) | ast.Subscript() | ast.List() | ast.IfExp() | ast.BoolOp():
            pass
        case ast.Compare(ops=[_]):
            pass
        case ast.BinOp(op=op) if type(op) in _BINARY:
            pass
        case ast.Constant(value=value) if value is None or isinstance(value, bool | int | float | str):
            pass
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is not part of the language")
    for child in inside:
        if isinstance(child, ast.expr):
            _check(child, names, depth + 1)


def _check_name(name: str, names: Iterable[str]) -> None:
    if name not in names:
        raise ValueError(f"{name!r} is no name here; {closest(name, names)}")


def _check_key(key: str) -> None:
    if key.startswith("__"):
        raise ValueError(f"{key!r} is no config key")


def _check_call(name: str) -> None:
    if name != "first" and name not in CALLS:
        raise ValueError(f"{name!r} is no call; {closest(name, ['first', *CALLS])}")


def evaluate(text: str, names: Mapping[str, Any], where: object = None) -> Any:
    """The value of the expression `text`, which starts with =.

    Args:
        names: what it may mention; `cfg` is a Config.
        where: its place, for errors.

    Raises:
        SpecError: it does not parse, mentions an unknown name or call, or divides by zero and the like.
    """
    try:
        return _unwrapped(_value(_parse(text), names, 0))
    except SyntaxError as error:
        raise _no_parse(text, where, error) from error
    except ZeroDivisionError as error:
        raise _error(text, where, "it divides by zero") from error
    except (ValueError, TypeError, OverflowError, IndexError) as error:
        raise _error(text, where, str(error)) from error


@lru_cache(maxsize=1024)
def _parse(text: str) -> ast.expr:
    source = text[1:].strip()
    if len(source) > MAX_LENGTH:
        raise ValueError(f"longer than {MAX_LENGTH} characters")
    try:
        return ast.parse(source, mode="eval").body
    except (RecursionError, MemoryError) as error:
        raise ValueError(f"nested deeper than {MAX_DEPTH}") from error


def _unwrapped(value: Any) -> Any:
    if isinstance(value, Config):
        return value.plain()
    return [_unwrapped(item) for item in value] if isinstance(value, list) else value


def _no_parse(text: str, where: object, error: SyntaxError) -> SpecError:
    at = f" at column {error.offset + 1}" if error.offset else ""  # the = counts
    return _error(text, where, f"it does not parse{at}")


def _error(text: str, where: object, problem: str) -> SpecError:
    shown = text if len(text) <= MAX_LENGTH else f"{text[:60]}…"
    return SpecError(
        f"{where or 'expression'}: {shown!r}: {problem}",
        "names of config keys and dims, arithmetic, comparisons, if-else, and the calls first, " + ", ".join(CALLS),
        'Correct the expression; quote it when it holds a comma: "=first(cfg.a, 1)".',
    )


def _value(node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")

    def inner(child: ast.expr) -> Any:
        return _value(child, names, depth + 1)

    match node:
        case ast.Constant(value=value) if value is None or isinstance(value, bool | int | float | str):
            return value
        case ast.Name(id=name):
            _check_name(name, names)
            return names[name]
        case ast.Attribute(value=of, attr=key):
            return _attribute(inner(of), key, of)
        case ast.Subscript(value=of, slice=index):
            return _item(inner(of), inner(index))
        case ast.List(elts=items):
            return [inner(item) for item in items]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return inner(body) if inner(test) else inner(orelse)
        case ast.BoolOp(op=op, values=values):
            return _logic(isinstance(op, ast.And), values, inner)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not inner(operand)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _arithmetic(ast.Sub(), 0, inner(operand))
        case ast.BinOp(left=left, op=op, right=right):
            return _arithmetic(op, inner(left), inner(right))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _compare(op, inner(left), inner(right))
        case ast.Call(func=ast.Name(id="first"), args=args, keywords=[]):
            return next((value for value in map(inner, args) if value is not None), None)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _call(name, [inner(arg) for arg in args])
    raise ValueError(f"{ast.unparse(node)!r} is not part of the language")


def _attribute(owner: Any, key: str, of: ast.expr) -> Any:
    _check_key(key)
    if owner is None:
        return None
    if not isinstance(owner, Config):
        raise ValueError(f"only maps of the config have keys; {ast.unparse(of)} is no map")
    return owner.get(key)


def _item(owner: Any, key: Any) -> Any:
    if owner is None:
        return None
    if isinstance(owner, Config) and isinstance(key, str):
        return owner.get(key)
    if isinstance(owner, list) and isinstance(key, int):
        return owner[key]
    raise ValueError(f"[{key!r}] of {_shown(owner)}; a map takes text, a list a whole number")


def _logic(conjunction: bool, values: list[ast.expr], inner: Callable[[ast.expr], Any]) -> Any:
    value: Any = None
    for item in values:
        value = inner(item)
        if bool(value) != conjunction:
            return value
    return value


def _compare(op: ast.cmpop, left: Any, right: Any) -> bool:
    try:
        return _COMPARE[type(op)](left, right)
    except TypeError as error:
        raise ValueError(f"{_shown(left)} and {_shown(right)} cannot be compared so") from error


def _call(name: str, values: list[Any]) -> Any:
    _check_call(name)
    if name in OF_NULL and any(value is None for value in values):
        return None
    try:
        return _bounded(CALLS[name](*values))
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{name} does not take ({', '.join(map(_shown, values))})") from error


def _arithmetic(op: ast.operator, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        raise ValueError(f"arithmetic needs numbers, not {_shown(left)} and {_shown(right)}")
    if isinstance(op, ast.Pow) and abs(right) > MAX_EXPONENT:
        raise ValueError(f"the exponent {right} is beyond {MAX_EXPONENT}")
    if type(op) not in _BINARY:
        raise ValueError(f"{type(op).__name__} is not part of the language")
    return _bounded(_BINARY[type(op)](_bounded(left), _bounded(right)))


def _bounded(value: Any) -> Any:
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"it gives {value}, which is no number of a model")
    if isinstance(value, int) and abs(value) > MAX_NUMBER:
        raise ValueError("it gives a whole number beyond 2**63")
    return value


def _shown(value: Any) -> str:
    if isinstance(value, Config):
        return "a map"
    text = "null" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
