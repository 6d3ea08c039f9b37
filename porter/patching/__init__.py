"""Fused kernels into HuggingFace models, and back out: what goes where is read off the spec, for every family alike."""

from porter_kernels import use_interpreter_on_cpu

use_interpreter_on_cpu()  # here, since the kernels that this package's modules import import triton
