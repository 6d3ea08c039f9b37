"""RMSNorm over the last axis.

    y = (offset + w) * x / sqrt(mean(x**2) + eps)      Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4 (eps is Llama's)

and the same of a sum: a layer adds its output to the residual stream, and the next norm reads the sum.

Axes    N rows (the leading axes of x, flattened), D features, P programs.
Dtypes  x and w in {float32, bfloat16, float16}, alike. The kernels compute in float32 and round once, at the
        store; `math` says where the model's own code rounds, which only the reference imitates.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from typing import Any, Literal

import torch
from torch import Tensor, nn

from porter_kernels.column_sums import column_sums
from porter_kernels.fused import Fused, Launch
from porter_kernels.launch import as_rows, launching, next_power_of_2, num_programs, tl, triton, tuned

# --- reference -------------------------------------------------------------------------------


def rms_norm_reference(
    x: Tensor,
    w: Tensor | None,
    eps: float,
    *,
    offset: Literal[0, 1] = 0,
    math: Literal["cast_then_scale", "scale_then_cast"],
) -> Tensor:
    """The equation above as the models write it; differentiable; float64 stays float64.

    Args:
        x: [..., D], floating.
        w: [D], or None for no weight (nanochat).
        eps: added to the mean square, in its units (x squared).
        offset: added to w (Gemma: 1).
        math: "cast_then_scale" rounds x_hat before the product with w (Llama, Qwen, Mistral), "scale_then_cast"
            the product, taken in float32 (Gemma, OLMo 2).

    Returns:
        [..., D], dtype of x (under cast_then_scale, what torch promotes x and w to).
    """
    x_wide = x.to(torch.promote_types(x.dtype, torch.float32))
    x_hat = x_wide * torch.rsqrt(x_wide.pow(2).mean(-1, keepdim=True) + eps)
    if w is None:
        return x_hat.to(x.dtype)
    if math == "cast_then_scale":
        return (offset + w if offset else w) * x_hat.to(x.dtype)
    w_wide = w.to(x_wide.dtype)
    return (x_hat * (offset + w_wide if offset else w_wide)).to(x.dtype)


# --- kernels ---------------------------------------------------------------------------------


@triton.jit
def _forward_kernel(
    x_ptr, residual_ptr, w_ptr, y_ptr, sum_ptr, rstd_ptr, N, D,
    eps: tl.constexpr, OFFSET: tl.constexpr, HAS_W: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]  # [N, 1]
    cols = tl.arange(0, BLOCK_D)[None, :]  # [1, D]
    mask = (rows < N) & (cols < D)
    x = tl.load(x_ptr + rows * D + cols, mask=mask, other=0.0).to(tl.float32)  # [N, D]
    if HAS_RESIDUAL:
        total = x + tl.load(residual_ptr + rows * D + cols, mask=mask, other=0.0).to(tl.float32)
        rounded = total.to(sum_ptr.dtype.element_ty)  # the norm reads the stream as it is stored
        tl.store(sum_ptr + rows * D + cols, rounded, mask=mask)
        x = rounded.to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(x * x, axis=1, keep_dims=True) / D + eps)  # [N, 1]
    y = x * rstd
    if HAS_W:
        y *= OFFSET + tl.load(w_ptr + cols, mask=cols < D, other=0.0).to(tl.float32)  # [1, D]
    tl.store(rstd_ptr + rows, rstd, mask=rows < N)
    tl.store(y_ptr + rows * D + cols, y, mask=mask)


@triton.jit
def _backward_kernel(
    dy_ptr, dsum_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, dw_ptr, N, D,
    OFFSET: tl.constexpr, HAS_W: tl.constexpr, HAS_DSUM: tl.constexpr, NEED_DW: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    # Program p takes tiles p, p + P, ... and keeps one float32 row of dw: no atomics, same bits each run.
    cols = tl.arange(0, BLOCK_D)[None, :]  # [1, D]
    if HAS_W:
        w = OFFSET + tl.load(w_ptr + cols, mask=cols < D, other=0.0).to(tl.float32)  # [1, D]
    dw = tl.zeros((1, BLOCK_D), dtype=tl.float32)  # [1, D]
    start = tl.program_id(0).to(tl.int64) * BLOCK_N
    for first in tl.range(start, N, tl.num_programs(0) * BLOCK_N, num_stages=STAGES):
        rows = first + tl.arange(0, BLOCK_N)[:, None]  # [N, 1]
        mask = (rows < N) & (cols < D)
        at = rows * D + cols
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)  # [N, D]
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)  # [N, D]
        rstd = tl.load(rstd_ptr + rows, mask=rows < N, other=0.0)  # [N, 1]
        x_hat = x * rstd
        dx_hat = dy
        if HAS_W:
            dx_hat = dy * w
        dx = (dx_hat - x_hat * (tl.sum(dx_hat * x_hat, axis=1, keep_dims=True) / D)) * rstd
        if HAS_DSUM:
            dx += tl.load(dsum_ptr + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx_ptr + at, dx, mask=mask)
        if NEED_DW:
            dw += tl.sum(dy * x_hat, axis=0, keep_dims=True)
    if NEED_DW:
        tl.store(dw_ptr + tl.program_id(0).to(tl.int64) * D + cols, dw, mask=cols < D)


# --- ops: what autograd and torch.compile see ------------------------------------------------


def _launch_forward(
    x_ND: Tensor, residual_ND: Tensor | None, w_D: Tensor | None, eps: float, offset: int
) -> tuple[Tensor, Tensor, Tensor]:
    (N, D), has_residual = x_ND.shape, residual_ND is not None
    y_ND, rstd_N = torch.empty_like(x_ND), x_ND.new_empty(N, dtype=torch.float32)
    sum_ND = x_ND.new_empty((N, D) if has_residual else 0)
    if x_ND.numel():
        BLOCK_D = next_power_of_2(D)
        config = tuned("rms_norm.forward", N, BLOCK_D, x_ND.device)
        with launching("rms_norm", x_ND):
            _forward_kernel[(triton.cdiv(N, config.rows),)](
                x_ptr=x_ND, residual_ptr=residual_ND, w_ptr=w_D, y_ptr=y_ND, sum_ptr=sum_ND, rstd_ptr=rstd_N, N=N, D=D,
                eps=eps, OFFSET=offset, HAS_W=w_D is not None, HAS_RESIDUAL=has_residual,
                BLOCK_N=config.rows, BLOCK_D=BLOCK_D, num_warps=config.warps,
            )  # fmt: skip
    return y_ND, sum_ND, rstd_N


def _fake_forward(
    x_ND: Tensor, residual_ND: Tensor | None, w_D: Tensor | None, eps: float, offset: int
) -> tuple[Tensor, Tensor, Tensor]:
    sum_ND = x_ND.new_empty(0 if residual_ND is None else x_ND.shape)
    return torch.empty_like(x_ND), sum_ND, x_ND.new_empty(x_ND.shape[0], dtype=torch.float32)


def _launch_backward(
    dy_ND: Tensor, dsum_ND: Tensor | None, x_ND: Tensor, w_D: Tensor | None, rstd_N: Tensor, offset: int, need_dw: bool
) -> tuple[Tensor, Tensor]:
    N, D = x_ND.shape
    BLOCK_D = next_power_of_2(D)
    config = tuned("rms_norm.backward", N, BLOCK_D, x_ND.device)
    P = min(-(-N // config.rows), config.programs * num_programs(x_ND.device))
    dx_ND, dw_PD = torch.empty_like(x_ND), x_ND.new_empty(P if need_dw else 0, D, dtype=torch.float32)
    if x_ND.numel():
        with launching("rms_norm", x_ND):
            _backward_kernel[(P,)](
                dy_ptr=dy_ND, dsum_ptr=dsum_ND, x_ptr=x_ND, w_ptr=w_D, rstd_ptr=rstd_N, dx_ptr=dx_ND, dw_ptr=dw_PD,
                N=N, D=D, OFFSET=offset, HAS_W=w_D is not None, HAS_DSUM=dsum_ND is not None, NEED_DW=need_dw,
                BLOCK_N=config.rows, BLOCK_D=BLOCK_D, STAGES=config.stages, num_warps=config.warps,
            )  # fmt: skip
    return dx_ND, column_sums(dw_PD, x_ND.dtype) if need_dw else x_ND.new_empty(0)


def _fake_backward(
    dy_ND: Tensor, dsum_ND: Tensor | None, x_ND: Tensor, w_D: Tensor | None, rstd_N: Tensor, offset: int, need_dw: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x_ND), x_ND.new_empty(x_ND.shape[1] if need_dw else 0)


def _save(
    ctx: Any, inputs: tuple[Tensor, Tensor | None, Tensor | None, float, int], output: tuple[Tensor, ...]
) -> None:
    x_ND, residual_ND, w_D, _, ctx.offset = inputs
    _, sum_ND, rstd_N = output
    ctx.has_residual = residual_ND is not None
    ctx.save_for_backward(sum_ND if ctx.has_residual else x_ND, w_D, rstd_N)


def _differentiate(
    ctx: Any, dy_ND: Tensor | None, dsum_ND: Tensor | None, _drstd: None
) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
    (x_ND, w_D, rstd_N), (_, need_dresidual, need_dw, *_) = ctx.saved_tensors, ctx.needs_input_grad
    if dy_ND is None:  # only the sum was used
        return dsum_ND, dsum_ND, None, None, None
    dsum_ND = dsum_ND.contiguous() if ctx.has_residual and dsum_ND is not None else None
    dx_ND, dw_D = _backward(dy_ND.contiguous(), dsum_ND, x_ND, w_D, rstd_N, ctx.offset, need_dw)
    return dx_ND, dx_ND if need_dresidual else None, dw_D if need_dw else None, None, None


_backward = Launch("rms_norm_backward", _launch_backward, _fake_backward)
_forward = Fused("rms_norm", _launch_forward, _fake_forward, save=_save, differentiate=_differentiate)


# --- public ----------------------------------------------------------------------------------


def rms_norm(x: Tensor, w: Tensor | None, eps: float, *, offset: Literal[0, 1] = 0) -> Tensor:
    """RMSNorm of x over its last axis; rms_norm_reference states the arithmetic.

    Args:
        x: [..., D], floating, any strides.
        w: [D], dtype and device of x, or None for no weight.
        eps: added to the mean square, in its units (x squared).
        offset: added to w.

    Returns:
        [..., D], dtype of x.

    Raises:
        ValueError: w is not [D], or differs from x in dtype or device.
    """
    _check_weight("rms_norm", x, w)
    y_ND: Tensor = _forward(as_rows(x).contiguous(), None, None if w is None else w.contiguous(), eps, offset)[0]
    return y_ND.view(x.shape)


def add_rms_norm(
    x: Tensor, residual: Tensor, w: Tensor | None, eps: float, *, offset: Literal[0, 1] = 0
) -> tuple[Tensor, Tensor]:
    """RMSNorm of residual + x, and that sum: one pass for what a pre-norm layer does at each of its joints.

    Args:
        x: [..., D], floating, any strides: what the layer adds.
        residual: like x: the stream that it adds to.
        w: [D], dtype and device of x, or None for no weight.
        eps: added to the mean square, in its units (x squared).
        offset: added to w.

    Returns:
        The norm and the new residual, both [..., D] in the dtype of x. The norm is that of the residual as rounded to
        its dtype, so both have the bits of residual + x followed by rms_norm.

    Raises:
        ValueError: residual differs from x in shape, dtype or device; w as for rms_norm.
    """
    if (residual.shape, residual.dtype, residual.device) != (x.shape, x.dtype, x.device):
        raise ValueError(
            f"add_rms_norm: residual is {residual.dtype} {list(residual.shape)} on {residual.device}, expected "
            f"{x.dtype} {list(x.shape)} on {x.device} like x. Cast or expand it first: residual.to(x).expand_as(x)."
        )
    _check_weight("add_rms_norm", x, w)
    x_ND, residual_ND = as_rows(x).contiguous(), as_rows(residual).contiguous()
    y_ND, sum_ND, _ = _forward(x_ND, residual_ND, None if w is None else w.contiguous(), eps, offset)
    return y_ND.view(x.shape), sum_ND.view(x.shape)


def add_rms_norm_reference(
    x: Tensor,
    residual: Tensor,
    w: Tensor | None,
    eps: float,
    *,
    offset: Literal[0, 1] = 0,
    math: Literal["cast_then_scale", "scale_then_cast"],
) -> tuple[Tensor, Tensor]:
    """residual + x in their dtype, and rms_norm_reference of it, as every pre-norm layer of transformers has it."""
    total = residual + x
    return rms_norm_reference(total, w, eps, offset=offset, math=math), total


class RMSNorm(nn.Module):
    """rms_norm with its weight, in the place of torch.nn.RMSNorm over one axis: same parameter, same state dict."""

    def __init__(self, dim: int, eps: float = 1e-6, *, offset: Literal[0, 1] = 0, **factory: Any) -> None:
        """Weight of dim elements that leave x_hat as it is: 1 - offset."""
        super().__init__()
        self.eps, self.offset = eps, offset
        self.weight = nn.Parameter(torch.full((dim,), 1.0 - offset, **factory))

    def forward(self, x: Tensor) -> Tensor:
        """[..., dim] to the same."""
        return rms_norm(x, self.weight, self.eps, offset=self.offset)


def _check_weight(op: str, x: Tensor, w: Tensor | None) -> None:
    if w is not None and w.shape != x.shape[-1:]:
        raise ValueError(
            f"{op}: w has shape {list(w.shape)}, expected [{x.shape[-1]}], the last axis of x {list(x.shape)}. "
            f"Pass the weight of this layer, or move the axis to normalise to the end with x.movedim."
        )
    if w is not None and (w.dtype, w.device) != (x.dtype, x.device):
        raise ValueError(
            f"{op}: w is {w.dtype} on {w.device}, expected {x.dtype} on {x.device} like x. "
            f"Cast the weight once when loading: w.to(x)."
        )
