"""Makes the interpreter of Triton 3.9 right in bfloat16.

It keeps a bfloat16 as the uint16 of its bits. As shipped, casting from float32 truncates, and arithmetic works on
those integers. Mended, casts round to nearest even, and arithmetic widens to float32 and rounds its result, like a
GPU. What porter's kernels do not do stays wrong: reductions of bfloat16 (tl.sum; they reduce in float32), products of
matrices (tl.dot) and casts with a rounding mode. Drop this file once a test in
tests/porter_kernels/test_interpreter_bf16.py says that Triton has mended its own.
"""

from collections.abc import Callable
from typing import Any

import triton.language as tl  # type: ignore[import-untyped]
from triton.runtime import interpreter  # type: ignore[import-untyped]

np = interpreter.np  # it keeps tensors in numpy's arrays
Builder, Handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
IN_FLOAT32 = ("unary_op", "ternary_op", "create_fma", "create_rsqrt")
SHIPPED = {name: getattr(Builder, name) for name in ("cast_impl", "binary_op", *IN_FLOAT32)}


def widen(bits: Any) -> Any:
    """float32 values of bfloat16 bits."""
    return (np.ascontiguousarray(bits).astype(np.uint32) << 16).view(np.float32)


def round_to_bfloat16(values: Any) -> Any:
    """Bits of the bfloat16 nearest to each float32, ties to even."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    quiet_nan = (bits >> 16) | 0x40  # rounding could carry a NaN into infinity
    return np.where(np.isnan(values), quiet_nan, rounded >> 16).astype(np.uint16)


def mend_bfloat16() -> None:
    """Replaces the wrong methods of the interpreter; calling it again changes nothing."""
    Builder.cast_impl = _cast
    Builder.binary_op = _binary
    for name in IN_FLOAT32:
        setattr(Builder, name, _in_float32(SHIPPED[name]))


def _is_bfloat16(x: Any) -> bool:
    return isinstance(x, Handle) and x.dtype.scalar == tl.bfloat16


def _widened(x: Any) -> Any:
    return Handle(widen(x.data), tl.float32) if _is_bfloat16(x) else x


def _in_float32(method: Callable[..., Any]) -> Callable[..., Any]:
    def mended(self: Any, *operands: Any) -> Any:
        result = method(self, *(_widened(x) for x in operands))
        if any(_is_bfloat16(x) for x in operands):
            return Handle(round_to_bfloat16(result.data), tl.bfloat16)
        return result

    return mended


def _cast(self: Any, src: Any, dst_type: Any) -> Any:
    if src.dtype.scalar == tl.bfloat16:
        return _cast(self, _widened(src), dst_type)
    if dst_type.scalar == tl.bfloat16:
        return Handle(round_to_bfloat16(src.data), tl.bfloat16)
    return SHIPPED["cast_impl"](self, src, dst_type)


def _binary(self: Any, a: Any, b: Any, op: Callable[..., Any]) -> Any:
    if not _is_bfloat16(a):
        return SHIPPED["binary_op"](self, a, b, op)
    result = op(widen(a.data), widen(b.data))
    if result.dtype == np.bool_:  # a comparison
        return Handle(result, a.dtype.scalar)
    return Handle(round_to_bfloat16(result), tl.bfloat16)
