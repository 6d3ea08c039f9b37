"""What each op takes and gives: inputs as a model would feed it, and the same function for the float64 truth.

Arguments are positional and in one order for every provider; see OPERATORS.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from porter.bench.cases import LOSSES, Case
from porter_kernels.glu import activation_reference, glu_reference
from porter_kernels.layer_norm import layer_norm_reference
from porter_kernels.rms_norm import rms_norm_reference
from porter_kernels.rope import rope_reference
from porter_kernels.rope_tables import rope_frequencies, rope_tables
from porter_kernels.softcap import softcap_reference

EPS = 1e-5
Function = Callable[..., Any]
Normal = Callable[..., Tensor]


@dataclass(frozen=True)
class Inputs:
    """What a provider is called with.

    Attributes:
        tensors: every argument, by name, in order.
        wanted: the arguments whose gradient is asked for.
        d_outputs: the gradient of each output; empty for a loss, whose gradient is a number.
    """

    tensors: dict[str, Tensor]
    wanted: tuple[str, ...]
    d_outputs: tuple[Tensor, ...]

    @property
    def leaves(self) -> list[Tensor]:
        return [self.tensors[name] for name in self.wanted]

    def everything(self) -> dict[str, Tensor]:
        """All tensors that a provider could overwrite."""
        gradients = {f"d_output_{i}": each for i, each in enumerate(self.d_outputs)}
        return {**self.tensors, **gradients}


@dataclass(frozen=True)
class Operator:
    """An op.

    Attributes:
        draw: (case, normal) gives the arguments by name; normal(*shape) is a tensor of the case's dtype.
        outputs: names of what it gives.
        wanted: arguments whose gradient is asked for.
        rows: arguments that have rows, and the axis they lie on. The others are shared by all rows.
        function: of a case, on any part of the rows; float64 stays float64. A loss is the part's share of the mean.
    """

    draw: Callable[[Case, Normal], dict[str, Tensor]]
    outputs: tuple[str, ...]
    wanted: tuple[str, ...]
    rows: Mapping[str, int]
    function: Callable[[Case], Function]


def draw_inputs(case: Case, device: torch.device, seed: int = 0) -> Inputs:
    """The same tensors for every provider, and on every run."""
    generator = torch.Generator(device).manual_seed(seed)
    dtype = getattr(torch, case.dtype)

    def normal(*shape: int, scale: float = 1.0, mean: float = 0.0) -> Tensor:
        x = torch.randn(shape, generator=generator, device=device, dtype=dtype)
        return x.mul_(scale).add_(mean) if (scale, mean) != (1.0, 0.0) else x

    operator = OPERATORS[case.op]
    tensors = operator.draw(case, normal)
    for name in operator.wanted:
        tensors[name].requires_grad_()
    d_outputs: tuple[Tensor, ...] = ()
    if case.op not in LOSSES:
        models = (OUTPUT_LIKE.get(name, operator.wanted[0]) for name in operator.outputs)
        d_outputs = tuple(_like(tensors[name], normal) for name in models)
    return Inputs(tensors, operator.wanted, d_outputs)


OUTPUT_LIKE = {"k_rotated": "k"}  # other outputs have the shape and strides of the first argument


def _like(x: Tensor, normal: Normal) -> Tensor:
    """Random numbers with the shape and the strides of x, as the next op's backward would hand them over."""
    return torch.empty_like(x, requires_grad=False).copy_(normal(*x.shape))


# --- one function an op ----------------------------------------------------------------------


def _norm_inputs(case: Case, normal: Normal) -> dict[str, Tensor]:
    rows, width = case.shape
    w = normal(width, scale=0.1, mean=0.0 if case.option("offset", 0) else 1.0)
    tensors = {"x": normal(rows, width)}
    if case.op == "add_rms_norm":
        tensors["residual"] = normal(rows, width)
    tensors["w"] = w
    if case.op == "layer_norm":
        tensors["b"] = normal(width, scale=0.1)
    return tensors


def _rms_norm(case: Case) -> Function:
    offset = int(case.option("offset", 0))
    math = "scale_then_cast" if offset else "cast_then_scale"  # Gemma's, and Llama's

    def rms_norm(x: Tensor, w: Tensor) -> Tensor:
        return rms_norm_reference(x, w, EPS, offset=offset, math=math)  # type: ignore[arg-type]

    return rms_norm


