"""Elements of a node beside golden: how large each is, and how far both sides are from it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """Elements of a node, spread evenly over it: how large each is, and how far both sides are from it (local).

    Attributes:
        golden: magnitudes; port, reference: |side − golden| of the same elements.
        edges: of the bins, log10 of the error over golden's rms; one more than there are bins.
        port_counts, reference_counts: elements in each bin, those that are equal to golden in the first.
    """

    golden: tuple[float, ...]
    port: tuple[float, ...]
    reference: tuple[float, ...]
    edges: tuple[float, ...]
    port_counts: tuple[int, ...]
    reference_counts: tuple[int, ...]
