"""liger-kernel 0.8.5, its Triton kernels: what `pip install liger-kernel` runs."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from porter.bench.cases import Case
from porter.bench.operators import EPS
from porter.bench.providers.table import Builder, Function, Unsupported, only


def _functional() -> Any:
    return import_module("liger_kernel.transformers.functional")


def ops() -> Mapping[str, Builder]:
    """Its functional face, with its defaults."""
    liger = _functional()

    def norm(case: Case) -> dict[str, Any]:
        offset = int(case.option("offset", 0))
        return {"offset": float(offset), "casting_mode": "gemma" if offset else "llama"}

    def rms_norm(case: Case) -> Function:
        options = norm(case)
        return lambda x, w: liger.liger_rms_norm(x, w, EPS, **options)

    def add_rms_norm(case: Case) -> Function:
        options = norm(case)
        return lambda x, residual, w: liger.liger_fused_add_rms_norm(x, residual, w, EPS, **options)

    def layer_norm(case: Case) -> Function:
        return lambda x, w, b: liger.liger_layer_norm(x, w, b, EPS)

    def rope(case: Case) -> Function:
        return lambda q, k, cos, sin, cos_full, sin_full: liger.liger_rope(q, k, cos_full, sin_full)

    def glu(case: Case) -> Function:
        only(case, "act", ("silu", "gelu_tanh"))
        function: Function = liger.liger_swiglu if case.option("act", "silu") == "silu" else liger.liger_geglu
        return function

    def activation(case: Case) -> Function:
        only(case, "act", ("relu2",))
        function: Function = liger.liger_relu_squared
        return function

    def cross_entropy(case: Case) -> Function:
        cap = case.option("softcap", 0.0) or None
        return lambda logits, target: liger.liger_cross_entropy(logits, target, softcap=cap)

    def linear_cross_entropy(case: Case) -> Function:
        function: Function = liger.liger_fused_linear_cross_entropy
        return function

    return {
        "rms_norm": rms_norm, "add_rms_norm": add_rms_norm, "layer_norm": layer_norm, "rope": rope, "glu": glu,
        "activation": activation, "cross_entropy": cross_entropy, "linear_cross_entropy": linear_cross_entropy,
    }  # fmt: skip


def larger_chunks() -> Mapping[str, Builder]:
    """Its linear cross-entropy in chunks eight times its default."""
    liger = _functional()

    def linear_cross_entropy(case: Case) -> Function:
        if case.small:
            raise Unsupported("one chunk holds it by default")
        return lambda hidden, weight, target: liger.liger_fused_linear_cross_entropy(
            hidden, weight, target, chunk_mem_const=8
        )

    return {"linear_cross_entropy": linear_cross_entropy}