def _add_rms_norm(case: Case) -> Function:
    norm = _rms_norm(case)

    def add_rms_norm(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        residual = residual + x
        return norm(residual, w), residual

    return add_rms_norm


def _layer_norm(case: Case) -> Function:
    return lambda x, w, b: layer_norm_reference(x, w, b, EPS, math="fused")


def _rope_inputs(case: Case, normal: Normal) -> dict[str, Tensor]:
    B, T, H, G, K = case.shape
    q, k = (normal(B, T, heads, K).transpose(1, 2) for heads in (H, G))  # as the projections leave them
    inv_freq, _ = rope_frequencies("default", theta=500_000.0, dim=K, scaling={}, max_positions=T)
    cos, sin = rope_tables(
        inv_freq, torch.arange(T, device=q.device), attention_factor=1.0,
        inv_freq_dtype="fp32", pos_dtype="fp32", table_dtype="act", act_dtype=q.dtype,
    )  # fmt: skip
    doubled = {f"{name}_full": torch.cat((x, x), dim=-1) for name, x in (("cos", cos), ("sin", sin))}
    return {"q": q, "k": k, "cos": cos, "sin": sin, **doubled}


def _rope(case: Case) -> Function:
    def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *full: Tensor) -> Any:
        return rope_reference(q, k, cos, sin, style="half", apply_dtype="act")

    return rope


def _wide_inputs(case: Case, normal: Normal) -> dict[str, Tensor]:
    if case.op == "glu":
        return {"gate": normal(*case.shape), "up": normal(*case.shape)}
    return {"x": normal(*case.shape, scale=20.0 if case.op == "softcap" else 1.0)}


def _glu(case: Case) -> Function:
    act = str(case.option("act", "silu"))
    return lambda gate, up: glu_reference(gate, up, act=act)


def _activation(case: Case) -> Function:
    act = str(case.option("act", "relu2"))
    return lambda x: activation_reference(x, act=act)


def _softcap(case: Case) -> Function:
    cap = float(case.option("cap", 30.0))
    return lambda x: softcap_reference(x, cap)


def _targets(case: Case, like: Tensor) -> Tensor:
    rows, vocabulary = case.shape[0], case.shape[-1]
    generator = torch.Generator(like.device).manual_seed(1)
    return torch.randint(vocabulary, (rows,), generator=generator, device=like.device)


def _logits_inputs(case: Case, normal: Normal) -> dict[str, Tensor]:
    logits = normal(*case.shape, scale=2.0)
    return {"logits": logits, "target": _targets(case, logits)}


def _cross_entropy(case: Case) -> Function:
    cap, rows = float(case.option("softcap", 0.0)), case.shape[0]

    def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
        logits = softcap_reference(logits, cap) if cap else logits
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))  # as HuggingFace does
        loss = F.cross_entropy(wide, target)
        return loss if len(target) == rows else loss * (len(target) / rows)

    return cross_entropy


def _hidden_inputs(case: Case, normal: Normal) -> dict[str, Tensor]:
    rows, width, vocabulary = case.shape
    hidden = normal(rows, width)
    weight = normal(vocabulary, width, scale=1.3 * width**-0.5)  # logits spread by 1.3
    return {"hidden": hidden, "weight": weight, "target": _targets(case, hidden)}


def _linear_cross_entropy(case: Case) -> Function:
    loss = _cross_entropy(case)
    return lambda hidden, weight, target: loss(F.linear(hidden, weight), target)


_rows = {"x": 0, "residual": 0, "gate": 0, "up": 0, "logits": 0, "hidden": 0, "target": 0}
OPERATORS: dict[str, Operator] = {
    "rms_norm": Operator(_norm_inputs, ("y",), ("x", "w"), _rows, _rms_norm),
    "add_rms_norm": Operator(_norm_inputs, ("y", "new_residual"), ("x", "residual", "w"), _rows, _add_rms_norm),
    "layer_norm": Operator(_norm_inputs, ("y",), ("x", "w", "b"), _rows, _layer_norm),
    "rope": Operator(
        _rope_inputs,
        ("q_rotated", "k_rotated"),
        ("q", "k"),
        {"q": 2, "k": 2, "cos": 1, "sin": 1, "cos_full": 1, "sin_full": 1},
        _rope,
    ),
    "glu": Operator(_wide_inputs, ("y",), ("gate", "up"), _rows, _glu),
    "activation": Operator(_wide_inputs, ("y",), ("x",), _rows, _activation),
    "softcap": Operator(_wide_inputs, ("y",), ("x",), _rows, _softcap),
    "cross_entropy": Operator(_logits_inputs, ("loss",), ("logits",), _rows, _cross_entropy),
    "linear_cross_entropy": Operator(_hidden_inputs, ("loss",), ("hidden", "weight"), _rows, _linear_cross_entropy),
}
