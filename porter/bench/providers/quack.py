"""quack-kernels 0.6.5, in CuTe DSL. Its layernorm takes float32 weights and has no autograd, so it is not here.

A module of it is imported when a case first needs it: its linear_cross_entropy cannot be imported everywhere.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from torch import Tensor

from porter.bench.cases import Case
from porter.bench.operators import EPS
from porter.bench.providers.table import Builder, Function, only


def ops() -> Mapping[str, Builder]:
    """Its functions, with their defaults."""
    import_module("quack")
    return {
        "rms_norm": _rms_norm,
        "add_rms_norm": _add_rms_norm,
        "rope": _rope,
        "cross_entropy": _cross_entropy,
        "linear_cross_entropy": _linear_cross_entropy,
    }


def base_ops() -> Mapping[str, Builder]:
    """Its linear cross-entropy from cuBLAS products and its cross-entropy kernel; the default raises at width 4096."""
    import_module("quack")
    return {"linear_cross_entropy": _base_linear_cross_entropy}


def _rms_norm(case: Case) -> Function:
    peer, offset = import_module("quack.rmsnorm"), float(case.option("offset", 0))
    return lambda x, w: peer.rmsnorm(x, w, eps=EPS, weight_offset=offset)


def _add_rms_norm(case: Case) -> Function:
    peer, offset = import_module("quack.rmsnorm"), float(case.option("offset", 0))
    return lambda x, residual, w: peer.rmsnorm(x, w, residual=residual, eps=EPS, prenorm=True, weight_offset=offset)


def _rope(case: Case) -> Function:
    peer = import_module("quack.rotary")

    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Any:
        return peer.apply_rotary_emb(x.transpose(1, 2), cos[0], sin[0]).transpose(1, 2)

    return lambda q, k, cos, sin, *full: (rotate(q, cos, sin), rotate(k, cos, sin))


def _cross_entropy(case: Case) -> Function:
    only(case, "softcap", ())
    function: Function = import_module("quack.cross_entropy").cross_entropy
    return function


def _linear_cross_entropy(case: Case) -> Function:
    function: Function = import_module("quack.linear_cross_entropy").chunked_linear_cross_entropy
    return function


def _base_linear_cross_entropy(case: Case) -> Function:
    peer = import_module("quack.linear_cross_entropy")
    return lambda hidden, weight, target: peer.chunked_linear_cross_entropy(
        hidden, weight, target, use_scaled_exp=False
    )
