"""Dtype, ops and device of a port: which values there are, and what auto means on this machine."""

import re
from collections.abc import Collection
from typing import Literal

from porter.errors import UsageError, closest
from porter.weights.sources import STORED

DEFAULT_DTYPE = "bfloat16"
OPS = ("auto", "reference", "triton")
MOST_TOKENS = 2**18  # their scores in float64, of one head and written out as golden does, are 550 GB


def check_flags(dtype: str, ops: str, device: str, tokens: int | None) -> None:
    """Refuses values that no run could have.

    Raises:
        UsageError: naming the flag and what it takes.
    """
    _check_choice("--dtype", dtype, STORED)
    _check_choice("--ops", ops, OPS)
    _check_device(device)
    check_tokens(tokens)


def check_tokens(tokens: int | None) -> None:
    """Refuses a number of tokens that no prompt has.   Raises UsageError."""
    if tokens is not None and not 1 <= tokens <= MOST_TOKENS:
        raise UsageError(f"--tokens {tokens}", f"1 to {MOST_TOKENS}", "Leave it out for the whole prompt.")


def _check_choice(flag: str, value: str, valid: Collection[str]) -> None:
    if value not in valid:
        raise UsageError(f"{flag} {value!r}", closest(value, valid), f"Any of {', '.join(valid)}.")


def _check_device(name: str) -> None:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise UsageError(
            f"--device {name!r}", "cpu, cuda, cuda:1 or auto", "Leave it out for the GPU where there is one."
        )


def pick_device(name: str) -> str:
    """The device: auto is cuda where there is one."""
    import torch

    _check_device(name)
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError("--device cuda, but torch sees no GPU", "a CUDA device, or --device cpu", "Pass --device cpu.")
    return name


def pick_ops(name: str, device: str) -> Literal["reference", "triton"]:
    """The ops: auto is triton on a GPU, else reference."""
    _check_choice("--ops", name, OPS)
    if name == "auto":
        return "triton" if device.startswith("cuda") else "reference"
    return "triton" if name == "triton" else "reference"
