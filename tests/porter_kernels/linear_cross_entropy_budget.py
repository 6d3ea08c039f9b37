"""What linear_cross_entropy may be off by, propagated from each of its roundings in float64.

The op rounds the logits to their dtype, and their gradient; a head that is not fused rounds there too. So besides what
`excess` allows for a store and a float32 sum, an element may be off by those roundings times what they are multiplied
by. They are independent: their effects add up as squares, and 4 times the root allows for the worst of many elements,
as accuracy.py allows for sums. Derivatives come from autograd of the reference: any option is propagated through.

Axes    N rows, V and U vocabulary, H hidden features.
"""

import os
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from porter_kernels.accuracy import excess
from porter_kernels.cross_entropy.reference import cross_entropy_reference
from porter_kernels.linear_cross_entropy import linear_cross_entropy_reference

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic algorithms refuse cuBLAS without it

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Of a mean over no rows; numpy says so where kernels are interpreted.
ZERO_OVER_ZERO = pytest.mark.filterwarnings("ignore:(divide by zero|invalid value) encountered:RuntimeWarning")
EPS32 = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Case:
    """Inputs of a call. Options are those of the reference, `only` those of the op alone."""

    hidden: Tensor
    weight: Tensor
    target: Tensor
    bias: Tensor | None = None
    options: dict[str, Any] = field(default_factory=dict)
    only: dict[str, Any] = field(default_factory=dict)
    upstream: Tensor | None = None  # None: 1

    def but(self, **options: Any) -> "Case":
        return replace(self, options=self.options | options)

    def walked(self, **only: Any) -> "Case":
        return replace(self, only=self.only | only)


def draw(
    generator: torch.Generator, *, N: int = 19, H: int = 12, V: int = 37, dtype: torch.dtype = torch.float32,
    bias: bool = True, ignored: float = 0.2, width: float = 2.0, **options: Any,
) -> Case:  # fmt: skip
    """A case whose logits are `width` wide and of whose rows a share is ignored."""
    hidden = torch.randn(N, H, generator=generator)
    weight = torch.randn(V, H, generator=generator) * width / H**0.5
    shift = torch.randn(V, generator=generator)
    target = torch.randint(V, (N,), generator=generator)
    target[torch.rand(N, generator=generator) < ignored] = options.get("ignore_index", -100)
    hidden, weight, shift = (x.to(DEVICE, dtype) for x in (hidden, weight, shift))
    only = {"drop_ignored": True}  # so small a case would not wait for the device to learn which rows count
    return Case(hidden, weight, target.to(DEVICE), shift if bias else None, options, only)


