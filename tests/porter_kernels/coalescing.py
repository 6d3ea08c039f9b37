"""Compiles element-wise kernels as the usual launches do, and counts what their PTX reads, writes and computes.

Usual: pointers and lengths are multiples of 16, features lie next to each other. Run in a process that does not
interpret, like compile_kernels.py; test_coalescing.py reads the lines of JSON.
"""

import json
import re
from collections.abc import Collection

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from porter_kernels import rope, softcap
from porter_kernels.glu import kernels as glu

GLU = {
    "ACT": "gelu", "ALPHA": 1.0, "LIMIT": None, "CLAMP_ACT": False, "UP_OFFSET": 0.0, "GATED": True,
    "INTERLEAVED": False, "BLOCK_N": 1, "BLOCK_F": 2048,
}  # fmt: skip
PAIRS = {"ACT": "silu", "INTERLEAVED": True, "up_ptr": None, "LIMIT": 7.0, "UP_OFFSET": 1.0}
ROPE = {
    "INVERSE": False, "BLOCK_T": 4, "BLOCK_H": 8, "BLOCK_S": 4, "BLOCK_G": 8, "BLOCK_R": 64, "BLOCK_REST": 0,
    "INTERLEAVED": False,
}  # fmt: skip
PART = {"BLOCK_R": 32, "BLOCK_REST": 64}
SPREAD = {"q_stride_k": "i32"}  # features of q do not lie next to each other
KERNELS: dict[str, tuple[JITFunction, dict[str, object]]] = {
    "glu backward": (glu._backward_kernel, GLU | {"N": 1}),
    "glu of halves": (glu._forward_kernel, GLU),
    "glu of pairs": (glu._forward_kernel, GLU | PAIRS),
    "glu of pairs backward": (glu._backward_kernel, GLU | PAIRS | {"dup_ptr": None}),
    "softcap": (softcap._forward_kernel, {"cap": 30.0, "BLOCK": 2048}),
    "rope half": (rope._kernel, ROPE),
    "rope half, part of a head": (rope._kernel, ROPE | PART),
    "rope interleaved, part of a head": (rope._kernel, ROPE | PART | {"INTERLEAVED": True}),
    "rope half, strided": (rope._kernel, ROPE | SPREAD | {"INVERSE": True}),
}


def compile_for_h100(kernel: JITFunction, constants: dict[str, object], divisible: Collection[str]) -> str:
    signature, constexprs, attributes = {}, {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name in constants and constants[name] != "i32":
            signature[name], constexprs[(i,)] = "constexpr", constants[name]
        elif name.endswith("stride_k") and name not in constants:
            signature[name], constexprs[(i,)] = "constexpr", 1
        else:
            signature[name] = "*bf16" if name.endswith("_ptr") else "i32"
            if name in divisible:
                attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attributes)
    return str(triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["ptx"])


def count(ptx: str) -> dict[str, object]:
    vectors = re.findall(r"(?:ld|st)\.global\S*?\.(v\d\.)?b(\d+)", ptx)
    return {
        "access bytes": sorted({int(vector[1:-1] or 1 if vector else 1) * int(bits) // 8 for vector, bits in vectors}),
        "through shared memory": len(re.findall(r"st\.shared", ptx)),
        "fused": len(re.findall(r"fma\.rn\.f32", ptx)),
        "multiplied": len(re.findall(r"mul(?:\.rn)?\.f32", ptx)),
        "added": len(re.findall(r"(?:add|sub)(?:\.rn)?\.f32", ptx)),
    }


if __name__ == "__main__":
    for label, (kernel, constants) in KERNELS.items():
        divisible = [name for name in kernel.arg_names if name not in constants]
        print(json.dumps({"kernel": label} | count(compile_for_h100(kernel, constants, divisible))))
