"""What a mutant changes: the edits that each kind makes at a node of the syntax tree.

A kind is a function of a node and its scope. It yields edits; an edit is a list of pairs, a node of the file and what
stands in its place. Launch options that change speed alone are left out, since no test of values can see them.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Edit = list[tuple[ast.AST, ast.AST]]
SPEED_ONLY = ("num_warps", "num_stages", "num_ctas", "cache_modifier", "eviction_policy", "warps", "stages")
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift, ast.Pow: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
CALLS = {"min": "max", "minimum": "maximum", "any": "all", "exp": "exp2", "log": "log2", "sqrt": "rsqrt"}
CALLS |= {other: name for name, other in CALLS.items()}
UNORDERED = (
    "min", "max", "minimum", "maximum", "isinstance", "range", "arange", "load", "store", "where", "zip", "launch",
)  # fmt: skip


@dataclass(frozen=True)
class Scope:
    """What surrounds a node."""

    in_kernel: bool
    parameters: tuple[str, ...]  # of the function
    first_bound: dict[str, int]  # line on which a name is first assigned, 0 for parameters
    loaded: dict[str, int]  # the same for names assigned from tl.load


def changed(node: ast.AST, **fields: Any) -> Any:
    """A copy of node with some fields replaced; what is below is shared."""
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def called(node: ast.AST) -> str:
    """The last part of the name that a call calls, or nothing."""
    if isinstance(node, ast.Call):
        return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return ""


def is_address(node: ast.AST) -> bool:
    """Whether it is a pointer plus an offset: without the pointer, or less the offset, nothing runs at all."""
    return isinstance(node, ast.BinOp) and (
        is_address(node.left) or (isinstance(node.left, ast.Name) and node.left.id.endswith("_ptr"))
    )


def name(text: str) -> Any:
    return ast.parse(text, mode="eval").body


def cast(value: ast.AST, dtype: str) -> ast.AST:
    return ast.Call(ast.Attribute(value, "to", ast.Load()), [name(dtype)], [])


def operator(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """Swaps an operator, a comparison or a function for its neighbour."""
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in SWAPS and not is_address(node):
        yield [(node, changed(node, op=SWAPS[type(node.op)]()))]
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield [(node, changed(node, ops=[SWAPS[type(node.ops[0])]()]))]
    if called(node) in CALLS:
        other = CALLS[called(node)]
        is_method = isinstance(node.func, ast.Attribute)
        yield [(node.func, changed(node.func, **{"attr" if is_method else "id": other}))]


def dropped(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """Drops a term, a factor, a sign, a call around a number, or a whole statement."""
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.BitAnd):
        yield [(node, node.left)]
        if isinstance(node.op, ast.Add | ast.Mult | ast.BitOr) and not is_address(node):
            yield [(node, node.right)]
    if isinstance(node, ast.BoolOp):
        for i in range(len(node.values)):
            rest = node.values[:i] + node.values[i + 1 :]
            yield [(node, changed(node, values=rest) if len(rest) > 1 else rest[0])]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield [(node, node.operand)]
    if called(node) in ("abs", "min", "max", "minimum", "maximum", "reciprocal", "sqrt", "rsqrt", "int"):
        for argument in node.args:
            yield [(node, argument)]
    if isinstance(node, ast.AugAssign | ast.Assign | ast.Expr | ast.Return) and _can_go(node, scope):
        yield [(node, ast.Pass())]


def _can_go(node: ast.AST, scope: Scope) -> bool:
    """Whether the function still runs without the statement: names it binds are bound before."""
    if isinstance(node, ast.Return):
        return node.col_offset > 4 and node.value is not None  # an early one
    targets = node.targets if isinstance(node, ast.Assign) else []
    names = [n for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
    return all(isinstance(n.ctx, ast.Load) or scope.first_bound.get(n.id, node.lineno) < node.lineno for n in names)


def constant(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """Changes a number: 0 and 1, n - 1, n + 1, 2n; a float by a hundredth; a truth value."""
    if not isinstance(node, ast.Constant) or isinstance(node.value, str | bytes) or node.value is None:
        return
    value = node.value
    if isinstance(value, bool):
        values: list[Any] = [not value]
    elif isinstance(value, int):
        values = {0: [1], 1: [0, 2]}.get(value, [value + 1, value - 1, 2 * value])
    elif isinstance(value, float):
        values = [1.0] if value == 0 else [float(f"{value * 1.01:.12g}")]
    else:
        return
    for new in values:
        yield [(node, ast.Constant(new))]


def casts(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """Drops a cast, makes it earlier, later or narrower; rounds a value that was not."""
    if called(node) == "to" and isinstance(node.func, ast.Attribute) and node.args:
        inner, dtype = node.func.value, node.args[0]
        yield [(node, inner)]
        if isinstance(inner, ast.BinOp):
            yield [(node, changed(inner, left=changed(node, func=changed(node.func, value=inner.left))))]
        if ast.unparse(dtype) in ("tl.float32", "torch.float32"):
            yield [(dtype, name(ast.unparse(dtype).replace("float32", "float16")))]
    if isinstance(node, ast.BinOp) and called(node.left) == "to" and "int64" in ast.unparse(node.left.args[0]):
        yield [(node, cast(changed(node, left=node.left.func.value), "tl.int64"))]
    if isinstance(node, ast.keyword) and node.arg == "dtype" and ast.unparse(node.value).endswith("float32"):
        yield [(node.value, name(ast.unparse(node.value).replace("float32", "float16")))]
    value = node.value if isinstance(node, ast.Assign | ast.AugAssign) else None
    if called(node) == "store":
        value = node.args[1]
    if scope.in_kernel and isinstance(value, ast.BinOp | ast.Call) and _is_float(value):
        yield [(value, cast(value, "tl.float16"))]


def _is_float(value: ast.AST) -> bool:
    """Whether it looks like a float32 that a kernel computed, rather than an address, a mask or what it loaded."""
    names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
    names |= {called(n) for n in ast.walk(value)}
    integers = {"program_id", "arange", "load", "rows", "cols", "at", "cdiv", "zeros", "to", "mask"}
    return not names & integers and not any(n.endswith(("_ptr", "_stride")) for n in names)


def mask(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """Removes a mask or a part of it, moves it by one, changes what stands for masked elements."""
    if called(node) in ("load", "store") and scope.in_kernel:
        kept = [k for k in node.keywords if k.arg not in ("mask", "other")]
        if len(kept) < len(node.keywords):
            yield [(node, changed(node, keywords=kept))]
        for keyword in node.keywords:
            if keyword.arg == "other":
                yield [(node, changed(node, keywords=[k for k in node.keywords if k is not keyword]))]
                yield [(keyword.value, ast.Constant(1.0 if ast.unparse(keyword.value) in ("0.0", "0") else 0.0))]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
        yield [(node, node.left)]
        yield [(node, node.right)]
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt | ast.LtE) and scope.in_kernel:
        yield [(node, changed(node, comparators=[ast.BinOp(node.comparators[0], ast.Sub(), ast.Constant(1))]))]
    if called(node) == "where" and len(node.args) == 3:
        _, yes, no = node.args
        yield [(node, yes)]
        yield [(node, no)]
        yield [(yes, no), (no, yes)]
