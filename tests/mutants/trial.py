"""Runs tests against a copy of the library in a forked process, which starts with torch, Triton and pytest imported.

A test that a mutant can change is known from one run of the tests as they are, each with the lines of porter_kernels
that it executes. Tests that start a process or compile a graph hide their lines: they may see all that their file sees.
"""

import contextlib
import gc
import inspect
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from tests.mutants.find import PACKAGE, Mutant

TESTS = Path("tests/porter_kernels")
COPIED = ("pyproject.toml", "tests/conftest.py", TESTS, PACKAGE)
PATIENCE = 600  # seconds for a test whose time is not known
MEMORY = 32 * 2**30  # bytes of private memory; tests of far addresses ask for some 20 that they never touch

WARM = """
import torch, triton, triton.language as tl
@triton.jit
def kernel(x_ptr, n: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, n), tl.load(x_ptr + tl.arange(0, n)) + 1.0)
def test_warm():
    x = torch.zeros(4)
    kernel[(1,)](x, n=4)
    y = torch.ones(2, requires_grad=True)
    y.sum().backward()
    assert x.sum() == 4 * y.grad.max()
"""


class Outcome(NamedTuple):
    """How a run of tests ended."""

    verdict: str  # passed, failed or timeout
    test: str  # that failed or did not end, or nothing
    why: str
    seconds: float
    reports: dict[str, Any]  # of each test that passed: seconds, lines


def copy_tree(root: Path, to: Path) -> Path:
    """A copy of what the tests of the library need."""
    for part in COPIED:
        source, target = root / part, to / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, target)
    return to


def warm(folder: Path) -> None:
    """Imports, in this process, what every forked one needs, and nothing of the library."""
    import torch._dynamo
    import torch._inductor.compile_fx
    import torch._subclasses
    import torch.fx.experimental.proxy_tensor  # noqa: F401

    test = folder / "test_warm.py"
    test.write_text(WARM)
    silent = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={folder}", str(test)]
    pid = _fork(folder / "warm.log", lambda: int(pytest.main(silent)))  # fails here, not in every trial
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError(f"mutants: the first run failed: {(folder / 'warm.log').read_text()}")
    with open(folder / "warm.log", "w") as log:
        kept, sys.stdout = sys.stdout, log
        pytest.main(silent)
        sys.stdout = kept
    gc.freeze()


def _fork(log: Path, work: Any) -> int:
    """Starts work in a new process that writes to log; its exit status is what work returns."""
    if pid := os.fork():
        return pid
    status = 70
    try:
        os.setsid()
        with open(log, "wb") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        Path("/proc/self/oom_score_adj").write_text("1000")  # if memory runs out, it is the mutant's fault
        status = work()
        sys.stdout.flush()
    finally:
        os._exit(status)


class Trial:
    """A pytest plugin: runs chosen tests in their order, each with its time limit; or all, and notes their lines."""

    def __init__(self, root: Path, limits: dict[str, float] | None) -> None:
        self.root, self.limits = str(root), limits
        self.report = os.open(root / "report.jsonl", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.lines: dict[str, set[int]] = {}

    def say(self, **entry: Any) -> None:
        os.write(self.report, (json.dumps(entry) + "\n").encode())

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        import porter_kernels

        assert porter_kernels.__file__.startswith(self.root), f"tests import {porter_kernels.__file__}"
        if self.limits is not None:
            by_id = {item.nodeid: item for item in items}
            items[:] = [by_id[test] for test in self.limits if test in by_id]  # a name may say what is mutated

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.say(test=item.nodeid, event="start")
        self.lines = {}
        start = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, PATIENCE if self.limits is None else self.limits[item.nodeid])
        if self.limits is None and not is_opaque(inspect.getsource(item.function)):  # type: ignore[attr-defined]
            sys.settrace(self.trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            signal.setitimer(signal.ITIMER_REAL, 0)
            lines = {path[len(self.root) + 1 :]: sorted(lines) for path, lines in self.lines.items()}
            self.say(test=item.nodeid, event="end", seconds=time.perf_counter() - start, lines=lines)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.say(test=report.nodeid, event="failed", why=str(report.longrepr)[-3000:])

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        path = frame.f_code.co_filename
        if "/porter_kernels/" not in path or not path.startswith(self.root):
            return None
        seen = self.lines.setdefault(path, set())
        seen.add(frame.f_lineno)

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            seen.add(frame.f_lineno)
            return line

        return line


def is_opaque(test: str) -> bool:
    """Whether a test, given its text, hides the lines that it executes."""
    return any(part in test for part in ("torch.compile(", "subprocess.run(", "subprocess.Popen(", "run_without_gpu("))


def run_tests(tree: Path, files: Sequence[str], limits: dict[str, float] | None) -> Outcome:
    """Runs tests in a forked process: those with a time limit, in order, until one fails; or all of the files'."""

    def work() -> int:
        for key in [k for k in sys.modules if k.split(".")[0] in ("tests", "porter_kernels", "porter")]:
            del sys.modules[key]
        sys.path[:] = [p for p in sys.path if p not in ("", os.getcwd())]
        sys.dont_write_bytecode = limits is not None
        os.chdir(tree)
        arguments = ["-q", "--tb=short", "-p", "no:cacheprovider", f"--rootdir={tree}", "-c", "pyproject.toml"]
        return int(pytest.main([*arguments, *(["-x"] if limits else []), *files], plugins=[Trial(tree, limits)]))

    start = time.perf_counter()
    report = tree / "report.jsonl"
    report.unlink(missing_ok=True)
    pid = _fork(tree / "log.txt", work)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # ended, but its id is still its own
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what its tests started
    _, status = os.waitpid(pid, 0)
    seconds = time.perf_counter() - start
    entries = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    failures = [entry for entry in entries if entry["event"] == "failed"]
    bad = {entry["test"] for entry in failures}
    reports = {e["test"]: e for e in entries if e["event"] == "end" and e["test"] not in bad}
    if failures:
        failed = failures[0]
        return Outcome("failed", failed["test"], failed["why"], seconds, reports)
    if status == 0 or os.waitstatus_to_exitcode(status) == pytest.ExitCode.NO_TESTS_COLLECTED:
        return Outcome("passed", "", "", seconds, reports)
    last = entries[-1]["test"] if entries else "import"
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        return Outcome("timeout", last, f"{last} did not end", seconds, reports)
    return Outcome("failed", last, (tree / "log.txt").read_text(errors="replace")[-1500:], seconds, reports)


def put(tree: Path, mutant: Mutant) -> None:
    """Writes the mutant in the place of its file, of another second, so that no compiled file is taken for it."""
    path = tree / mutant.path
    second = path.stat().st_mtime + 2
    path.write_text(mutant.text, encoding="utf-8")
    os.utime(path, (second, second))
