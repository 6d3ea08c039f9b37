"""Compiles kernels to PTX without a GPU. Run in a process that does not interpret: triton decides when imported.

Prints one line of JSON a kernel, variant and architecture; test_compile.py reads them.
"""

import importlib
import json
import math
import pkgutil
import re

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

import porter_kernels
from porter_kernels.launch import num_warps

ARCHITECTURES = (80, 90)  # a kernel's first variant for all of them, the others for the last
NORM = {
    "eps": 1e-6,
    "OFFSET": 1,
    "HAS_W": True,
    "HAS_RESIDUAL": False,
    "PER_HEAD": False,
    "BLOCK_N": 2,
    "BLOCK_D": 1024,
}
WIDE = {"BLOCK_N": 1, "BLOCK_D": 8192}
NARROW = {"BLOCK_N": 2048, "BLOCK_D": 1}
PLAIN = NORM | {"OFFSET": 0, "HAS_W": False, "BLOCK_N": 16, "BLOCK_D": 128, "w_ptr": None, "b_ptr": None}
NEED = {"HAS_DSUM": False, "NEED_DW": True, "NEED_DB": True, "STAGES": 2, "RELOAD": 0, "ROWS": 64, "COLUMNS": 0}
NORM_BACKWARD = {"OFFSET": 1, "HAS_W": True, "BLOCK_N": 2, "BLOCK_D": 1024} | NEED
ROPE = {
    "INVERSE": False, "BLOCK_T": 4, "BLOCK_H": 8, "BLOCK_S": 16, "BLOCK_G": 2, "BLOCK_R": 64, "BLOCK_REST": 0,
}  # fmt: skip
GLU = {
    "ACT": "silu", "ALPHA": 1.0, "LIMIT": None, "CLAMP_ACT": False, "UP_OFFSET": 0.0, "GATED": True,
    "INTERLEAVED": False, "BLOCK_N": 1, "BLOCK_F": 512,
}  # fmt: skip
GPT_OSS = {"INTERLEAVED": True, "up_ptr": None, "ALPHA": 1.702, "LIMIT": 7.0, "UP_OFFSET": 1.0}
LOSS = {
    "IGNORE": -100, "SMOOTHING": 0.0, "Z_LOSS": 0.0, "CAP": 0.0, "SCALE": 1.0, "HAS_WEIGHT": False,
    "HAS_FACTOR": False, "HAS_DENOMINATOR": True, "HAS_UPSTREAM": True, "HAS_LOG_TOTAL": True, "KEEP_AT_ONE": True,
    "COUNTED": 0, "IS_MEAN": False, "ENTROPY": False, "ARGMAX": False, "BLOCK_N": 1, "BLOCK_V": 8192, "BLOCK_C": 16,
    "STAGES": 1, "weight_ptr": None, "weight_sum_ptr": None, "factor_ptr": None, "mean_ptr": None, "arrived_ptr": None,
}  # fmt: skip
LOSS_OPTIONS = {
    name: value for name, value in LOSS.items() if value is not None
} | {
    "SMOOTHING": 0.1, "Z_LOSS": 1e-4, "CAP": 30.0, "SCALE": 0.5, "HAS_WEIGHT": True, "HAS_FACTOR": True,
    "HAS_LOG_TOTAL": False, "KEEP_AT_ONE": False, "ENTROPY": True, "ARGMAX": True, "BLOCK_V": 2048, "BLOCK_C": 128,
}  # fmt: skip
COUNTED = {name: value for name, value in LOSS.items() if name not in ("mean_ptr", "arrived_ptr")} | {
    "HAS_DENOMINATOR": False, "COUNTED": 1024,
}  # fmt: skip
LOSSES = [
    LOSS, LOSS | {"SMOOTHING": 0.1}, COUNTED, LOSS_OPTIONS,
    LOSS_OPTIONS | {"BLOCK_N": 32, "BLOCK_V": 64, "BLOCK_C": 1},
]  # fmt: skip
VARIANTS: dict[str, list[dict[str, object]]] = {
    "rms_norm.kernels._forward_kernel": [NORM, NORM | WIDE, NORM | {"HAS_RESIDUAL": True}, NORM | NARROW, PLAIN],
    "rms_norm.kernels._backward_kernel": [
        NORM_BACKWARD,
        NORM_BACKWARD | WIDE | {"STAGES": 1, "RELOAD": 1},
        NORM_BACKWARD | {"HAS_DSUM": True},
        PLAIN | NEED | {"NEED_DW": False},
        NORM_BACKWARD | {"NEED_DW": False, "COLUMNS": 32},
    ],
    "layer_norm.kernels._forward_kernel": [
        NORM | {"HAS_B": True},
        NORM | WIDE | {"HAS_B": True},
        NORM | {"HAS_B": True, "PER_HEAD": True, "BLOCK_N": 16, "BLOCK_D": 128},
        PLAIN | {"HAS_B": False},
    ],
    "layer_norm.kernels._backward_kernel": [
        NORM_BACKWARD,
        NORM_BACKWARD | WIDE | {"STAGES": 1, "RELOAD": 1},
        PLAIN | NEED | {"NEED_DW": False, "NEED_DB": False, "sums_ptr": None},
        *(
            NORM_BACKWARD | {"NEED_DW": need_dw, "NEED_DB": need_db, "COLUMNS": 32}
            for need_dw, need_db in ((True, True), (True, False), (False, True))
        ),
    ],
    "rope._kernel": [
        ROPE | {"INTERLEAVED": False},
        ROPE | {"INTERLEAVED": False, "BLOCK_T": 32, "BLOCK_H": 1, "INVERSE": True},
        ROPE | {"INTERLEAVED": True, "INVERSE": True, "BLOCK_R": 8, "BLOCK_REST": 32},
    ],
    "glu.kernels._forward_kernel": [
        *(GLU | {"ACT": act} for act in ("silu", "gelu", "gelu_tanh", "relu", "relu2")),
        GLU | {"BLOCK_N": 32, "BLOCK_F": 64},
        GLU | GPT_OSS,
        GLU | {"LIMIT": 16.0, "CLAMP_ACT": True},
    ],
    "glu.kernels._backward_kernel": [
        *(GLU | {"ACT": act} for act in ("silu", "gelu", "gelu_tanh")),
        GLU | {"ACT": "relu2", "GATED": False, "up_ptr": None, "dup_ptr": None},
        GLU | {"BLOCK_N": 32, "BLOCK_F": 64},
        GLU | GPT_OSS | {"dup_ptr": None},
        GLU | {"LIMIT": 16.0, "CLAMP_ACT": True},
    ],
    "cross_entropy.kernels._partials_kernel": LOSSES,
    "cross_entropy.kernels._results_kernel": LOSSES,
    "cross_entropy.kernels._gradient_kernel": LOSSES,
    "cross_entropy.kernels._loss_and_gradient_kernel": LOSSES,
    "cross_entropy.kernels._denominator_kernel": [LOSS | {"BLOCK": 8192}, LOSS_OPTIONS | {"BLOCK": 8192}],
    "cross_entropy.kernels._total_kernel": [
        LOSS | {"BLOCK": 8192},
        LOSS_OPTIONS | {"BLOCK": 8192, "HAS_DENOMINATOR": False, "IS_MEAN": True},
    ],
    "linear_cross_entropy.scaling._scale_kernel": [
        {"HAS_HIDDEN": True, "HAS_WEIGHT": True, "HAS_BIAS": True, "BLOCK": 4096}
    ],
    "cross_entropy.kernels._scale_kernel": [LOSS],
    "column_sums._sum_kernel": [{"BLOCK_P": 64, "BLOCK_D": 32}],
    "softcap._forward_kernel": [{"cap": 30.0, "BLOCK": 2048}],
    "softcap._backward_kernel": [{"cap": 30.0, "BLOCK": 2048}],
}
FLOAT32_POINTERS = (
    "mean_ptr", "stats_ptr", "rstd_ptr", "dw_ptr", "partial_ptr", "weight_ptr", "weight_sum_ptr", "factor_ptr",
    "denominator_ptr", "upstream_ptr", "peak_ptr", "log_total_ptr", "partials_ptr", "results_ptr", "loss_ptr",
)  # fmt: skip
OTHER_POINTERS = {"target_ptr": "*i64", "correct_ptr": "*i1", "arrived_ptr": "*i32"}


