"""Takes the elements of a node that a report draws, as the node comes."""

import math

import torch
from torch import Tensor

from porter.comparison.sample import Sample

SHOWN, LOOKED_AT = 240, 4096  # elements that a scatter draws, and that a histogram counts
EDGES = tuple(power / 4 for power in range(-40, 9))  # of log10: a quarter of a decade each, 1e-10 to 1e2
_TURN = (math.sqrt(5) - 1) / 2  # spreads any number of places evenly, and falls in step with no axis


class Sampler:
    """Takes elements of a node that comes in chunks."""

    def __init__(self) -> None:
        self.kept: list[tuple[Tensor, Tensor, Tensor]] = []  # golden, port error, reference error

    def add(self, golden: Tensor, port_error: Tensor, reference_error: Tensor) -> None:
        """Takes some of a chunk; float64, of equal shapes."""
        count = min(golden.numel(), LOOKED_AT)
        turns = torch.arange(count, dtype=torch.float64) * _TURN % 1.0
        at = (turns * golden.numel()).long() if count < golden.numel() else torch.arange(count)
        at = at.to(golden.device)
        self.kept.append((golden.flatten()[at], port_error.flatten()[at], reference_error.flatten()[at]))

    def finish(self) -> Sample | None:
        """None where a value of golden or of the reference is not finite, or golden is zero."""
        golden, port, reference = (torch.cat(parts).abs().cpu() for parts in zip(*self.kept, strict=True))
        rms = float(golden.square().mean().sqrt())
        if not math.isfinite(rms) or rms == 0.0 or not bool(reference.isfinite().all()):
            return None
        step = max(1, len(golden) // SHOWN)
        x, of_port, of_reference = (_rounded(each[::step][:SHOWN]) for each in (golden, port, reference))
        return Sample(x, of_port, of_reference, EDGES, _counts(port / rms), _counts(reference / rms))


def _rounded(values: Tensor) -> tuple[float, ...]:
    return tuple(float(f"{value:.4g}") for value in values.tolist())


def _counts(relative: Tensor) -> tuple[int, ...]:
    """How many lie in each bin; what is past an end, in that at the end."""
    logs = relative.nan_to_num(nan=math.inf).log10().clamp(EDGES[0], EDGES[-1])
    places = ((logs - EDGES[0]) / (EDGES[1] - EDGES[0])).floor().long().clamp(max=len(EDGES) - 2)
    return tuple(torch.bincount(places, minlength=len(EDGES) - 1).tolist())
