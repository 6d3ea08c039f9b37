"""glu, packed_glu and activation: what autograd and torch.compile see, and what callers do."""

from typing import Any

from torch import Tensor

from porter_kernels.fused import Fused, Launch
from porter_kernels.glu.kernels import _backward_kernel, _forward_kernel
from porter_kernels.glu.planning import plan_launch, strides_of
from porter_kernels.glu.reference import ACTIVATIONS, Clamp, Layout, split_packed
from porter_kernels.launch import as_rows, packed_like
from porter_kernels.plans import launch

# --- ops: what autograd and torch.compile see ------------------------------------------------


def _launch_forward(
    gate_NF: Tensor,
    up_NF: Tensor | None,
    act: str,
    alpha: float | None,
    limit: float | None,
    clamp_act: bool,
    up_offset: float,
) -> Tensor:
    y_NF, options = packed_like(gate_NF), (act, alpha, limit, clamp_act, up_offset)
    if gate_NF.numel():
        strides, has_up = strides_of(gate_NF, up_NF), up_NF is not None
        plan = plan_launch(_name(up_NF), _forward_kernel, gate_NF.shape, strides, has_up, False, options)
        launch(plan, gate_ptr=gate_NF, up_ptr=up_NF, y_ptr=y_NF)
    return y_NF


def _fake_forward(gate_NF: Tensor, up_NF: Tensor | None, *options: Any) -> Tensor:
    return gate_NF.new_empty(gate_NF.shape)


def _launch_backward(
    dy_NF: Tensor,
    gate_NF: Tensor,
    up_NF: Tensor | None,
    act: str,
    alpha: float | None,
    limit: float | None,
    clamp_act: bool,
    up_offset: float,
) -> tuple[Tensor, Tensor]:
    dgate_NF, options = packed_like(gate_NF), (act, alpha, limit, clamp_act, up_offset)
    dup_NF = None if up_NF is None else packed_like(gate_NF)
    if gate_NF.numel():
        strides, has_up = strides_of(dy_NF, gate_NF, up_NF, dgate_NF, dup_NF), up_NF is not None
        plan = plan_launch(_name(up_NF), _backward_kernel, gate_NF.shape, strides, has_up, False, options)
        launch(plan, dy_ptr=dy_NF, gate_ptr=gate_NF, up_ptr=up_NF, dgate_ptr=dgate_NF, dup_ptr=dup_NF)
    return dgate_NF, gate_NF.new_empty(0) if dup_NF is None else dup_NF


def _name(up: Tensor | None) -> str:
    return "activation" if up is None else "glu"


