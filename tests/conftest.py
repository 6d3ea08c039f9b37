"""Before any test: where there is no GPU, Triton interprets kernels, rightly in bfloat16 too."""

import os

# Tiny tensors gain nothing from a second thread, and OpenMP's waiting threads spin: beside any other job on two cores
# a test would take ten times as long. Before torch is imported, and inherited by the commands that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from porter_kernels import use_interpreter_on_cpu

if use_interpreter_on_cpu():  # before anything imports triton
    from tests.interpreter_bf16 import mend_bfloat16

    mend_bfloat16()
