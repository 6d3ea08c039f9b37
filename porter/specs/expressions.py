"""Expressions of specs (`=cfg.hidden_size // heads`), read without eval.

Constants, names, `cfg.a.b` (a missing key is null), arithmetic, comparisons, and/or/not, `a if c else b`, lists and
the calls of CALLS. Null propagates through arithmetic, so `first(cfg.a // 2, 8)` does what it says.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from porter.errors import SpecError, closest

MAX_LENGTH, MAX_DEPTH, MAX_EXPONENT = 400, 25, 64

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


def _every(n: int, length: int, last: Any, other: Any) -> list[Any]:
    return [last if (i + 1) % n == 0 else other for i in range(length)]


def _head(count: int, length: int, first: Any, rest: Any) -> list[Any]:
    return [first if i < count else rest for i in range(length)]


CALLS: dict[str, Callable[..., Any]] = {
    "every": _every,  # every(n, layers, a, b): a on each n-th layer, b on the others
    "head": _head,  # head(k, layers, a, b): a on the first k layers, b on the others
    "cycle": lambda items, length: [items[i % len(items)] for i in range(length)],
    "const": lambda value, length: [value] * length,
    "flags": lambda items, on, off: [on if item else off for item in items],
    "sqrt": math.sqrt, "int": int, "min": min, "max": max, "len": len,
}  # fmt: skip


class Config:
    """config.json as expressions see it; remembers each key that was read."""

    def __init__(self, values: Mapping[str, Any], read: set[str] | None = None, prefix: str = "") -> None:
        self.values, self.prefix = values, prefix
        self.read: set[str] = set() if read is None else read

    def get(self, key: str) -> Any:
        self.read.add(self.prefix + key)
        value = self.values.get(key)
        return Config(value, self.read, f"{self.prefix}{key}.") if isinstance(value, Mapping) else value

    def plain(self) -> dict[str, Any]:
        """The values; all of them count as read."""
        self.read.update(self.prefix + key for key in self.values)
        return dict(self.values)


def evaluate(text: str, names: Mapping[str, Any], where: object = None) -> Any:
    """The value of the expression `text`, which starts with =.

    Args:
        names: what it may mention; `cfg` is a Config.
        where: its place, for errors.

    Raises:
        SpecError: it does not parse, mentions an unknown name or call, or divides by zero and the like.
    """
    source = text[1:].strip()
    try:
        if len(source) > MAX_LENGTH:
            raise ValueError(f"longer than {MAX_LENGTH} characters")
        value = _value(ast.parse(source, mode="eval").body, names, 0)
        return value.plain() if isinstance(value, Config) else value
    except SyntaxError as error:
        raise _error(text, where, f"it does not parse at column {error.offset}") from error
    except (ValueError, TypeError, ZeroDivisionError, OverflowError, IndexError) as error:
        raise _error(text, where, str(error)) from error


def _error(text: str, where: object, problem: str) -> SpecError:
    return SpecError(
        f"{where or 'expression'}: {text!r}: {problem}",
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
            if name not in names:
                raise ValueError(f"{name!r} is no name here; {closest(name, names)}")
            return names[name]
        case ast.Attribute(value=of, attr=key):
            owner = inner(of)
            if owner is None:
                return None
            if not isinstance(owner, Config):
                raise ValueError(f"only maps of the config have keys; {ast.unparse(of)} is no map")
            return owner.get(key)
        case ast.Subscript(value=of, slice=ast.Constant(value=key)):
            owner = inner(of)
            return None if owner is None else owner.get(key) if isinstance(owner, Config) else owner[key]
        case ast.List(elts=items):
            return [inner(item) for item in items]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return inner(body) if inner(test) else inner(orelse)
        case ast.BoolOp(op=op, values=values):
            return _logic(isinstance(op, ast.And), values, inner)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not inner(operand)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = inner(operand)
            return None if value is None else -value
        case ast.BinOp(left=left, op=op, right=right):
            return _arithmetic(op, inner(left), inner(right))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _COMPARE[type(op)](inner(left), inner(right))
        case ast.Call(func=ast.Name(id="first"), args=args, keywords=[]):
            return next((value for value in map(inner, args) if value is not None), None)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            if name not in CALLS:
                raise ValueError(f"{name!r} is no call; {closest(name, ['first', *CALLS])}")
            return CALLS[name](*map(inner, args))
    raise ValueError(f"{ast.unparse(node)!r} is not part of the language")


def _logic(conjunction: bool, values: list[ast.expr], inner: Callable[[ast.expr], Any]) -> Any:
    value: Any = None
    for item in values:
        value = inner(item)
        if bool(value) != conjunction:
            return value
    return value


def _arithmetic(op: ast.operator, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        raise ValueError(f"arithmetic needs numbers, not {left!r} and {right!r}")
    if isinstance(op, ast.Pow) and abs(right) > MAX_EXPONENT:
        raise ValueError(f"the exponent {right} is beyond {MAX_EXPONENT}")
    if type(op) not in _BINARY:
        raise ValueError(f"{type(op).__name__} is not part of the language")
    return _BINARY[type(op)](left, right)
