"""porter's own kernels."""

from collections.abc import Mapping

from porter.bench.cases import Case
from porter.bench.operators import EPS
from porter.bench.providers.table import Builder, Function


def ops() -> Mapping[str, Builder]:
    """Every op, with its defaults."""
    return {
        "rms_norm": _rms_norm,
        "add_rms_norm": _add_rms_norm,
        "layer_norm": _layer_norm,
        "rope": _rope,
        "glu": _glu,
        "activation": _activation,
        "softcap": _softcap,
        "cross_entropy": _cross_entropy,
        "linear_cross_entropy": _linear_cross_entropy,
    }


def lean_ops() -> Mapping[str, Builder]:
    """Linear cross-entropy that accumulates the weight's gradient in the weight's dtype: less memory, coarser."""
    return {"linear_cross_entropy": _lean_linear_cross_entropy}


def _rms_norm(case: Case) -> Function:
    from porter_kernels.rms_norm import rms_norm

    offset = case.option("offset", 0)
    return lambda x, w: rms_norm(x, w, EPS, offset=offset)  # type: ignore[arg-type]


def _add_rms_norm(case: Case) -> Function:
    from porter_kernels.rms_norm import add_rms_norm

    offset = case.option("offset", 0)
    return lambda x, residual, w: add_rms_norm(x, residual, w, EPS, offset=offset)  # type: ignore[arg-type]


def _layer_norm(case: Case) -> Function:
    from porter_kernels.layer_norm import layer_norm

    return lambda x, w, b: layer_norm(x, w, b, EPS)


def _rope(case: Case) -> Function:
    from porter_kernels.rope import rope

    return lambda q, k, cos, sin, *full: rope(q, k, cos, sin, style="half")


def _glu(case: Case) -> Function:
    from porter_kernels.glu import glu

    act = str(case.option("act", "silu"))
    return lambda gate, up: glu(gate, up, act=act)


def _activation(case: Case) -> Function:
    from porter_kernels.glu import activation

    act = str(case.option("act", "relu2"))
    return lambda x: activation(x, act=act)


def _softcap(case: Case) -> Function:
    from porter_kernels.softcap import softcap

    cap = float(case.option("cap", 30.0))
    return lambda x: softcap(x, cap)


def _cross_entropy(case: Case) -> Function:
    from porter_kernels.cross_entropy import cross_entropy

    cap = float(case.option("softcap", 0.0)) or None
    return lambda logits, target: cross_entropy(logits, target, softcap=cap)


def _linear_cross_entropy(case: Case) -> Function:
    from porter_kernels.linear_cross_entropy import linear_cross_entropy

    return lambda hidden, weight, target: linear_cross_entropy(hidden, weight, target)


def _lean_linear_cross_entropy(case: Case) -> Function:
    from porter_kernels.linear_cross_entropy import linear_cross_entropy

    return lambda hidden, weight, target: linear_cross_entropy(hidden, weight, target, accumulate="weight")
