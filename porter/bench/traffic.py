"""What an op must move and multiply at least: each tensor once a pass, whatever a provider does.

Weights and statistics of rows are left out where they are thousands of times smaller than the activations.
"""

import math
from dataclasses import dataclass

from porter.bench.cases import SIZES, Case


@dataclass(frozen=True)
class Pass:
    """Bytes read and written by one walk over memory."""

    read: int
    written: int


TENSORS: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {  # read and written by forward, then by backward
    "rms_norm": ((1, 1), (2, 1)),  # x to y; dy and x to dx
    "layer_norm": ((1, 1), (2, 1)),
    "add_rms_norm": ((2, 2), (3, 1)),  # dx and d_residual are one tensor
    "rope": ((1, 1), (1, 1)),  # q and k, counted together
    "glu": ((2, 1), (3, 2)),
    "activation": ((1, 1), (2, 1)),
    "softcap": ((1, 1), (2, 1)),
}


def passes(case: Case) -> tuple[list[Pass], list[Pass]]:
    """What the forward pass moves, and what both move."""
    element = SIZES[case.dtype]
    if case.op == "cross_entropy":  # one pass is enough for both: logits to d_logits
        size = math.prod(case.shape) * element
        return [Pass(size, 0)], [Pass(size, size)]
    if case.op == "linear_cross_entropy":
        rows, width, vocabulary = case.shape
        size = (rows + vocabulary) * width * element
        return [Pass(size, 0)], [Pass(size, size)]
    size = _activation_elements(case) * element
    forward, backward = (Pass(size * read, size * written) for read, written in TENSORS[case.op])
    return [forward], [forward, backward]


def _activation_elements(case: Case) -> int:
    if case.op == "rope":
        samples, tokens, heads, key_heads, width = case.shape
        return samples * tokens * (heads + key_heads) * width
    return math.prod(case.shape)


def count_flops(case: Case) -> tuple[int, int]:
    """Of matrix products: in the forward pass, and in both."""
    if case.op != "linear_cross_entropy":
        return 0, 0
    product = 2 * math.prod(case.shape)
    return product, 3 * product
