"""quack-kernels 0.6.5, in CuTe DSL. Its layernorm takes float32 weights and has no autograd, so it is not here."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from torch import Tensor

from porter.bench.cases import Case
from porter.bench.operators import EPS
from porter.bench.providers.table import Builder, Function, only


def ops() -> Mapping[str, Builder]:
    """Its functions, with their defaults."""
    norms, losses = import_module("quack.rmsnorm"), import_module("quack.cross_entropy")
    rotary, linear = import_module("quack.rotary"), import_module("quack.linear_cross_entropy")

    def rms_norm(case: Case) -> Function:
        offset = float(case.option("offset", 0))
        return lambda x, w: norms.rmsnorm(x, w, eps=EPS, weight_offset=offset)

    def add_rms_norm(case: Case) -> Function:
        offset = float(case.option("offset", 0))
        return lambda x, residual, w: norms.rmsnorm(
            x, w, residual=residual, eps=EPS, prenorm=True, weight_offset=offset
        )

    def rope(case: Case) -> Function:
        def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Any:
            return rotary.apply_rotary_emb(x.transpose(1, 2), cos[0], sin[0]).transpose(1, 2)

        return lambda q, k, cos, sin, *full: (rotate(q, cos, sin), rotate(k, cos, sin))

    def cross_entropy(case: Case) -> Function:
        only(case, "softcap", ())
        function: Function = losses.cross_entropy
        return function

    def linear_cross_entropy(case: Case) -> Function:
        function: Function = linear.chunked_linear_cross_entropy
        return function

    return {
        "rms_norm": rms_norm, "add_rms_norm": add_rms_norm, "rope": rope,
        "cross_entropy": cross_entropy, "linear_cross_entropy": linear_cross_entropy,
    }  # fmt: skip


def base_ops() -> Mapping[str, Builder]:
    """Its linear cross-entropy from cuBLAS products and its cross-entropy kernel; the default raises at width 4096."""
    linear = import_module("quack.linear_cross_entropy")

    def linear_cross_entropy(case: Case) -> Function:
        return lambda hidden, weight, target: linear.chunked_linear_cross_entropy(
            hidden, weight, target, use_scaled_exp=False
        )

    return {"linear_cross_entropy": linear_cross_entropy}