def _fake_backward(dy_NF: Tensor, gate_NF: Tensor, up_NF: Tensor | None, *options: Any) -> tuple[Tensor, Tensor]:
    return gate_NF.new_empty(gate_NF.shape), gate_NF.new_empty(0 if up_NF is None else gate_NF.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.options = inputs[2:]


def _differentiate(ctx: Any, dy_NF: Tensor) -> tuple[Tensor | None, ...]:
    gate_NF, up_NF = ctx.saved_tensors
    dgate_NF, dup_NF = _backward(_readable(dy_NF), gate_NF, up_NF, *ctx.options)
    return dgate_NF, None if up_NF is None else dup_NF, None, None, None, None, None


def _launch_packed_forward(
    x: Tensor, layout: str, act: str, alpha: float | None, limit: float | None, clamp_act: bool, up_offset: float
) -> Tensor:
    y_NF = x.new_empty(x.shape[0], x.shape[1] // 2)
    (gate, up), options = _split(x, layout), (act, alpha, limit, clamp_act, up_offset)
    if gate.numel():
        plan = plan_launch("packed_glu", _forward_kernel, gate.shape, strides_of(gate, up), True, up is None, options)
        launch(plan, gate_ptr=gate, up_ptr=up, y_ptr=y_NF)
    return y_NF


def _fake_packed_forward(x: Tensor, *options: Any) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // 2)


def _launch_packed_backward(
    dy_NF: Tensor,
    x: Tensor,
    layout: str,
    act: str,
    alpha: float | None,
    limit: float | None,
    clamp_act: bool,
    up_offset: float,
) -> Tensor:
    dx, options = packed_like(x), (act, alpha, limit, clamp_act, up_offset)
    (gate, up), (dgate, dup) = _split(x, layout), _split(dx, layout)
    if gate.numel():
        strides = strides_of(dy_NF, gate, up, dgate, dup)
        plan = plan_launch("packed_glu", _backward_kernel, gate.shape, strides, True, up is None, options)
        launch(plan, dy_ptr=dy_NF, gate_ptr=gate, up_ptr=up, dgate_ptr=dgate, dup_ptr=dup)
    return dx


def _fake_packed_backward(dy_NF: Tensor, x: Tensor, *options: Any) -> Tensor:
    return x.new_empty(x.shape)


def _split(x: Tensor, layout: Any) -> tuple[Tensor, Tensor | None]:
    """gate and up; x and None where they are interleaved."""
    return (x, None) if layout == "interleaved" else split_packed(x, layout)


def _save_packed(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.options = inputs[1:]


def _differentiate_packed(ctx: Any, dy_NF: Tensor) -> tuple[Tensor | None, ...]:
    return _packed_backward(_readable(dy_NF), *ctx.saved_tensors, *ctx.options), None, None, None, None, None, None


_backward = Launch("glu_backward", _launch_backward, _fake_backward)
_forward = Fused("glu", _launch_forward, _fake_forward, save=_save, differentiate=_differentiate)
_packed_backward = Launch("packed_glu_backward", _launch_packed_backward, _fake_packed_backward)
_packed_forward = Fused(
    "packed_glu", _launch_packed_forward, _fake_packed_forward, save=_save_packed, differentiate=_differentiate_packed
)


# --- public ----------------------------------------------------------------------------------


def glu(
    gate: Tensor,
    up: Tensor,
    *,
    act: str,
    alpha: float | None = None,
    limit: float | None = None,
    clamp: Clamp = "gate",
    up_offset: float = 0.0,
) -> Tensor:
    """act(gate) * up; glu_reference states the arithmetic.

    Args:
        gate: [..., F], floating, any strides: halves of one projection (chunk) are read in place.
        up: like gate.
        act: one of ACTIVATIONS.
        alpha: multiplies gate within the sigmoid of act silu; gpt-oss has 1.702.
        limit: holds gate below it and up within both signs of it; gpt-oss has 7.
        clamp: what the limit holds besides up: "gate", or "act" for act(gate).
        up_offset: added to up; gpt-oss has 1.

    Returns:
        Shape and dtype of gate, contiguous.

    Raises:
        ValueError: act, alpha, limit or clamp is none that exists, or up differs from gate in shape, dtype or device.
    """
    _check("glu", act, alpha, limit, clamp)
    if up.shape != gate.shape or up.dtype is not gate.dtype or up.device != gate.device:
        raise ValueError(
            f"glu: up is {up.dtype} {list(up.shape)} on {up.device}, expected {gate.dtype} {list(gate.shape)} on "
            f"{gate.device} like gate. Pass both halves of the same layer's projection."
        )
    y_NF: Tensor = _forward(_readable(gate), _readable(up), act, alpha, limit, clamp == "act", float(up_offset))
    return y_NF if gate.ndim == 2 else y_NF.view(gate.shape)


def packed_glu(
    x: Tensor,
    *,
    act: str,
    layout: Layout = "halves",
    alpha: float | None = None,
    limit: float | None = None,
    clamp: Clamp = "gate",
    up_offset: float = 0.0,
) -> Tensor:
    """glu of the gate and up that x is made of, whose gradients are written into one tensor like x.

    Args:
        x: [..., 2 * F], floating, any strides: the output of one projection.
        act: one of ACTIVATIONS.
        layout: "halves" (Phi-3, GLM), "halves_up_first" (Aya Vision) or "interleaved" (gpt-oss: even columns gate).
        alpha: as for glu.
        limit: as for glu.
        clamp: as for glu.
        up_offset: as for glu.

    Returns:
        [..., F], dtype of x, contiguous.

    Raises:
        ValueError: act, layout, alpha, limit or clamp is none that exists, or x has an odd number of columns.
    """
    _check("packed_glu", act, alpha, limit, clamp)
    if layout not in ("halves", "halves_up_first", "interleaved"):
        raise ValueError(
            f"packed_glu: layout is {layout!r}, expected 'halves', 'halves_up_first' or 'interleaved'. "
            f"Read off the model's code what it slices from the projection: chunk(2) is halves, [..., ::2] interleaved."
        )
    if x.ndim == 0 or x.shape[-1] % 2:
        raise ValueError(
            f"packed_glu: x has shape {list(x.shape)}, expected an even last axis, gate and up. "
            f"Pass the projection's whole output; if gate and up are two tensors, call glu."
        )
    rows = _readable(x)
    y_NF: Tensor = _packed_forward(rows, layout, act, alpha, limit, clamp == "act", float(up_offset))
    return y_NF.view(*x.shape[:-1], x.shape[-1] // 2)


def activation(x: Tensor, *, act: str) -> Tensor:
    """act(x); activation_reference states the arithmetic.

    Args:
        x: [..., F], floating, any strides.
        act: one of ACTIVATIONS.

    Returns:
        Shape and dtype of x, contiguous.

    Raises:
        ValueError: act is unknown.
    """
    _check("activation", act, None, None, "gate")
    y_NF: Tensor = _forward(_readable(x), None, act, None, None, False, 0.0)
    return y_NF if x.ndim == 2 else y_NF.view(x.shape)


def differentiate_glu(dy: Tensor, gate: Tensor, up: Tensor, *, act: str) -> tuple[Tensor, Tensor]:
    """The gradients of gate and up, shaped like them, given that of glu(gate, up, act=act)."""
    rows = map(_readable, (dy, gate, up))
    dgate_NF, dup_NF = _backward(*rows, act, None, None, False, 0.0)
    return dgate_NF.view(gate.shape), dup_NF.view(up.shape)


def differentiate_packed_glu(dy: Tensor, x: Tensor, *, act: str, layout: Layout) -> tuple[Tensor]:
    """The gradient of x, shaped like it, given that of packed_glu(x, act=act, layout=layout)."""
    dx: Tensor = _packed_backward(_readable(dy), _readable(x), layout, act, None, None, False, 0.0)
    return (dx.view(x.shape),)


def _readable(x: Tensor) -> Tensor:
    if x.ndim == 2 and x.is_contiguous():
        return x
    x_NF = as_rows(x)
    return x_NF if x_NF.stride(-1) == 1 else x_NF.contiguous()


def _check(op: str, act: str, alpha: float | None, limit: float | None, clamp: str) -> None:
    if act not in ACTIVATIONS:
        raise ValueError(
            f"{op}: act is {act!r}, expected one of {', '.join(ACTIVATIONS)}. "
            f"HuggingFace's gelu_pytorch_tanh is gelu_tanh, and its swish is silu."
        )
    if alpha is not None and not (act == "silu" and alpha > 0):
        raise ValueError(
            f"{op}: alpha is {alpha} with act {act!r}, expected a positive number with act 'silu'. "
            f"It multiplies gate within the sigmoid; leave it out for every other activation."
        )
    if limit is not None and not limit > 0:
        raise ValueError(f"{op}: limit is {limit}, expected a positive number. Without a limit, leave it out.")
    if clamp not in ("gate", "act"):
        raise ValueError(
            f"{op}: clamp is {clamp!r}, expected 'gate' or 'act'. gpt-oss clamps the gate, Step 3.7 the activated gate."
        )
