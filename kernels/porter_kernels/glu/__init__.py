"""Activations, alone or gating a second input that lies beside or within the first.

    glu(gate, up) = act(gate) * (up + up_offset)      Shazeer 2020, arXiv:2002.05202, eq. 6 (where the offset is 0)
    packed_glu(x) = glu(gate, up)                     gate and up being the halves of x, or its even and odd columns
    activation(x) = act(x)
    glu_linear(gate, up, weight) = glu(gate, up) @ weight.T, which keeps gate and up alone; packed_glu_linear(x, weight)

With a limit, gate stays below it and up within it on both sides (gpt-oss, arXiv:2508.10925; DeepSeek V4).

Axes    N rows, F features.
Dtypes  gate and up in {float32, bfloat16, float16}, alike. The kernels compute in float32 and round once, at the
        store; the references round where the models' own code does. Backward recomputes act, so only inputs are kept.
"""

from porter_kernels.glu.linear import glu_linear, packed_glu_linear
from porter_kernels.glu.op import activation, glu, packed_glu
from porter_kernels.glu.reference import (
    ACTIVATIONS,
    Clamp,
    Layout,
    activation_reference,
    glu_reference,
    packed_glu_reference,
    split_packed,
)

__all__ = [
    "ACTIVATIONS", "Clamp", "Layout", "activation", "activation_reference", "glu", "glu_linear", "glu_reference",
    "packed_glu", "packed_glu_linear", "packed_glu_reference", "split_packed",
]  # fmt: skip