def leaves_of(case: Case, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    inputs = {"hidden": case.hidden, "weight": case.weight, "bias": case.bias}
    return {name: x.detach().to(dtype or x.dtype).requires_grad_() for name, x in inputs.items() if x is not None}


def run_case(op: Any, case: Case, leaves: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The loss and the gradients by input."""
    leaves = leaves or leaves_of(case)
    loss = op(leaves["hidden"], leaves["weight"], case.target, bias=leaves.get("bias"), **case.options, **case.only)
    upstream = torch.ones_like(loss) if case.upstream is None else case.upstream.to(loss.dtype)
    gradients = torch.autograd.grad(loss, list(leaves.values()), upstream)
    return {"loss": loss.detach()} | dict(zip(leaves, gradients, strict=True))


def run_in_float64(case: Case) -> dict[str, Tensor]:
    return run_case(linear_cross_entropy_reference, replace(case, only={}), leaves_of(case, torch.float64))


def assert_within_budget(actual: dict[str, Tensor], case: Case, rounds: int = 1) -> None:
    """Loss and gradients of a call against float64, each element within its budget.

    Args:
        actual: what run_case returned for the op.
        case: flat: hidden [N, H], target [N].
        rounds: how often d_weight and d_bias were rounded to their dtype.
    """
    truth, allowed = run_in_float64(case), allowances(case, rounds)
    for name, value in actual.items():
        like = case.hidden.new_empty(0, dtype=torch.float32) if name == "loss" else case.hidden
        assert (value.dtype, value.shape) == (like.dtype, truth[name].shape), name
        worst = excess(value, truth[name], 1, allowed[name] / (4 * EPS32))  # 1 and 4 undo what excess multiplies by
        assert worst <= 1, f"{name}: {worst:.3g} times its budget"


def allowances(case: Case, rounds: int) -> dict[str, Tensor]:
    """What each element may be off by, beyond the rounding of its store."""
    dtype, weighted = case.hidden.dtype, row_factors(case)
    h_NH, w_VH = case.hidden.detach().double(), case.weight.detach().double()
    bias = 0.0 if case.bias is None else case.bias.detach().double()
    z_NV = (h_NH @ w_VH.T + bias).requires_grad_()
    terms = (h_NH[:, None] * w_VH).abs().amax(-1) + abs(bias)
    z_error = half_step(z_NV, dtype) + 4 * EPS32 * (h_NH.shape[1] + 1) ** 0.5 * terms
    loss_N, d_NV, d_NVU = derivatives(case, z_NV)
    arithmetic_N, arithmetic_NV = kernel_arithmetic(case, z_NV, loss_N)

    factor_N, upstream_N = weighted
    loss_error_N = factor_N.abs() * (root((d_NV * z_error).square().sum(1)) + arithmetic_N)
    g_NV, scale_N = (factor_N * upstream_N)[:, None] * d_NV, (factor_N * upstream_N).abs()
    own_NV = half_step(g_NV, dtype) + scale_N[:, None] * arithmetic_NV  # of the gradient, apart from the logits' error
    from_z = scale_N[:, None, None] * d_NVU * z_error[:, None]  # [N, V, U]: by the logits' error, if that were z_error
    allowed = {
        "hidden": root((from_z.mT @ w_VH).square().sum(1) + own_NV.square() @ w_VH.square())
        + float32_sum(g_NV[:, :, None] * w_VH, 1),
        "weight": root((from_z.square().sum(2) + own_NV.square()).T @ h_NH.square())
        + float32_sum(g_NV[:, :, None] * h_NH[:, None], 0),
        "bias": root((from_z.square().sum(2) + own_NV.square()).sum(0)) + float32_sum(g_NV, 0),
    }
    if case.options.get("reduction") == "none":
        allowed["loss"] = loss_error_N
    else:
        allowed["loss"] = root(loss_error_N.square().sum()) + float32_sum(factor_N * loss_N, 0)
    truth = run_in_float64(case)
    twice = upstream_N.log2().frac().any() if upstream_N.gt(0).all() else True  # scaling a stored gradient rounds again
    for name in ("hidden", "weight", "bias"):
        if name in truth:
            again = twice + (rounds - 1 if name != "hidden" else 0)
            allowed[name] = allowed[name] + again * half_step(truth[name], dtype)
    return allowed


def half_step(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The most that rounding to dtype moves x."""
    return 0.5 * torch.finfo(dtype).eps * x.detach().abs() + torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


def root(squares: Tensor) -> Tensor:
    return 4 * squares.sqrt()


def float32_sum(terms: Tensor, axis: int) -> Tensor:
    """The error of a float32 sum over an axis, as accuracy.py counts it."""
    if terms.shape[axis] == 0:
        return terms.sum(axis)
    return 4 * EPS32 * terms.shape[axis] ** 0.5 * terms.abs().amax(axis)


def row_factors(case: Case) -> tuple[Tensor, Tensor]:
    """What multiplies the loss of each row in the result, and the upstream gradient of each row."""
    counts_N = case.target != case.options.get("ignore_index", -100)
    weight_N = counts_N.double()
    if (token_weight := case.options.get("token_weight")) is not None:
        weight_N = torch.where(counts_N, token_weight.double(), 0.0)
    reduction, num_items = case.options.get("reduction", "mean"), case.options.get("num_items")
    upstream = torch.ones(()) if case.upstream is None else case.upstream
    upstream_N = upstream.double().to(weight_N.device).expand(weight_N.shape)
    if num_items is not None:
        return weight_N / num_items, upstream_N
    if reduction != "mean":
        return weight_N, upstream_N
    mass_N = weight_N
    if (class_weight := case.options.get("class_weight")) is not None:
        mass_N = weight_N * class_weight.double()[case.target.where(counts_N, 0)]
    return weight_N / mass_N.sum(), upstream_N


def derivatives(case: Case, z_NV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row's loss before token weights: itself [N], its gradient [N, V] and its Hessian [N, V, U]."""
    names = ("ignore_index", "label_smoothing", "z_loss", "softcap", "logit_scale")
    options = {name: case.options[name] for name in names if name in case.options}
    weight = case.options.get("class_weight")
    loss_N = cross_entropy_reference(z_NV, case.target, weight=weight, reduction="none", **options)
    (d_NV,) = torch.autograd.grad(loss_N.sum(), z_NV, create_graph=True)
    V = z_NV.shape[1]
    pick_VNV = torch.eye(V, dtype=z_NV.dtype, device=z_NV.device)[:, None].expand(V, *z_NV.shape)
    (d_VNU,) = torch.autograd.grad(d_NV, z_NV, pick_VNV, is_grads_batched=True)
    return loss_N.detach(), d_NV.detach(), d_VNU.transpose(0, 1)


def kernel_arithmetic(case: Case, z_NV: Tensor, loss_N: Tensor) -> tuple[Tensor, Tensor]:
    """float32 errors of the loss [N] and of its gradient [N, V] in the kernel, given its logits.

    An exponential's argument is off by eps32 times its size, which is the relative error of a probability; the sums
    have V terms of at most one. The target's term is 1 - p, that is exact to eps32.
    """
    scale, cap = case.options.get("logit_scale", 1.0), case.options.get("softcap")
    x_NV = (scale * z_NV).detach()
    x_NV = cap * torch.tanh(x_NV / cap) if cap else x_NV
    size_N = 1 + x_NV.abs().amax(1)
    lse_N, V = x_NV.logsumexp(1), x_NV.shape[1]
    weight = case.options.get("class_weight")
    mass_N = (1.0 if weight is None else weight.double().max()) * (
        1 + 2 * case.options.get("z_loss", 0.0) * lse_N.abs()
    )
    hit_NV = torch.arange(V, device=z_NV.device) == case.target[:, None]
    share = case.options.get("label_smoothing", 0.0) / V
    one = 4 * EPS32 * V**0.5
    p_NV = x_NV.softmax(1)
    gradient_NV = one * scale * mass_N[:, None] * (p_NV * size_N[:, None] + hit_NV + share)
    return one * (mass_N * size_N + loss_N.abs()), gradient_NV
