"""LayerNorm over the last axis.

    y = (offset + w) * (x - mean(x)) / sqrt(var(x) + eps) + b      Ba et al. 2016, arXiv:1607.06450, eq. 4

Axes    N rows (the leading axes of x, flattened), D features, H weight rows (1, or one a head), P programs.
Dtypes  x, w and b in {float32, bfloat16, float16}, alike. The kernels compute in float32 and round once, at the
        store; `math` says where the model's own code rounds, which only the reference imitates.
"""

from porter_kernels.layer_norm.op import LayerNorm, layer_norm
from porter_kernels.layer_norm.reference import layer_norm_reference

__all__ = ["LayerNorm", "layer_norm", "layer_norm_reference"]
