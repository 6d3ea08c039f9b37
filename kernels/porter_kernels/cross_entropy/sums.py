"""Sums over rows: each of one program, so that they have one order, and none that the host waits for."""

import torch
from torch import Tensor

from porter_kernels.cross_entropy import kernels
from porter_kernels.cross_entropy.planning import TUNABLES, LossOptions
from porter_kernels.launch import INTERPRETING
from porter_kernels.plans import Plan, launch, planned

BLOCK = 2**12 if INTERPRETING else 8192  # rows that the program takes at once


@planned
def _plan_denominator(N: int, vocab_size: int, ignore_index: int, has_weight: bool, has_factor: bool) -> Plan:
    return Plan(
        "cross_entropy", kernels._denominator_kernel, (1,),
        N=N, vocab_size=vocab_size, IGNORE=ignore_index, HAS_WEIGHT=has_weight, HAS_FACTOR=has_factor, BLOCK=BLOCK,
        num_warps=8, contract=False,
    )  # fmt: skip


def mean_denominator(
    target_N: Tensor, weight_V: Tensor | None, token_weight_N: Tensor | None, options: LossOptions
) -> Tensor:
    """[] float32: the sum over rows that count of class weight times token weight, what a mean divides by."""
    out = target_N.new_empty((), dtype=torch.float32)
    plan = _plan_denominator(
        target_N.shape[0], 0 if weight_V is None else weight_V.shape[0], options.ignore_index,
        has_weight=weight_V is not None, has_factor=token_weight_N is not None,
    )  # fmt: skip
    launch(plan, target_ptr=target_N, weight_ptr=weight_V, factor_ptr=token_weight_N, out_ptr=out)
    return out


def mean_loss(
    loss_N: Tensor, target_N: Tensor, weight_V: Tensor | None, token_weight_N: Tensor | None, options: LossOptions
) -> tuple[Tensor, Tensor]:
    """total_loss divided by mean_denominator, and the latter, in one launch."""
    denominator = loss_N.new_empty(())
    return _run_total(loss_N, target_N, weight_V, token_weight_N, denominator, options, is_mean=True), denominator


def total_loss(
    loss_N: Tensor, target_N: Tensor, token_weight_N: Tensor | None, denominator: Tensor | None, options: LossOptions
) -> Tensor:
    """[] float32: the sum of token weight times loss over rows that count, divided by the denominator if there is one.

    loss_N holds 0 for rows that do not count.
    """
    return _run_total(loss_N, target_N, None, token_weight_N, denominator, options, is_mean=False)


@planned
def _plan_total(
    N: int, vocab_size: int, ignore_index: int, *, has_weight: bool, has_factor: bool, has_denominator: bool,
    is_mean: bool,
) -> Plan:  # fmt: skip
    return Plan(
        "cross_entropy", kernels._total_kernel, (1,),
        N=N, vocab_size=vocab_size, IGNORE=ignore_index, HAS_WEIGHT=has_weight, HAS_FACTOR=has_factor,
        HAS_DENOMINATOR=has_denominator, IS_MEAN=is_mean, num_warps=8, contract=False,
        BLOCK=TUNABLES["counted_rows"] if TUNABLES["counted_rows"] >= N else BLOCK,  # few: as where they are counted
    )  # fmt: skip


def _run_total(
    loss_N: Tensor, target_N: Tensor, weight_V: Tensor | None, token_weight_N: Tensor | None,
    denominator: Tensor | None, options: LossOptions, *, is_mean: bool,
) -> Tensor:  # fmt: skip
    out = loss_N.new_empty(())
    plan = _plan_total(
        loss_N.shape[0], 0 if weight_V is None else weight_V.shape[0], options.ignore_index,
        has_weight=weight_V is not None, has_factor=token_weight_N is not None,
        has_denominator=denominator is not None and not is_mean, is_mean=is_mean,
    )  # fmt: skip
    launch(
        plan, loss_ptr=loss_N, target_ptr=target_N, weight_ptr=weight_V, factor_ptr=token_weight_N,
        denominator_ptr=denominator, out_ptr=out,
    )  # fmt: skip
    return out
