"""How freed memory is kept for the next tensor, on Linux with glibc.

By default glibc maps each large tensor afresh and returns it to the kernel when freed, so every intermediate result
faults its pages in again, 4 KiB at a time: 29 of the 118 CPU seconds of a diff of Gemma-3-270M, 313 of 718 of
Gemma-7B. Kept for reuse are tensors of up to 256 MiB, such as nodes and logits; a heap that held the weights of a 7B
layer too grows to twice what is in use. Larger ones are mapped, in huge pages where the kernel gives them.
"""

import ctypes
import os
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT_BYTES = 256 * 2**20


def keep_freed_memory() -> None:
    """Asks malloc and torch for that; does nothing elsewhere. To be called before torch is imported."""
    if not sys.platform.startswith("linux"):
        return
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch reads it at its first tensor
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
