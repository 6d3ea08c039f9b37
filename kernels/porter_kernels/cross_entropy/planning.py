"""How the kernels of cross_entropy are launched: what follows from shapes and options alone."""

from typing import Any, NamedTuple

import torch

from porter_kernels.cross_entropy import kernels
from porter_kernels.launch import INTERPRETING, ceil_div, next_power_of_2, num_programs, rows_per_program
from porter_kernels.plans import Plan, planned

TUNABLES = {
    # Columns of a chunk, at most: with few a row's second read finds them in a nearer cache, with many there is less to
    # combine. A cap computes so much that more threads are worth more than either.
    "block_v": 2**16 if INTERPRETING else 8192,
    "block_v_wide": 2**16 if INTERPRETING else 16384,  # from 2**16 columns on
    "block_v_capped": 2**16 if INTERPRETING else 2048,
    "elements_per_thread": 64,
    "elements_per_thread_capped": 16,
    "stages": 1,  # chunks in flight where a program does all of a row
    "rows_per_multiprocessor": 0 if INTERPRETING else 2,  # fewer rows are better split over programs
    "few_chunks": 0 if INTERPRETING else 4,  # unless they have so few chunks that three launches take longer
    "counted_rows": 1024,  # so few that each program counts those that count, rather than a launch before
    "programs_per_multiprocessor": 8,  # of a kernel that may have nothing to do
}


class LossOptions(NamedTuple):
    """What a row's loss is; reference.py has the equations."""

    ignore_index: int = -100
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    softcap: float | None = None
    logit_scale: float = 1.0

    def for_partials(self) -> dict[str, Any]:
        return {
            "IGNORE": self.ignore_index,
            "SMOOTHING": self.label_smoothing,
            "CAP": self.softcap or 0.0,
            "SCALE": self.logit_scale,
        }

    def for_loss(self) -> dict[str, Any]:
        return {"IGNORE": self.ignore_index, "SMOOTHING": self.label_smoothing, "Z_LOSS": self.z_loss}

    def for_gradient(self) -> dict[str, Any]:
        return self.for_partials() | self.for_loss()


class Tiling(NamedTuple):
    """How [N, V] is cut: T tiles of BLOCK_N rows, C chunks of BLOCK_V columns. C follows from V and the cap."""

    BLOCK_N: int
    BLOCK_V: int
    T: int
    C: int
    num_warps: int


def cut(N: int, V: int, capped: bool = False) -> Tiling:
    most = TUNABLES["block_v_capped" if capped else "block_v_wide" if V >= 2**16 else "block_v"]
    BLOCK_V = min(next_power_of_2(V), most)
    BLOCK_N = rows_per_program(N, BLOCK_V)
    warps = BLOCK_N * BLOCK_V // (32 * TUNABLES["elements_per_thread_capped" if capped else "elements_per_thread"])
    return Tiling(BLOCK_N, BLOCK_V, ceil_div(N, BLOCK_N), ceil_div(V, BLOCK_V), min(max(warps, 1), 16))


@planned
def plan_partials(
    N: int, V: int, stride: int, vocab_start: int, weight_start: int, options: LossOptions, *, has_weight: bool,
    entropy: bool, argmax: bool,
) -> Plan:  # fmt: skip
    BLOCK_N, BLOCK_V, T, C, num_warps = cut(N, V, options.softcap is not None)
    return Plan(
        "cross_entropy", kernels._partials_kernel, (T * C,),
        N=N, V=V, C=C, stride=stride, vocab_start=vocab_start, weight_start=weight_start, **options.for_partials(),
        HAS_WEIGHT=has_weight, ENTROPY=entropy, ARGMAX=argmax, BLOCK_N=BLOCK_N, BLOCK_V=BLOCK_V, num_warps=num_warps,
        contract=False,
    )  # fmt: skip


@planned
def plan_combine(N: int, C: int, vocab_size: int, options: LossOptions, has_weight: bool) -> Plan:
    # Cut as in the launch that does all, for the same order of sums.
    BLOCK_N, _, T, _, num_warps = cut(N, vocab_size, options.softcap is not None)
    return Plan(
        "cross_entropy", kernels._results_kernel, (T,),
        N=N, C=C, vocab_size=vocab_size, **options.for_loss(), HAS_WEIGHT=has_weight, BLOCK_N=BLOCK_N,
        BLOCK_C=next_power_of_2(C), num_warps=num_warps, contract=False,
    )  # fmt: skip


@planned
def plan_gradient(
    N: int, V: int, stride: int, out_stride: int, upstream_stride: int, vocab_start: int, vocab_size: int,
    options: LossOptions, device: torch.device, *, has_weight: bool, has_factor: bool, has_denominator: bool,
    has_upstream: bool, has_log_total: bool, keep_at_one: bool, counted: bool,
) -> Plan:  # fmt: skip
    BLOCK_N, BLOCK_V, T, C, num_warps = cut(N, V, options.softcap is not None)
    P = min(T * C, num_programs(device) * TUNABLES["programs_per_multiprocessor"]) if keep_at_one else T * C
    return Plan(
        "cross_entropy", kernels._gradient_kernel, (P,),
        N=N, V=V, C=C, T=T, stride=stride, out_stride=out_stride, upstream_stride=upstream_stride,
        vocab_start=vocab_start, vocab_size=vocab_size, **options.for_gradient(), HAS_WEIGHT=has_weight,
        HAS_FACTOR=has_factor, HAS_DENOMINATOR=has_denominator, HAS_UPSTREAM=has_upstream,
        HAS_LOG_TOTAL=has_log_total, KEEP_AT_ONE=keep_at_one, COUNTED=TUNABLES["counted_rows"] if counted else 0,
        BLOCK_N=BLOCK_N, BLOCK_V=BLOCK_V, num_warps=num_warps, contract=False,
    )  # fmt: skip


@planned
def plan_loss_and_gradient(
    N: int, V: int, stride: int, out_stride: int, options: LossOptions, device: torch.device, *, has_weight: bool,
    has_factor: bool, has_denominator: bool, counted: bool, entropy: bool, argmax: bool,
) -> Plan | None:  # fmt: skip
    """None where there are so few rows that each had better be split over programs."""
    BLOCK_N, BLOCK_V, T, C, num_warps = cut(N, V, options.softcap is not None)
    if TUNABLES["rows_per_multiprocessor"] * num_programs(device) > T and TUNABLES["few_chunks"] < C:
        return None
    return Plan(
        "cross_entropy", kernels._loss_and_gradient_kernel, (T,),
        N=N, V=V, C=C, stride=stride, out_stride=out_stride, **options.for_gradient(), HAS_WEIGHT=has_weight,
        HAS_FACTOR=has_factor, HAS_DENOMINATOR=has_denominator, COUNTED=TUNABLES["counted_rows"] if counted else 0,
        ENTROPY=entropy, ARGMAX=argmax, BLOCK_N=BLOCK_N, BLOCK_V=BLOCK_V, BLOCK_C=next_power_of_2(C),
        STAGES=TUNABLES["stages"], num_warps=num_warps, contract=False,
    )  # fmt: skip


@planned
def plan_scale(N: int, V: int, stride: int, device: torch.device) -> Plan:
    BLOCK_N, BLOCK_V, T, C, num_warps = cut(N, V)
    P = min(T * C, num_programs(device) * TUNABLES["programs_per_multiprocessor"])
    return Plan(
        "cross_entropy", kernels._scale_kernel, (P,),
        N=N, V=V, C=C, T=T, stride=stride, BLOCK_N=BLOCK_N, BLOCK_V=BLOCK_V, num_warps=num_warps,
    )  # fmt: skip
