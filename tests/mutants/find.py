"""Finds every mutant of the kernel library: which code is mutated, what a mutant is called, and its text.

Mutated are kernels and what allocates, launches, saves and differentiates: all of porter_kernels but references,
tables, error texts and docstrings.
"""

import ast
import difflib
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.mutants.arithmetic import SPEED_ONLY, Edit, Scope, called
from tests.mutants.wiring import KINDS

PACKAGE = Path("kernels/porter_kernels")
NOT_MUTATED = ("__init__", "accuracy", "interpret", "rope_tables", "reference")
TILES = (
    "TILE",
    "BLOCK",
    "HEADS",
    "MOST_ROWS",
    "MOST_COLUMNS",
    "MIN_ROWS",
    "ROW_MULTIPLE",
    "TUNABLES",
    "FEW_ROWS",
    "MOST_PLANS",
    "PROGRAMS_PER_MULTIPROCESSOR",
)  # change speed
ENCLOSED = (ast.Call, ast.keyword, ast.Assign, ast.AugAssign, ast.Return, ast.Expr, ast.Tuple, ast.If, ast.For)
LOOSE = (ast.BinOp, ast.BoolOp, ast.Compare, ast.UnaryOp, ast.IfExp, ast.NamedExpr)


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    id: str  # follows from the function and the statement, not from where in the file they stand
    op: str  # module below porter_kernels
    path: Path  # from the root
    function: str
    kind: str
    in_kernel: bool
    lines: tuple[int, int]  # first and last of the statement, or of its head
    original: str
    pieces: tuple[tuple[int, int, str], ...]  # bytes from, to, and what stands there instead

    @cached_property
    def text(self) -> str:
        """The whole mutated file."""
        source = self.original.encode()
        for start, end, piece in sorted(self.pieces, reverse=True):
            source = source[:start] + piece.encode() + source[end:]
        return source.decode()

    @cached_property
    def diff(self) -> str:
        """Lines that go, then lines that come, each stripped."""
        lines = list(difflib.ndiff(self.original.splitlines(), self.text.splitlines()))
        return " ".join(f"{line[0]} {line[2:].strip()}" for line in lines if line[0] in "+-")


def find_mutants(root: Path) -> list[Mutant]:
    """Every mutant of the library, file by file, in the order of the text."""
    files = sorted((root / PACKAGE).rglob("*.py"))
    return [m for path in files if path.stem not in NOT_MUTATED for m in mutants_of(root, path.relative_to(root))]


