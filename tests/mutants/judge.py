"""Judges mutants: which tests may see one, in which order they run, what was found, and what need not run again."""

import ast
import hashlib
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.mutants.find import PACKAGE, Mutant
from tests.mutants.trial import TESTS, is_opaque, put, run_tests

WIDE, FEW = 400, 6  # of a statement that more tests execute, the quickest cases of each test are enough
COMPILES = "test_compile.py"
PATIENCE = 20  # seconds for any test, beside ten times its own: other jobs may be running
FIRST = 6  # tests that run alone at first: most mutants fail one of them, and their file alone is collected


@dataclass
class Known:
    """What a run of the tests as they are says of one."""

    file: str
    seconds: float
    lines: dict[str, set[int]]  # of which files; empty where hidden
    text: str  # digest of the test function
    opaque: bool


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def survey(tree: Path, cache_file: Path, mutants: Sequence[Mutant]) -> dict[str, Known]:
    """Runs the tests of each file that may see a mutant, unchanged; what has not changed since is read from the cache.

    A test that fails as it is can tell nothing about a mutant: it is left out.
    """
    cached = json.loads(cache_file.read_text()) if cache_file.exists() else {}
    known: dict[str, Known] = {}
    for path in sorted((tree / TESTS).rglob("test_*.py")):
        if not _mentions(path, tree, mutants):
            continue
        file = str(path.relative_to(tree))
        if not _holds(cached.get(file), path, tree):
            print(f"{file}: which lines its tests execute", file=sys.stderr)
            outcome = run_tests(tree, [file], None)
            if outcome.verdict != "passed":
                print(f"{file}: without any mutant, {outcome.test} fails: {outcome.why}", file=sys.stderr)
            executed = {kernel for entry in outcome.reports.values() for kernel in entry["lines"]}
            relied = {*_helpers(path, tree), *(tree / kernel for kernel in executed)}
            texts = {str(p.relative_to(tree)): digest(p.read_text()) for p in relied}
            # A test that fails may pass the next time: what it needs need not be among the texts.
            cached[file] = {"texts": texts if outcome.verdict == "passed" else {}, "tests": outcome.reports}
            cache_file.parent.mkdir(parents=True, exist_ok=True)
            cache_file.write_text(json.dumps(cached))
        known |= _read_survey(file, path.read_text(), cached[file]["tests"])
    return known


def _holds(entry: dict[str, Any] | None, path: Path, tree: Path) -> bool:
    """Whether a survey of a test file still says what its tests execute."""
    stored = (entry or {}).get("texts", {})
    if not {str(p.relative_to(tree)) for p in _helpers(path, tree)} <= stored.keys():
        return False
    texts = {tree / file: text for file, text in stored.items()}
    return all(file.exists() and digest(file.read_text()) == text for file, text in texts.items())


def _helpers(path: Path, tree: Path) -> list[Path]:
    """A test file, its conftest files, and modules that any of these name; all there are if it starts processes."""
    if "subprocess" in path.read_text():
        return [
            path,
            *(p for folder in (TESTS, PACKAGE) for p in (tree / folder).rglob("*.py") if "test_" not in p.name),
        ]
    own = [path, *(folder / "conftest.py" for folder in path.parents if (folder / "conftest.py").exists())]
    text = " ".join(p.read_text() for p in own)
    return own + [p for p in (tree / TESTS).rglob("*.py") if p not in own and f"porter_kernels.{p.stem} import" in text]


def _seen_by_processes(path: Path, tree: Path) -> set[str]:
    """Files of the ops that a test file imports, where it starts processes: what these execute is not in its lines."""
    text = path.read_text()
    if "subprocess.Popen(" not in text:
        return set()
    ops = re.findall(r"from porter_kernels\.(\w+)", text)
    files = [tree / PACKAGE / f"{op}.py" for op in ops] + [p for op in ops for p in (tree / PACKAGE / op).rglob("*.py")]
    return {str(file.relative_to(tree)) for file in files if file.exists()}


