"""Cross entropy of a language model's head, a chunk of rows at a time."""

from porter_kernels.linear_cross_entropy.chunks import Chunks, choose_chunks
from porter_kernels.linear_cross_entropy.heads import multi_head_linear_cross_entropy
from porter_kernels.linear_cross_entropy.op import linear_cross_entropy
from porter_kernels.linear_cross_entropy.parallel import vocab_parallel_linear_cross_entropy
from porter_kernels.linear_cross_entropy.plain import chunked_linear_cross_entropy, naive_linear_cross_entropy
from porter_kernels.linear_cross_entropy.reference import linear_cross_entropy_reference

__all__ = [
    "Chunks",
    "choose_chunks",
    "chunked_linear_cross_entropy",
    "linear_cross_entropy",
    "linear_cross_entropy_reference",
    "multi_head_linear_cross_entropy",
    "naive_linear_cross_entropy",
    "vocab_parallel_linear_cross_entropy",
]
