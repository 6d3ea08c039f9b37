"""How many rows of logits live at once: what decides memory, and must decide neither speed nor accuracy.

Facts the rule rests on, one H200, bf16: the head's GEMMs run at full rate from 2048 rows on (2048 and 4096 tie), and a
chunk that adds to a float32 accumulator reads and writes V * H * 4 bytes each time. So one chunk of all rows is the
fastest and, having no accumulator, often also the smallest: with N <= 2 * H rows, all logits and d_weight (2 * N * V +
2 * V * H bytes) take no more than the accumulator and the gradient it is cast to (4 * V * H + 2 * V * H).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

MIN_ROWS = 2048  # fewer rows starve the GEMMs
ROW_MULTIPLE = 128  # rows of a GEMM's tile
MOST_COUNTS = 4096  # of chunks that are compared, besides the most: more than eight million rows have
# Up to so many rows, eight chunks, a sum in the weight's own dtype errs at most about twice as much as one rounding of
# it, which is what rounded logits cost it too; it saves 4 bytes a weight. Training takes it so; the op's default not.
LEAN_ROWS = 8 * MIN_ROWS

Accumulate = Literal["float32", "weight"]


@dataclass(frozen=True)
class Chunks:
    """Rows cut into chunks of one size, the last perhaps smaller.

    Attributes:
        rows: of a chunk.
        count: of chunks.
        peak_bytes: most bytes alive at once above the inputs: one chunk of logits, d_hidden, d_weight and its
            accumulator. A few floats a row come on top, and copies of a chunk's rows where ignored rows are left out.
    """

    rows: int
    count: int
    peak_bytes: int


@dataclass(frozen=True)
class Sizes:
    """What the bytes of a chunk follow from; the arguments of choose_chunks."""

    num_rows: int
    hidden_size: int
    vocab_size: int
    element_size: int
    accumulate: Accumulate
    hidden_gradient: bool
    weight_gradient: bool

    def cut(self, rows: int) -> Chunks:
        """Chunks of that many rows."""
        count = -(-self.num_rows // rows)
        logits = rows * row_stride(self.vocab_size, self.element_size) * self.element_size
        d_hidden = self.num_rows * self.hidden_size * self.element_size * self.hidden_gradient
        features = self.vocab_size * self.hidden_size * self.weight_gradient
        d_weight = features * self.element_size
        if is_wide(count, self.accumulate, self.element_size):  # the logits go before the sum is cast
            return Chunks(rows, count, d_hidden + features * 4 + max(logits, d_weight))
        return Chunks(rows, count, d_hidden + d_weight + logits)

    def cut_evenly(self, count: int) -> Chunks:
        """At most so many chunks, alike to a multiple of 128 rows, rather than a small one at the end."""
        rows = -(-self.num_rows // max(count, 1))
        rows = -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE
        return self.cut(max(min(rows, self.num_rows), 1))


def row_stride(vocab_size: int, element_size: int) -> int:
    """Elements from one row of logits to the next: whole lines of 128 bytes, without which GEMMs fall to slow ones."""
    line = 128 // element_size
    return -(-vocab_size // line) * line


def is_wide(count: int, accumulate: Accumulate, element_size: int) -> bool:
    """Whether d_weight needs an accumulator apart from itself."""
    return count > 1 and accumulate == "float32" and element_size < 4


@lru_cache(1024)
def choose_chunks(
    num_rows: int,
    hidden_size: int,
    vocab_size: int,
    *,
    element_size: int,
    accumulate: Accumulate = "float32",
    hidden_gradient: bool = True,
    weight_gradient: bool = True,
    chunk_rows: int | None = None,
    byte_budget: int | None = None,
) -> Chunks:
    """The chunks with the least peak bytes among those of at least 2048 rows (or all rows); on a tie, the fewest.

    Args:
        num_rows: N, without ignored rows if those are left out.
        hidden_size: H.
        vocab_size: V, of this rank if the vocabulary is split.
        element_size: bytes of an element of hidden, weight and logits.
        accumulate: what d_weight is summed in over chunks: float32, or the dtype of weight.
        hidden_gradient: whether d_hidden is computed.
        weight_gradient: whether d_weight is computed.
        chunk_rows: that many rows instead.
        byte_budget: peak bytes to stay within: where the choice above does not, the largest chunk that does, slower.

    Raises:
        ValueError: chunk_rows is not positive, chunk_rows and byte_budget are both given, or no chunk fits the budget.
    """
    sizes = Sizes(num_rows, hidden_size, vocab_size, element_size, accumulate, hidden_gradient, weight_gradient)
    if chunk_rows is not None:
        if chunk_rows < 1 or byte_budget is not None:
            raise ValueError(
                f"linear_cross_entropy: chunk_rows is {chunk_rows} with byte_budget {byte_budget}, expected a positive "
                f"number of rows and no budget. Pass one of the two; without either the choice is made from the sizes."
            )
        return sizes.cut(max(min(chunk_rows, num_rows), 1))
    most = (num_rows + MIN_ROWS // 16) // MIN_ROWS  # 8190 rows make four chunks, the last two rows short
    counts = {*range(1, min(most, MOST_COUNTS) + 1), max(most, 1)}
    best = min(map(sizes.cut_evenly, counts), key=lambda chunks: (chunks.peak_bytes, chunks.count))
    if byte_budget is None or best.peak_bytes <= byte_budget:
        return best
    smaller = [sizes.cut_evenly(-(-num_rows // rows)) for rows in range(MIN_ROWS, 0, -ROW_MULTIPLE)]
    for chunks in smaller:
        if chunks.peak_bytes <= byte_budget:
            return chunks
    least = min(chunks.peak_bytes for chunks in smaller)
    raise ValueError(
        f"linear_cross_entropy: byte_budget is {byte_budget}, expected at least {least} for the gradients and one "
        f'chunk of logits. Raise it, pass accumulate="weight", or freeze what needs no gradient.'
    )