def _mentions(path: Path, tree: Path, mutants: Iterable[Mutant]) -> bool:
    """Whether a test file names an op of the mutants, or one that imports it; or compiles whatever there is."""
    ops = {name for op in {m.op.split(".")[0] for m in mutants} for name in importers(tree, op)}
    return path.name == COMPILES or re.search(rf"\b({'|'.join(ops)})\b", path.read_text()) is not None


@cache
def importers(tree: Path, op: str) -> frozenset[str]:
    """The op and those that import it, however far: modules or folders of porter_kernels."""
    files = [p for p in (tree / PACKAGE).rglob("*.py") if p != tree / PACKAGE / "__init__.py"]
    imports = [(p.relative_to(tree / PACKAGE).parts[0].removesuffix(".py"), p.read_text()) for p in files]
    found, new = set[str](), {op}
    while new:
        found |= new
        pattern = re.compile(rf"from porter_kernels\.({'|'.join(new)})[. ]")
        new = {name for name, text in imports if pattern.search(text)} - found
    return frozenset(found)


def _read_survey(file: str, text: str, tests: dict[str, Any]) -> dict[str, Known]:
    nodes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    functions = {}
    for name, node in nodes.items():  # with the fixtures of the file that it asks for
        own = [node, *(nodes[argument.arg] for argument in node.args.args if argument.arg in nodes)]
        functions[name] = "".join(ast.get_source_segment(text, each) or "" for each in own)
    known = {}
    for test, entry in tests.items():
        function = functions.get(re.split(r"::|\[", test)[1], "")
        if "test_reference" not in test:  # of the reference alone
            lines = {path: set(lines) for path, lines in entry["lines"].items()}
            known[test] = Known(file, entry["seconds"], lines, digest(function), is_opaque(function))
    return known


class Judge:
    """Judges mutants one by one in its own copy of the library; tests that killed before go first."""

    def __init__(self, tree: Path, known: dict[str, Known], harmless: Collection[str]) -> None:
        self.tree, self.known, self.harmless = tree, known, harmless
        self.kills: Counter[tuple[str, str]] = Counter()
        seen: dict[str, set[str]] = {}
        for test in known.values():
            seen.setdefault(test.file, set()).update(test.lines)
        for file in seen:
            seen[file] |= _seen_by_processes(tree / file, tree)
        self.files_seen = seen

    def tests_for(self, mutant: Mutant) -> list[str]:
        """Tests that execute the mutated statement, most telling first; then those that hide what they execute."""
        path, (first, last) = str(mutant.path), mutant.lines
        own = range(first, last + 1)
        # What runs when the module is imported, no test is seen to execute.
        imported = all(known.lines.get(path, set()).isdisjoint(own) for known in self.known.values())
        chosen, hidden = [], []
        for test, known in self.known.items():
            if known.opaque:
                # A minute for all kernels: not where equivalent.json says why the mutant changes nothing.
                compiles = known.file.endswith(COMPILES) and mutant.in_kernel and mutant.id not in self.harmless
                hidden += [test] * (compiles or path in self.files_seen[known.file])
            elif mutant.function == "module" or imported or not known.lines.get(path, set()).isdisjoint(own):
                chosen += [test] * (path in known.lines)
        ranks = Counter[str]()
        order = {}
        for test in sorted(chosen, key=lambda test: self.known[test].seconds):
            function = test.split("[")[0]
            telling = "matches" in function or (mutant.kind == "cast" and "offsets" in function)
            kills = -self.kills[mutant.function, test], -self.kills["", test]
            order[test] = *kills, not telling, ranks[function], len(order)
            ranks[function] += 1
        if len(chosen) > WIDE:
            chosen = [test for test in chosen if order[test][3] < FEW]
        return sorted(chosen, key=lambda test: order[test]) + sorted(hidden, key=lambda t: self.known[t].seconds)

    def slowest(self, test: str) -> float:
        """Seconds that a test may take: of one that starts processes, with its file's fixture, which any may be first
        to ask for."""
        known = self.known[test]
        alike = [each.seconds for each in self.known.values() if known.opaque and each.file == known.file]
        return max([known.seconds, *alike])

    def judge(self, mutant: Mutant) -> dict[str, Any]:
        """The verdict: killed, timeout or survived, by which test, in how many seconds."""
        tests = self.tests_for(mutant)
        put(self.tree, mutant)
        try:
            seconds, verdict, by = 0.0, "survived", ""
            first = [t for t in tests[:FIRST] if self.known[t].file == self.known[tests[0]].file]
            for batch in (first, [t for t in tests if t not in first]):
                if batch and verdict == "survived":
                    files = list(dict.fromkeys(self.known[t].file for t in batch))
                    limits = {t: PATIENCE + 10 * self.slowest(t) for t in batch}
                    outcome = run_tests(self.tree, files, limits)
                    seconds, by = seconds + outcome.seconds, outcome.test
                    verdict = {"passed": "survived", "failed": "killed"}.get(outcome.verdict, outcome.verdict)
        finally:
            original = self.tree / mutant.path
            before = original.stat().st_mtime - 2
            original.write_text(mutant.original, encoding="utf-8")
            os.utime(original, (before, before))
        if verdict != "survived":
            self.kills[mutant.function, by] += 1
            self.kills["", by] += 1
        key = self.key(mutant, verdict, by, tests)
        return {
            "id": mutant.id, "verdict": verdict, "by": by, "key": key, "seconds": round(seconds, 2), "tests": len(tests)
        }  # fmt: skip

    def key(self, mutant: Mutant, verdict: str, by: str, tests: Sequence[str]) -> str:
        """What a verdict rests on: the text of the file, and of the tests that were run; which ones, if it survived."""
        survived = verdict == "survived"
        relied = sorted({self.known[t].text for t in (tests if survived else [by]) if t in self.known})
        return digest(mutant.original, *relied, *(sorted(tests) if survived else []))


