"""Before any test: where there is no GPU, Triton interprets kernels."""

import os
from importlib.util import find_spec
from pathlib import Path

# Tiny tensors gain nothing from a second thread, and OpenMP's waiting threads spin: beside any other job on two cores
# a test would take ten times as long. Before torch is imported, and inherited by the commands that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from porter_kernels import use_interpreter_on_cpu

use_interpreter_on_cpu()  # before anything imports triton

# Once the interpreter is chosen. Kernel tests also run where only kernels are: on a GPU machine, in a mutant's tree.
if Path(__file__).with_name("reports").exists() and find_spec("jsonschema"):
    from tests.reports.validated import validate_every_report

    validate_every_report()
