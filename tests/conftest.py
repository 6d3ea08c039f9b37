"""Before any test: where there is no GPU, Triton interprets kernels."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

# Tiny tensors gain nothing from a second thread, and OpenMP's waiting threads spin: beside any other job on two cores
# a test would take ten times as long. Before torch is imported, and inherited by the commands that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from porter_kernels import use_interpreter_on_cpu

use_interpreter_on_cpu()  # before anything imports triton

# A file goes to one process whole: one of these, begun last, would leave the others idle for a minute.
SLOWEST = (
    "test_golden_cache.py", "test_planted.py", "test_diff.py", "test_demo.py", "test_browser.py", "test_determinism.py",
    "test_families.py", "test_trainers.py", "test_explain.py", "test_convergence.py", "test_foreign.py", "test_run.py",
    "test_gradients.py", "test_progress.py", "test_compile.py", "test_peer_defects_patching.py", "test_sharded.py",
    "test_scorecard.py", "test_draft.py", "test_vocab_parallel.py", "test_self_check.py", "test_poster.py",
    "test_compare_dumps.py", "test_measure_memory.py", "test_specs.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slowest files first; make test keeps this order."""
    items.sort(key=lambda item: SLOWEST.index(item.path.name) if item.path.name in SLOWEST else len(SLOWEST))


# Once the interpreter is chosen. Kernel tests also run where only kernels are: on a GPU machine, in a mutant's tree.
if Path(__file__).with_name("reports").exists() and find_spec("jsonschema"):
    from tests.reports.validated import validate_every_report

    validate_every_report()
