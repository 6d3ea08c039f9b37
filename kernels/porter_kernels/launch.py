"""What every launch needs: Triton if it is there, the check that it can run on this tensor, tile and grid sizes.

The one place that imports triton. Without it references work, and a launch says what to install.
"""

import math
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "as_rows", "block_size", "launching", "next_power_of_2", "num_programs", "num_warps", "rows_per_program", "tl",
    "triton",
]  # fmt: skip

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # today's default said aloud: 3.9 warns because 3.10 flips it


class _NoTriton:
    """Stands for triton and tl where they are missing, so that modules with kernels can be imported."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self


try:
    import triton  # type: ignore[import-untyped]
    import triton.language as tl  # type: ignore[import-untyped]
except ImportError:  # macOS and Windows have no wheel
    triton = tl = _NoTriton()

HAS_TRITON = not isinstance(triton, _NoTriton)
INTERPRETING = HAS_TRITON and bool(triton.knobs.runtime.interpret)  # read once: kernels are made when imported

# Elements of the tile a program holds. On a GPU they live in registers. In the interpreter a program costs 1 to 2 ms
# however little it holds: rms_norm takes 4700 ns an element in tiles of 2**10, 150 of 2**16, 60 of 2**18.
TILE = 2**16 if INTERPRETING else 2048


def launching(op: str, x: Tensor) -> AbstractContextManager[Any]:
    """The context to launch a kernel of `op` in: on the device of x.

    Raises:
        ValueError: Triton is missing, or x is on a CPU and kernels are compiled rather than interpreted.
    """
    if not HAS_TRITON:
        raise ValueError(
            f"{op}: triton is not installed, expected it to launch the kernel. "
            f"Install it with pip install triton (Linux only), or call {op}_reference."
        )
    if x.device.type == "cuda":
        return torch.cuda.device(x.device)
    if not INTERPRETING:
        raise ValueError(
            f"{op}: x is on {x.device}, expected a CUDA device, since Triton compiles in this process. Move x with "
            f"x.cuda(), call porter_kernels.use_interpreter_on_cpu() before triton is imported, or call {op}_reference."
        )
    return nullcontext()


def as_rows(x: Tensor) -> Tensor:
    """x with its leading axes flattened into one: [N, last axis]; copied only where strides forbid a view."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1] if x.ndim else 1)


def num_programs(device: torch.device) -> int:
    """Programs that fill the device when each loops over rows."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    return 4


def block_size(n: int) -> int:
    """Elements of n that a program takes: the least power of two that holds them all, at most a tile."""
    return min(next_power_of_2(n), TILE)


def rows_per_program(num_rows: int, block: int) -> int:
    """Rows of `block` elements that a program takes: as many as fill a tile, at least 1, a power of two.

    Compiled, it follows from `block` alone: a batch of another size must not compile the kernel anew. In the
    interpreter, which compiles nothing, it also does not exceed the rows there are.
    """
    rows = max(TILE // block, 1)
    return min(rows, next_power_of_2(num_rows)) if INTERPRETING else rows


def num_warps(block: int) -> int:
    """Warps for a program that holds `block` elements: 16 a thread, at least 1 warp, at most 16."""
    return min(max(block // 512, 1), 16)


def next_power_of_2(n: int) -> int:
    """The least power of two that is at least n, and 1 for 0."""
    return 1 << max(n - 1, 0).bit_length()
