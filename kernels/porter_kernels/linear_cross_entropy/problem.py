"""A call of linear_cross_entropy, checked and in one form: what the passes read.

Axes    N rows (the leading axes of hidden, flattened), H hidden features, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from porter_kernels.cross_entropy.planning import LossOptions
from porter_kernels.cross_entropy.reference import CrossEntropyStats, Reduction
from porter_kernels.cross_entropy.sums import mean_denominator, mean_loss, total_loss
from porter_kernels.launch import as_rows
from porter_kernels.linear_cross_entropy.checks import check_arguments, check_module
from porter_kernels.linear_cross_entropy.chunks import Accumulate
from porter_kernels.linear_cross_entropy.gradients import Need
from porter_kernels.linear_cross_entropy.reference import shift_left


class Problem(NamedTuple):
    """linear_cross_entropy's arguments, checked, rows flattened, in the order of the op's schema."""

    hidden_NH: Tensor
    weight_VH: Tensor
    bias_V: Tensor | None
    target_N: Tensor
    class_weight_V: Tensor | None  # float32
    token_weight_N: Tensor | None  # float32
    num_items: Tensor | None  # [] float32, divides instead of what the mean does
    reduction: str
    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float | None
    logit_scale: float
    stats: bool
    chunk_rows: int | None
    byte_budget: int | None
    accumulate: Accumulate
    drop_ignored: bool | None

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """Its first fields."""
        return (
            self.hidden_NH, self.weight_VH, self.bias_V, self.target_N, self.class_weight_V, self.token_weight_N,
            self.num_items,
        )  # fmt: skip

    @property
    def need(self) -> Need:
        """The inputs that require a gradient, none under torch.no_grad."""
        if not torch.is_grad_enabled():
            return Need(False, False, False)
        return Need(*(x is not None and x.requires_grad for x in (self.hidden_NH, self.weight_VH, self.bias_V)))

    @property
    def options(self) -> LossOptions:
        return LossOptions(self.ignore_index, self.label_smoothing, self.z_loss, self.softcap, self.logit_scale)

    @property
    def is_mean(self) -> bool:
        """Whether the sum of losses is divided by a sum over the rows that count."""
        return self.reduction == "mean" and self.num_items is None

    def denominator(self) -> Tensor | None:
        """[] float32, what the sum of losses is divided by; None for 1."""
        if not self.is_mean:
            return self.num_items
        return mean_denominator(self.target_N, self.class_weight_V, self.token_weight_N, self.options)

    def class_weight_sum(self) -> Tensor | None:
        return None if self.class_weight_V is None else self.class_weight_V.sum()

    def factors(self, upstream: Tensor | None) -> Tensor | None:
        """[N] float32, what multiplies the gradient of each row's loss besides the denominator; None for 1."""
        if upstream is None:
            return self.token_weight_N
        upstream_N = upstream.expand(self.target_N.shape)
        return upstream_N.contiguous() if self.token_weight_N is None else upstream_N * self.token_weight_N

    def reduce(self, loss_N: Tensor) -> Tensor:
        """The loss from those of the rows, which are 0 where they do not count: [N] unless reduced."""
        target_N, token_weight_N = self.target_N, self.token_weight_N
        if self.is_mean:
            return mean_loss(loss_N, target_N, self.class_weight_V, token_weight_N, self.options)[0]
        if self.reduction != "none":
            return total_loss(loss_N, target_N, token_weight_N, self.num_items, self.options)
        if token_weight_N is None:
            return loss_N.clone()  # loss_N may be a view, which no caller could change in place
        return (loss_N * token_weight_N).masked_fill_(target_N == self.ignore_index, 0.0)


def state_problem(
    op: str, hidden: Tensor, weight: Tensor, target: Tensor, *, bias: Tensor | None, class_weight: Tensor | None,
    token_weight: Tensor | None, ignore_index: int, reduction: Reduction, label_smoothing: float, z_loss: float,
    softcap: float | None, logit_scale: float, num_items: Tensor | int | float | None, stats: bool,
    chunk_rows: int | None, byte_budget: int | None, accumulate: Accumulate, drop_ignored: bool | None, shift: bool,
    vocab_size: int | None = None,
) -> Problem:  # fmt: skip
    """The arguments of `op`, cast as autocast says, checked, shifted and flattened.

    Raises:
        TypeError: weight is a module.
        ValueError: a shape, dtype, device or option does not fit; vocab_size is V where weight is a slice of the head.
    """
    check_module(op, weight)
    hidden, weight, bias = cast_under_autocast(hidden, weight, bias)
    check_arguments(
        op, hidden, weight, target, bias, class_weight, token_weight, reduction, label_smoothing, softcap, logit_scale,
        num_items, accumulate, weight.shape[0] if vocab_size is None else vocab_size,
    )  # fmt: skip
    if shift:
        target = shift_left(target, 1, ignore_index)
        token_weight = None if token_weight is None else shift_left(token_weight, 1, 0)
    return Problem(
        as_rows(hidden), weight, bias, target.reshape(-1).contiguous(),
        None if class_weight is None else class_weight.contiguous(),
        None if token_weight is None else token_weight.reshape(-1).contiguous(), divisor(num_items, hidden),
        reduction, ignore_index, float(label_smoothing), float(z_loss), softcap, float(logit_scale), stats, chunk_rows,
        byte_budget, accumulate, drop_ignored,
    )  # fmt: skip


def cast_under_autocast(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The three in autocast's dtype where it is on, differentiably; float64 stays, as autocast leaves it."""
    device_type = hidden.device.type
    if not torch.is_autocast_enabled(device_type) or hidden.dtype == torch.float64:
        return hidden, weight, bias
    dtype = torch.get_autocast_dtype(device_type)
    return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def divisor(num_items: Tensor | int | float | None, like: Tensor) -> Tensor | None:
    """[] float32 on the device of `like`, filled there: copying a number from the host would wait."""
    if num_items is None:
        return None
    if isinstance(num_items, Tensor):
        return num_items.detach().reshape(()).to(like.device, torch.float32)
    return torch.full((), float(num_items), dtype=torch.float32, device=like.device)


def in_shape(
    outputs: tuple[Tensor, ...], problem: Problem, shape: torch.Size
) -> tuple[Tensor, CrossEntropyStats | None]:
    """The loss, and the statistics where they were asked for, without gradients, in the shape of the targets."""
    loss, *measured = outputs
    loss = loss.view(shape) if problem.reduction == "none" else loss
    if not measured:
        return loss, None
    lse_N, log_prob_N, entropy_N, correct_N = measured
    log_prob, entropy, lse = (x_N.detach().view(shape) for x_N in (log_prob_N, entropy_N, lse_N))
    return loss, CrossEntropyStats(log_prob, entropy, correct_N.view(shape), lse)