def choose(everything: Sequence[Mutant], ops: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Mutants of the ops, of all if none is named; of each module `count`, or all for 0, in the order of the text.

    Which ones follows from their ids, so that a change of the file draws few others.
    """
    chosen = []
    for op in dict.fromkeys(m.op for m in everything):
        if not ops or any(op == name or op.startswith(f"{name}.") for name in ops):
            of_op = [m for m in everything if m.op == op]
            shuffled = sorted(of_op, key=lambda m: hashlib.sha256(f"{seed} {m.id}".encode()).digest())
            drawn = {m.id for m in shuffled[: count or None]}
            chosen += [m for m in of_op if m.id in drawn]
    return chosen


def mutants_of(root: Path, path: Path) -> list[Mutant]:
    """Every mutant of one file; of two with one text, the first."""
    original = (root / path).read_text(encoding="utf-8")
    op = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    starts = [0]
    for line in original.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    mutants, seen, counts = [], {original}, Counter[str]()
    for site in sites(ast.parse(original), original):
        for kind, edits in KINDS.items():
            for edit in edits(site.node, site.scope):
                pieces = tuple(_piece(old, new, site, starts) for old, new in edit)
                label = f"{site.function} {kind} {site.head} {site.position} {_unparse(edit)}"
                counts[label] += 1
                digest = hashlib.sha256(f"{label} {counts[label]}".encode()).hexdigest()[:10]
                mutant = Mutant(
                    f"{op}.{site.function}.{kind}.{digest}", op, path, site.function, kind, site.scope.in_kernel,
                    site.lines, original, pieces,
                )  # fmt: skip
                if mutant.text not in seen:
                    seen.add(mutant.text)
                    mutants.append(mutant)
    return mutants


@dataclass(frozen=True)
class Site:
    """A node that may be mutated, and where it stands."""

    node: ast.AST
    parents: dict[ast.AST, ast.AST]
    scope: Scope
    function: str
    head: str  # text of the statement, or of its head
    position: int  # of the node in it
    lines: tuple[int, int]


def sites(tree: ast.Module, text: str) -> Iterator[Site]:
    """Every node that may be mutated, outermost first."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    skipped = _reference_lines(text)
    for statement in ast.walk(tree):
        if not isinstance(statement, ast.stmt) or statement.lineno in skipped:
            continue
        functions = [n for n in _up(statement, parents) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
        if _exempt(statement, functions, parents):
            continue
        function = ".".join(f.name for f in reversed(functions)) or "module"
        scope = _scope(next((f for f in functions if isinstance(f, ast.FunctionDef)), None))
        nodes = list(_own_nodes(statement))
        head = " ".join(ast.unparse(n) for n in ast.iter_child_nodes(statement) if not isinstance(n, ast.stmt))
        last = max(getattr(n, "end_lineno", statement.lineno) for n in nodes[1:] or nodes)
        for position, node in enumerate(nodes):
            yield Site(node, parents, scope, function, head, position, (statement.lineno, last))


def _exempt(statement: ast.stmt, functions: list[ast.AST], parents: dict[ast.AST, ast.AST]) -> bool:
    """Errors, docstrings, references, imports, and lists of names."""
    kinds = ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.Pass | ast.ClassDef | ast.Try
    if isinstance(statement, kinds) or any("reference" in f.name for f in functions):
        return True
    if isinstance(statement, ast.FunctionDef):
        return "reference" in statement.name
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant) or called(statement.value) == "static_assert"
    if not functions and isinstance(statement, ast.Assign):
        value, names = statement.value, {n.id for n in ast.walk(statement.targets[0]) if isinstance(n, ast.Name)}
        is_type = isinstance(value, ast.Subscript) and ast.unparse(value.value) == "Literal"
        return is_type or isinstance(value, ast.List) or not names.isdisjoint(TILES)
    return False


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what it is made of, without nested statements, types, texts and options that change speed alone."""
    yield node
    for field, child in ((f, c) for f, value in ast.iter_fields(node) for c in _as_list(value)):
        skipped = ast.stmt | ast.JoinedStr | ast.expr_context | ast.operator | ast.cmpop | ast.boolop | ast.unaryop
        if field in ("annotation", "returns", "decorator_list") or isinstance(child, skipped):
            continue
        if called(node) == "arange" and isinstance(child, ast.Constant):
            continue  # it has to start at 0
        if not (isinstance(child, ast.keyword) and child.arg in SPEED_ONLY):
            yield from _own_nodes(child)


def _as_list(value: object) -> list[ast.AST]:
    return [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, ast.AST)]


def _scope(function: ast.FunctionDef | None) -> Scope:
    if function is None:
        return Scope(False, (), {}, {})
    arguments = function.args
    parameters = tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
    first, loaded = dict.fromkeys(parameters, 0), {}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            first[node.id] = min(first.get(node.id, node.lineno), node.lineno)
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name) and any(called(n) == "load" for n in ast.walk(node)):
            loaded.setdefault(target.id, node.lineno)
    in_kernel = any(ast.unparse(d).startswith("triton.") for d in function.decorator_list)
    return Scope(in_kernel, parameters, first, loaded)


def _up(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    while (node := parents.get(node)) is not None:  # type: ignore[assignment]
        yield node


def _reference_lines(text: str) -> set[int]:
    """Lines under a heading "# --- reference", up to the next heading."""
    inside, lines = False, set()
    for i, line in enumerate(text.splitlines(), 1):
        if line.startswith("# --- "):
            inside = line.startswith("# --- reference")
        if inside:
            lines.add(i)
    return lines


def _piece(old: ast.AST, new: ast.AST, site: Site, starts: list[int]) -> tuple[int, int, str]:
    start = starts[old.lineno - 1] + old.col_offset
    end = starts[old.end_lineno - 1] + old.end_col_offset
    text = ast.unparse(new)
    parent = site.parents.get(old)
    loose = isinstance(new, LOOSE) or (isinstance(new, ast.Tuple) and not text.startswith("("))
    number = isinstance(new, ast.Constant) and isinstance(parent, ast.Attribute)
    return start, end, f"({text})" if number or (loose and not isinstance(parent, ENCLOSED)) else text


def _unparse(edit: Edit) -> str:
    return " ".join(f"{ast.unparse(old)} => {ast.unparse(new)}" for old, new in edit)
