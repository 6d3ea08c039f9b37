"""Plain torch as HuggingFace has it, the same under torch.compile, and torch's own fused ops."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from porter.bench.cases import Case
from porter.bench.operators import EPS, OPERATORS
from porter.bench.providers.table import Builder, Function, Unsupported, only


def eager() -> Mapping[str, Builder]:
    """The references, which have the bits of HuggingFace's own code."""
    return {name: operator.function for name, operator in OPERATORS.items()}


def compiled() -> Mapping[str, Builder]:
    """torch.compile of eager, one graph a case with its shapes fixed, in the default mode."""

    def builder(case: Case) -> Function:
        torch._dynamo.reset()  # else the ninth case of an op would run uncompiled: dynamo counts graphs by code
        return torch.compile(OPERATORS[case.op].function(case), fullgraph=True, dynamic=False)

    return dict.fromkeys(OPERATORS, builder)


def fused() -> Mapping[str, Builder]:
    """What torch itself has as one op."""
    return {
        "rms_norm": _rms_norm,
        "add_rms_norm": _add_rms_norm,
        "cross_entropy": _cross_entropy,
        "linear_cross_entropy": _linear_cross_entropy,
    }


def _rms_norm(case: Case) -> Function:
    offset = int(case.option("offset", 0))
    return lambda x, w: F.rms_norm(x, x.shape[-1:], w + offset if offset else w, EPS)


def _add_rms_norm(case: Case) -> Function:
    norm = _rms_norm(case)

    def add_rms_norm(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        residual = residual + x
        return norm(residual, w), residual

    return add_rms_norm


def _cross_entropy(case: Case) -> Function:
    only(case, "softcap", ())
    return F.cross_entropy  # in the logits' own dtype, where eager widens them first


def _linear_cross_entropy(case: Case) -> Function:
    functional: Any = F
    if not hasattr(functional, "linear_cross_entropy"):
        raise Unsupported(f"torch {torch.__version__} has no linear_cross_entropy; 2.13 has")
    options = torch.nn.LinearCrossEntropyOptions()  # its automatic chunks; without, it is eager
    return lambda hidden, weight, target: functional.linear_cross_entropy(hidden, weight, target, options=options)
