"""Every registered op keeps torch.library's contract: schema, fake tensors, autograd, tracing with dynamic shapes."""

from functools import partial

import pytest
import torch
from torch import Tensor

from porter_kernels import rope, softcap
from porter_kernels.cross_entropy import op as cross_entropy_op
from porter_kernels.glu import op as glu_op
from porter_kernels.layer_norm import op as layer_norm
from porter_kernels.rms_norm import op as rms_norm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return x.to(DEVICE, dtype).requires_grad_()


half = partial(leaf, dtype=torch.bfloat16)


def heads_last(*shape: int) -> Tensor:
    """[B, H, T, K] over memory that lies as [B, T, H, K]."""
    return leaf(*shape).detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()


TARGET, WEIGHT = torch.tensor([1, -100, 5, 0], device=DEVICE), torch.tensor([0.5, 1, 2, 3, 4, 5], device=DEVICE)
CALLS = {
    "rms_norm": lambda: (rms_norm._forward, (leaf(4, 6), leaf(6), 1e-6, 1)),
    "rms_norm without weight": lambda: (rms_norm._forward, (leaf(4, 6), None, 1e-6, 0)),
    "add_rms_norm": lambda: (rms_norm._add_forward, (leaf(4, 6), leaf(4, 6), leaf(6), 1e-6, 1)),
    "rms_norm in bfloat16": lambda: (rms_norm._forward, (half(4, 6), half(6), 1e-6, 0)),
    "add_rms_norm in bfloat16": lambda: (rms_norm._add_forward, (half(4, 6), half(4, 6), half(6), 1e-6, 0)),
    "layer_norm in bfloat16": lambda: (layer_norm._forward, (half(4, 6), half(6), half(6), 1e-6, 0, 1)),
    "rms_norm of several axes": lambda: (rms_norm._forward, (leaf(2, 3, 6), leaf(6), 1e-6, 0)),
    "layer_norm of several axes": lambda: (layer_norm._forward, (leaf(2, 3, 6), leaf(6), leaf(6), 1e-6, 0, 1)),
    "layer_norm": lambda: (layer_norm._forward, (leaf(4, 6), leaf(2, 6), leaf(2, 6), 1e-6, 0, 2)),
    "layer_norm without bias": lambda: (layer_norm._forward, (leaf(4, 6), leaf(6), None, 1e-6, 0, 1)),
    "rope": lambda: (
        rope._rotate,
        (heads_last(1, 2, 3, 8), leaf(1, 1, 3, 8), *leaf(2, 1, 3, 4).detach().unbind(), False, False),
    ),
    "glu": lambda: (glu_op._forward, (leaf(4, 6), leaf(4, 6), "silu", 1.702, 7.0, False, 1.0)),
    "activation": lambda: (glu_op._forward, (leaf(4, 6), None, "gelu", None, None, False, 0.0)),
    "packed_glu": lambda: (glu_op._packed_forward, (leaf(4, 6), "interleaved", "silu", None, None, False, 0.0)),
    "cross_entropy": lambda: (
        cross_entropy_op._loss,
        (leaf(4, 6), TARGET, None, None, None, "mean", True, -100, 0.0, 0.0, None, 1.0),
    ),
    "cross_entropy of rows": lambda: (
        cross_entropy_op._loss,
        (leaf(4, 6), TARGET, WEIGHT[:6], WEIGHT[:4], None, "none", False, -100, 0.1, 0.01, 3.0, 0.5),
    ),
    "cross_entropy a number of items": lambda: (
        cross_entropy_op._loss,
        (leaf(4, 6), TARGET, None, None, WEIGHT[0], "sum", False, -100, 0.0, 0.0, None, 1.0),
    ),
    "softcap": lambda: (softcap._forward, (leaf(4, 6), 2.0)),
}


@pytest.mark.parametrize("call", CALLS)
def test_op_keeps_its_contract(call: str) -> None:
    op, arguments = CALLS[call]()
    torch.library.opcheck(op.op, arguments)


X, W, STATS = (leaf(*shape).detach() for shape in ((2, 2, 6), (6,), (2, 4)))
BACKWARDS = {
    "rms_norm": lambda: (rms_norm._backward, (X, None, X, W, STATS[0], 1, True)),
    "rms_norm of a frozen weight": lambda: (rms_norm._backward, (X, X, X, W, STATS[0], 0, False)),
    "layer_norm": lambda: (layer_norm._backward, (X, X, X[0], STATS, 0, 2, True, True)),
    "layer_norm of a frozen weight": lambda: (layer_norm._backward, (X, X, W, STATS, 0, 1, False, True)),
    "layer_norm of frozen weights": lambda: (layer_norm._backward, (X, X, W, STATS, 0, 1, False, False)),
    "glu": lambda: (glu_op._backward, (X[0], X[0], X[1], "silu", None, None, False, 0.0)),
    "activation": lambda: (glu_op._backward, (X[0], X[0], None, "gelu", None, None, False, 0.0)),
    "packed_glu": lambda: (glu_op._packed_backward, (X[0, :, :3], X[0], "halves", "silu", None, None, False, 0.0)),
    "softcap": lambda: (softcap._backward, (X, X, 2.0)),
}


@pytest.mark.parametrize("call", BACKWARDS)
def test_backward_keeps_its_contract(call: str) -> None:
    op, arguments = BACKWARDS[call]()
    torch.library.opcheck(op.op, arguments, test_utils=("test_schema", "test_faketensor"))