def find_kernels() -> dict[str, JITFunction]:
    """Every jitted function of porter_kernels that is launched, by module and name."""
    kernels = {}
    for module_info in pkgutil.walk_packages(porter_kernels.__path__, "porter_kernels."):
        module = importlib.import_module(module_info.name)
        for name, value in vars(module).items():
            if isinstance(value, JITFunction) and name.endswith("_kernel") and value.__module__ == module_info.name:
                kernels[f"{module_info.name.removeprefix('porter_kernels.')}.{name}"] = value
    return kernels


def compile_kernel(kernel: JITFunction, constants: dict[str, object], architecture: int) -> dict[str, str]:
    """What each stage of the compiler makes of it; "ttir" and "ptx" among them."""
    signature, constexprs = {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name], constexprs[(i,)] = "constexpr", constants[name]
        elif name.endswith("_ptr"):
            signature[name] = "*fp32" if name in FLOAT32_POINTERS else OTHER_POINTERS.get(name, "*bf16")
        else:
            signature[name] = "i32"
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs)
    tile = math.prod(
        int(str(n)) for name, n in constants.items() if name in ("BLOCK_N", "BLOCK_D", "BLOCK_F", "BLOCK_V", "BLOCK")
    )
    options = {"num_warps": max(num_warps(tile), 4)}
    compiled: dict[str, str] = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options).asm
    return compiled


if __name__ == "__main__":
    for name, kernel in find_kernels().items():
        for constants in VARIANTS.get(name, []):
            for architecture in ARCHITECTURES if constants is VARIANTS[name][0] else ARCHITECTURES[-1:]:
                stages = compile_kernel(kernel, constants, architecture)
                ptx = stages["ptx"]
                print(
                    json.dumps(
                        {
                            "kernel": name,
                            "architecture": architecture,
                            "entry": f".target sm_{architecture}" in ptx and ".entry" in ptx,
                            "float64": ".f64" in ptx,
                            "counters": re.findall(r"scf\.for .*: (i\d+) \{", stages["ttir"]),
                        }
                    )
                )
        if name not in VARIANTS:
            print(json.dumps({"kernel": name, "architecture": None}))
