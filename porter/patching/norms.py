"""HF's norms on porter's kernels: any of its RMSNorm and LayerNorm classes, with what the spec says of it."""

from functools import reduce
from typing import Literal

import torch
from torch import Tensor, nn

from porter.patching.swap import Plain, fuse
from porter.specs.schema import Norm
from porter_kernels.layer_norm import layer_norm
from porter_kernels.rms_norm import rms_norm


class FusedRMSNorm(Plain):
    """RMSNorm over the last axis; a weight wider than x (float32 under autocast) widens x, as HF's product does."""

    weight: Tensor | None
    fused_eps: float
    fused_offset: Literal[0, 1]

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to the same."""
        x, (w,) = _alike(x, getattr(self, "weight", None))
        return rms_norm(x, w, self.fused_eps, offset=self.fused_offset)


class FusedLayerNorm(Plain):
    """LayerNorm over the last axis, whole or each head with a row of the weight."""

    weight: Tensor | None
    bias: Tensor | None
    fused_eps: float
    fused_offset: Literal[0, 1]

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] or [..., H, D] to the same."""
        x, (w, b) = _alike(x, getattr(self, "weight", None), getattr(self, "bias", None))
        return layer_norm(x, w, b, self.fused_eps, offset=self.fused_offset)


def fuse_norm(module: nn.Module, spec: Norm) -> None:
    """Puts the kernel that `spec` describes in a module's place."""
    fuse(module, FusedRMSNorm if spec.kind == "rms" else FusedLayerNorm, fused_eps=spec.eps, fused_offset=spec.offset)


def why_not_norm(module: nn.Module, spec: Norm, shape: tuple[int, ...]) -> str | None:
    """Why a module cannot have a kernel in its place; None: it can."""
    weight = getattr(module, "weight", None)
    if any(True for _ in module.children()):
        return "each of its heads has a module of its own"
    if (weight is not None) != spec.affine or (weight is not None and tuple(weight.shape) != shape):
        has = "no weight" if weight is None else f"a weight of {list(weight.shape)}"
        return f"{type(module).__name__} has {has}, the spec says {list(shape) if spec.affine else 'none'}"
    return None


def _alike(x: Tensor, *parameters: Tensor | None) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """x and the parameters in the widest of their dtypes."""
    dtypes = [x.dtype, *(each.dtype for each in parameters if each is not None)]
    if len(set(dtypes)) == 1:
        return x, parameters
    wide = reduce(torch.promote_types, dtypes)
    return x.to(wide), tuple(None if each is None else each.to(wide) for each in parameters)
