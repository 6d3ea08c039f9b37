"""What every launch needs: Triton if it is there, the check that it can run on a tensor, tile and grid sizes.

The one place that imports triton. Without it references work, and a launch says what to install.
"""

import json
import math
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = [
    "Config", "as_rows", "block_size", "ceil_div", "check_launch", "next_power_of_2", "num_programs",
    "num_rows", "num_warps", "packed_like", "packed_rows", "rows_per_program", "tl", "triton", "tuned",
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
if INTERPRETING:
    from porter_kernels.interpreter_bf16 import mend_bfloat16

    mend_bfloat16()

# Elements of the tile a program holds. On a GPU they live in registers. In the interpreter a program costs 1 to 2 ms
# however little it holds: rms_norm takes 4700 ns an element in tiles of 2**10, 150 of 2**16, 60 of 2**18.
TILE = 2**16 if INTERPRETING else 2048
TUNING = Path(__file__).with_name("tuning.json")


class Config(NamedTuple):
    """How a kernel that works on rows is launched."""

    rows: int  # of a program's tile
    warps: int
    programs: int = 1  # a multiprocessor, where each program loops over tiles
    stages: int = 1  # tiles in flight, where it loops
    reload: int = 0  # 1 to read a tile again rather than keep it, where a tile is used twice


def check_launch(op: str, x: Tensor) -> None:
    """Raises: ValueError: no kernel can be launched on x, by what the process is or by what its device can do."""
    if not HAS_TRITON:
        raise ValueError(
            f"{op}: triton is not installed, expected it to launch the kernel. "
            f"Install it with pip install triton (Linux only), or call {op}_reference."
        )
    if x.is_cuda:
        if x.dtype is torch.bfloat16:
            _check_bfloat16(op, x.get_device())
    elif not INTERPRETING:
        raise ValueError(
            f"{op}: x is on {x.device}, expected a CUDA device, since Triton compiles in this process. Move x with "
            f"x.cuda(), call porter_kernels.use_interpreter_on_cpu() before triton is imported, or call {op}_reference."
        )


@cache
def _check_bfloat16(op: str, device: int) -> None:
    if torch.cuda.get_device_capability(device) < (8, 0):  # Turing (T4), Volta
        raise ValueError(
            f"{op}: x is torch.bfloat16 on a {torch.cuda.get_device_name(device)}, expected float16 or float32 there: "
            f"it has no bfloat16. Load the model in float16, or call {op}_reference."
        )


def tuned(op: str, num_rows: int, width: int, device: torch.device) -> Config:
    """The launch of `op` for rows of `width` elements (a power of two): measured where this GPU was, else a rule.

    Measured ones are data, in tuning.json: {op: {compute capability: {width: Config}}}; between two measured widths
    the wider one's holds for both. Neither asks for num_rows: a batch of another size must not compile a kernel anew.
    """
    if INTERPRETING:
        rows = rows_per_program(num_rows, width)
        return Config(rows, num_warps(rows * width), programs=4)
    return _tuned(op, width, device)


@cache
def _tuned(op: str, width: int, device: torch.device) -> Config:
    if device.type != "cuda":
        return Config(1, 4)  # check_launch says why this will not do
    measured = _measured().get(op, {}).get("{}.{}".format(*torch.cuda.get_device_capability(device)), {})
    for measured_width, config in sorted(measured.items(), key=lambda item: int(item[0])):
        if width <= int(measured_width):
            rows = max(config["rows"] * int(measured_width) // width, 1)  # a tile of as many elements
            return Config(**config | {"rows": rows})
    rows = rows_per_program(1, width)
    return Config(rows, num_warps(rows * width), programs=4)


@cache
def _measured() -> dict[str, dict[str, dict[str, dict[str, int]]]]:
    measured: dict[str, dict[str, dict[str, dict[str, int]]]] = json.loads(TUNING.read_text(encoding="utf-8"))
    return measured


def as_rows(x: Tensor) -> Tensor:
    """x with its leading axes flattened into one: [N, last axis]; copied only where strides forbid a view."""
    if x.ndim == 2:  # a view would be a node of autograd's, too
        return x
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1] if x.ndim else 1)


def packed_rows(x: Tensor) -> Tensor:
    """as_rows, with nothing between the rows nor within them."""
    return x if x.ndim == 2 and x.is_contiguous() else as_rows(x).contiguous()


def packed_like(x: Tensor) -> Tensor:
    """Fresh memory of x's shape, nothing between elements; x.new_empty(x.shape) takes the host five times as long."""
    return torch.empty_like(x) if x.is_contiguous() else torch.empty_like(x, memory_format=torch.contiguous_format)


def num_rows(x: Tensor) -> int:
    """Rows of as_rows(x)."""
    return math.prod(x.shape[:-1])


@cache
def num_programs(device: torch.device) -> int:
    """Programs that fill the device when each loops over rows."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    return 4


def block_size(n: int, tile: int | None = None) -> int:
    """Elements of n that a program takes: the least power of two that holds them all, at most a tile.

    `tile` is the op's own on a GPU; the interpreter keeps TILE.
    """
    return min(next_power_of_2(n), TILE if INTERPRETING or tile is None else tile)


def rows_per_program(num_rows: int, block: int, tile: int | None = None) -> int:
    """Rows of `block` elements that a program takes: as many as fill a tile, at least 1, a power of two.

    Compiled, it follows from `block` alone: a batch of another size must not compile the kernel anew. In the
    interpreter, which compiles nothing, it also does not exceed the rows there are.
    """
    rows = max((TILE if INTERPRETING or tile is None else tile) // block, 1)
    return min(rows, next_power_of_2(num_rows)) if INTERPRETING else rows


def num_warps(block: int) -> int:
    """Warps for a program that holds `block` elements: 16 a thread, at least 1 warp, at most 16."""
    return min(max(block // 512, 1), 16)


def ceil_div(n: int, block: int) -> int:
    """Blocks that hold n elements; triton.cdiv, which takes the host 5 us, is for kernels."""
    return -(-n // block)


def next_power_of_2(n: int) -> int:
    """The least power of two that is at least n, and 1 for 0."""
    return 1 << max(n - 1, 0).bit_length()
