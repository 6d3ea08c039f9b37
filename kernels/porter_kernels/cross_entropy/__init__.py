"""Cross entropy of logits and target classes: one read and one write of the logits' size, forward and backward."""

from porter_kernels.cross_entropy.op import cross_entropy
from porter_kernels.cross_entropy.planning import LossOptions
from porter_kernels.cross_entropy.reference import CrossEntropyStats, cross_entropy_reference
from porter_kernels.cross_entropy.rows import (
    RowStats,
    combine_partials,
    logits_gradient_,
    loss_and_gradient_,
    row_partials,
    scale_,
)
from porter_kernels.cross_entropy.sums import mean_denominator

__all__ = [
    "CrossEntropyStats",
    "LossOptions",
    "RowStats",
    "combine_partials",
    "cross_entropy",
    "cross_entropy_reference",
    "logits_gradient_",
    "loss_and_gradient_",
    "mean_denominator",
    "row_partials",
    "scale_",
]
