"""The kinds of edits that mix up names, conditions and what a launch is given; and the table of all kinds."""

import ast
from collections.abc import Callable, Iterator
from itertools import pairwise

from tests.mutants.arithmetic import (
    SPEED_ONLY,
    UNORDERED,
    Edit,
    Scope,
    called,
    casts,
    changed,
    constant,
    dropped,
    mask,
    name,
    operator,
)

ALIKE = [{"rows", "cols"}, {"cos", "sin"}]
FLAGS = ("HAS_", "NEED_", "IS_", "PER_", "GATED", "INVERSE", "INTERLEAVED", "need_", "has_")


def family(parameter: str) -> str:
    """What kind of kernel argument it is, by its name."""
    if parameter.endswith("_ptr"):
        return "pointer"
    if "stride" in parameter:
        return "stride"
    if parameter.startswith("BLOCK"):
        return "block"
    if parameter.startswith(FLAGS):
        return "flag"
    return "size" if len(parameter) == 1 or parameter in ("length", "num_heads") else parameter


def swapped(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """Takes one name for another of its kind; swaps neighbours among arguments, results and targets."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and scope.in_kernel:
        if node.id in scope.parameters:
            names = [p for p in scope.parameters if family(p) == family(node.id)]
        elif node.id in scope.loaded:
            names = [n for n, line in scope.loaded.items() if line < node.lineno]
        else:
            names = next((sorted(both) for both in ALIKE if node.id in both and both <= scope.first_bound.keys()), [])
        if node.id in names and len(names) > 1:
            yield [(node, name(names[(names.index(node.id) + 1) % len(names)]))]
    if isinstance(node, ast.Call):
        if called(node) == "fma":
            yield from _swap(node.args[1:])
        elif called(node) not in UNORDERED:
            yield from _swap(node.args)
        if is_launch(node):
            families: dict[str, list[ast.AST]] = {}
            for keyword in node.keywords:
                if keyword.arg and keyword.arg not in SPEED_ONLY:
                    families.setdefault(family(keyword.arg), []).append(keyword.value)
            for values in families.values():
                yield from _swap(values)
    if isinstance(node, ast.Tuple):
        yield from _swap(node.elts)


def is_launch(node: ast.AST) -> bool:
    """Whether a call gives a kernel its arguments: the tensors, or with a plan the others."""
    return isinstance(node, ast.Call) and (isinstance(node.func, ast.Subscript) or called(node) in ("launch", "Plan"))


def _swap(values: list[ast.AST]) -> Iterator[Edit]:
    for a, b in pairwise(values):
        texts = ast.unparse(a), ast.unparse(b)
        stars = any(isinstance(x, ast.Starred) for x in (a, b))
        if texts[0] != texts[1] and not stars and not all(isinstance(x, ast.Constant | ast.Slice) for x in (a, b)):
            yield [(a, b), (b, a)]


def condition(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """Negates what decides."""
    tests = [node.test] if isinstance(node, ast.If | ast.IfExp | ast.While) else []
    for test in [*tests, *getattr(node, "ifs", [])]:
        negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        yield [(test, test.operand if negated else ast.UnaryOp(ast.Not(), test))]


def launch(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """A grid short of one program, a flag that is always on or off, an option not given, no check of the device."""
    is_grid = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "grid"
    for size in getattr(node.value, "elts", []) if is_grid else []:
        yield [(size, ast.BinOp(size, ast.Sub(), ast.Constant(1)))]
    if is_launch(node):
        for keyword in node.keywords:
            if keyword.arg and keyword.arg.startswith(FLAGS):
                yield from ([(keyword.value, ast.Constant(flag))] for flag in (True, False))
    elif isinstance(node, ast.Call):
        for argument in node.args:
            if isinstance(argument, ast.Name) and argument.id.startswith(FLAGS):
                yield from ([(argument, ast.Constant(flag))] for flag in (True, False))
        for keyword in node.keywords:
            if keyword.arg not in (*SPEED_ONLY, "mask", "other", "keep_dims", None):
                yield [(node, changed(node, keywords=[k for k in node.keywords if k is not keyword]))]
        if called(node) == "check_launch":
            yield [(node, ast.Constant(None))]


def layout(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """Leaves a tensor as it lies: no copy, no view, not detached."""
    if called(node) in ("contiguous", "view", "reshape", "detach", "flatten", "t", "expand"):
        if isinstance(node.func, ast.Attribute):
            yield [(node, node.func.value)]
    elif called(node) == "as_rows":
        yield [(node, node.args[0])]


KINDS: dict[str, Callable[[ast.AST, Scope], Iterator[Edit]]] = {
    "operator": operator,
    "dropped": dropped,
    "mask": mask,
    "cast": casts,
    "constant": constant,
    "swapped": swapped,
    "condition": condition,
    "launch": launch,
    "layout": layout,
}
