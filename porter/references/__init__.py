"""References: HuggingFace's own models, run a unit at a time.

Two switches must be set before transformers is imported, so they stand here: no kernels of the hub, which would swap
norms, RoPE and activations for others; and Triton's interpreter where there is no GPU, or fused ops could not run.
"""

import os

from porter_kernels import use_interpreter_on_cpu

os.environ.setdefault("USE_HUB_KERNELS", "0")
use_interpreter_on_cpu()
