"""How far a kernel may be from the truth: a budget counted from rounding, never a tolerance chosen by taste."""

import torch
from torch import Tensor


def excess(actual: Tensor, truth: Tensor, terms: int, scale: Tensor | float) -> float:
    """How many times over its budget the worst element is; at most 1 passes, NaN fails.

    An element may be off by the rounding of its own store (half a step of its dtype) plus float32 rounding of a sum
    of `terms` whose largest term is `scale` (the result may have cancelled).

    Args:
        actual: what the kernel stored, in its dtype.
        truth: the same in float64, from the same inputs.
        terms: how many terms were summed for an element.
        scale: the largest of them, one number or one an element.
    """
    out = torch.finfo(actual.dtype)
    store = 0.5 * out.eps * truth.abs() + out.smallest_normal * out.eps
    arithmetic = 4 * torch.finfo(torch.float32).eps * terms**0.5 * scale
    return float(((actual.detach().double() - truth).abs() / (store + arithmetic)).max())