def judge_all(
    mutants: Sequence[Mutant], known: dict[str, Known], harmless: Collection[str], tree: Path, out: Path, jobs: int
) -> dict[str, dict[str, Any]]:
    """The verdict of each mutant, by id; those in `out` that still hold are not judged again.

    Args:
        mutants: to judge.
        known: what the tests execute.
        harmless: ids of mutants with a reason in equivalent.json.
        tree: copy of the library.
        out: verdicts of earlier runs, and where those of this one go.
        jobs: processes.
    """
    judge = Judge(tree, known, harmless)
    verdicts = {}
    for line in out.read_text().splitlines() if out.exists() else []:
        entry = json.loads(line)
        verdicts[entry["id"]] = entry
    valid = {}
    for mutant in mutants:
        entry = verdicts.get(mutant.id)
        if entry and entry["key"] == judge.key(mutant, entry["verdict"], entry["by"], judge.tests_for(mutant)):
            valid[mutant.id] = entry
    left = [m for m in mutants if m.id not in valid]
    out.parent.mkdir(parents=True, exist_ok=True)
    workers = [_work(left[i::jobs], judge, tree, out, i) for i in range(jobs)]
    if any(os.waitpid(worker, 0)[1] for worker in workers):
        raise RuntimeError("mutants: a worker failed, see above")
    wanted = {m.id for m in left}
    for line in out.read_text().splitlines() if out.exists() else []:
        entry = json.loads(line)
        if entry["id"] in wanted:
            valid[entry["id"]] = entry
    return valid


def _work(mutants: Sequence[Mutant], judge: Judge, tree: Path, out: Path, number: int) -> int:
    """Judges them in a process of its own, whose id it returns; appends each verdict to out."""
    if pid := os.fork():
        return pid
    status = 1
    try:
        own = tree.with_name(f"job{number}")
        shutil.copytree(tree, own, symlinks=True)
        judge.tree = own
        with open(out, "a") as file:
            for i, mutant in enumerate(mutants, 1):
                entry = judge.judge(mutant)
                file.write(json.dumps(entry) + "\n")
                file.flush()
                if entry["verdict"] == "survived" or i % 50 == 0:
                    print(f"{i}/{len(mutants)} {mutant.id} {entry['verdict']}: {mutant.diff}", file=sys.stderr)
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)
