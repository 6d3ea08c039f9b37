"""Lets kernels run on a machine without a GPU. Does not import triton: the switch must be set before it is."""

import os
import sys
from importlib.util import find_spec

import torch


def use_interpreter_on_cpu() -> bool:
    """Kernels run in Triton's interpreter if no GPU is there and nothing has imported triton yet.

    Call it before importing an op. A process that may already have compiled kernels is left as it is, so calling this
    is always safe; launching on a CPU tensor then raises a ValueError that says why.

    Returns:
        Whether the interpreter is on.
    """
    if find_spec("triton") is None:
        return False
    if not torch.cuda.is_available() and "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")
