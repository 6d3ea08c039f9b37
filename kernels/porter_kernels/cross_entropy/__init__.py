"""Cross entropy of logits and target classes, in one read and one write of the logits' size."""

from porter_kernels.cross_entropy.rows import (
    LossOptions,
    RowStats,
    combine_partials,
    logits_gradient_,
    loss_and_gradient_,
    mean_denominator,
    row_partials,
)

__all__ = [
    "LossOptions",
    "RowStats",
    "combine_partials",
    "logits_gradient_",
    "loss_and_gradient_",
    "mean_denominator",
    "row_partials",
]
