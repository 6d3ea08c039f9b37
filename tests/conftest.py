"""Before any test: where there is no GPU, Triton interprets kernels, rightly in bfloat16 too."""

from porter_kernels import use_interpreter_on_cpu

if use_interpreter_on_cpu():  # before anything imports triton
    from tests.interpreter_bf16 import mend_bfloat16

    mend_bfloat16()
