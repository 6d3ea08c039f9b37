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
    _functional()
    return {
        "rms_norm": _rms_norm,
        "add_rms_norm": _add_rms_norm,
        "layer_norm": _layer_norm,
        "rope": _rope,
        "glu": _glu,
        "activation": _activation,
        "cross_entropy": _cross_entropy,
        "linear_cross_entropy": _linear_cross_entropy,
    }


def larger_chunks() -> Mapping[str, Builder]:
    """Its linear cross-entropy in chunks eight times its default."""
    _functional()
    return {"linear_cross_entropy": _linear_cross_entropy_in_larger_chunks}


def _flavour(case: Case) -> dict[str, Any]:
    offset = int(case.option("offset", 0))
    return {"offset": float(offset), "casting_mode": "gemma" if offset else "llama"}


def _rms_norm(case: Case) -> Function:
    liger, flavour = _functional(), _flavour(case)
    return lambda x, w: liger.liger_rms_norm(x, w, EPS, **flavour)


def _add_rms_norm(case: Case) -> Function:
    liger, flavour = _functional(), _flavour(case)
    return lambda x, residual, w: liger.liger_fused_add_rms_norm(x, residual, w, EPS, **flavour)


def _layer_norm(case: Case) -> Function:
    liger = _functional()
    return lambda x, w, b: liger.liger_layer_norm(x, w, b, EPS)


def _rope(case: Case) -> Function:
    liger = _functional()
    return lambda q, k, cos, sin, cos_full, sin_full: liger.liger_rope(q, k, cos_full, sin_full)


def _glu(case: Case) -> Function:
    only(case, "act", ("silu", "gelu_tanh"))
    liger = _functional()
    function: Function = liger.liger_swiglu if case.option("act", "silu") == "silu" else liger.liger_geglu
    return function


def _activation(case: Case) -> Function:
    only(case, "act", ("relu2",))
    function: Function = _functional().liger_relu_squared
    return function


def _cross_entropy(case: Case) -> Function:
    liger, cap = _functional(), case.option("softcap", 0.0) or None
    return lambda logits, target: liger.liger_cross_entropy(logits, target, softcap=cap)


def _linear_cross_entropy(case: Case) -> Function:
    function: Function = _functional().liger_fused_linear_cross_entropy
    return function


def _linear_cross_entropy_in_larger_chunks(case: Case) -> Function:
    if case.small:
        raise Unsupported("one chunk holds it by default")
    liger = _functional()
    return lambda hidden, weight, target: liger.liger_fused_linear_cross_entropy(
        hidden, weight, target, chunk_mem_const=8
    )
