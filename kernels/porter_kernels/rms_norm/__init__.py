"""RMSNorm over the last axis.

    y = (offset + w) * x / sqrt(mean(x**2) + eps)      Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4 (eps is Llama's)

and the same of a sum: a layer adds its output to the residual stream, and the next norm reads the sum.

Axes    N rows (the leading axes of x, flattened), D features, P programs.
Dtypes  x and w in {float32, bfloat16, float16}, alike. The kernels compute in float32 and round once, at the
        store; `math` says where the model's own code rounds, which only the reference imitates.
"""

from porter_kernels.rms_norm.op import RMSNorm, add_rms_norm, rms_norm
from porter_kernels.rms_norm.reference import add_rms_norm_reference, rms_norm_reference

__all__ = ["RMSNorm", "add_rms_norm", "add_rms_norm_reference", "rms_norm", "rms_norm_reference"]
