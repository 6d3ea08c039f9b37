"""One gradient of three sides, judged; a parameter's a block of rows at a time."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from porter.comparison.measure import Tally
from porter.comparison.names import GRADIENT, StageName, kind_of
from porter.comparison.report import NodeDiff, Verdict

STAGE: StageName = "gradients"
_ELEMENTS = 2**22  # of a parameter that are measured at once: 32 MiB in float64


class ParameterTally:
    """A parameter's gradient, as stored; `add` takes it whole, or a chunk of rows at a time."""

    def __init__(self, name: str, dtype: str, least: float = 0.0) -> None:
        self.tally = Tally(GRADIENT + name, STAGE, dtype, of_node=True, least=least)
        self.length, self.rest = 0, torch.Size()

    def add(self, port: Tensor, reference: Tensor, golden: Tensor, rows_N: Tensor | None = None) -> None:
        """Adds a chunk; rows_N: which rows these are, if they do not follow those before."""
        count = len(port) if port.ndim > 1 else 1
        if rows_N is None:
            rows_N = torch.arange(self.length, self.length + count)
        self.length, self.rest = self.length + len(port), port.shape[1:]
        sides = [side.reshape(1, count, -1) for side in (port, reference, golden)]
        step = max(1, _ELEMENTS // sides[0].shape[2])
        for start in range(0, count, step):
            rows = slice(start, start + step)
            self.tally.add(sides[0][:, rows], sides[1][:, rows], sides[2][:, rows], None, rows_N[rows])

    def finish(self) -> NodeDiff:
        node = self.tally.finish()
        worst = node.worst and replace(node.worst, at=node.worst.at[-1 - len(self.rest) :])
        return replace(node, shape=(self.length, *self.rest), worst=worst)


def measure_node(
    name: str,
    dtype: str,
    port: Tensor | None,
    reference: Tensor | None,
    golden: Tensor | None,
    *,
    elsewhere: Sequence[Tensor] = (),
) -> NodeDiff:
    """The gradient of a node, [B, T, ...].

    Args:
        elsewhere: squares of the reference's error where its input was rounded otherwise, as square_errors gives them.
    """
    if port is None or reference is None or golden is None:
        return _one_sided(name, dtype, port, reference)
    tally = Tally(GRADIENT + name, STAGE, dtype, of_node=True)
    tally.elsewhere = list(elsewhere)
    tally.add(port, reference, golden, None)
    return tally.finish()


def measure_parameter(
    name: str,
    dtype: str,
    port: Tensor | None,
    reference: Tensor | None,
    golden: Tensor | None,
    *,
    rows_N: Tensor | None = None,
    least: float = 0.0,
    elsewhere: Sequence[Tensor] = (),
) -> NodeDiff:
    """The gradient of a parameter, of any shape.

    Args:
        elsewhere: as of measure_node.
        rows_N: which rows of it these are; None: all.
        least: errors are relative to no smaller norm than this one.
    """
    if port is None or reference is None or golden is None:
        return _one_sided(name, dtype, port, reference)
    tally = ParameterTally(name, dtype, least)
    tally.tally.elsewhere = list(elsewhere)
    tally.add(port, reference, golden, rows_N)
    return tally.finish()


def square_errors(value: Tensor, golden: Tensor, *, of_parameter: bool) -> Tensor:
    """[F]: the sum of squares of value - golden in each channel, a block of rows at a time.

    Args:
        of_parameter: [F] or [N, ...], as ParameterTally takes them; else a node, [B, T, ...].
    """
    count = (len(value) if value.ndim > 1 else 1) if of_parameter else value.shape[0] * value.shape[1]
    rows, wide_rows = (each.reshape(count, -1) for each in (value, golden))
    step = max(1, _ELEMENTS // rows.shape[1])
    parts = zip(torch.split(rows, step), torch.split(wide_rows, step), strict=True)
    return torch.stack([(part.double() - wide.double()).square().sum(0) for part, wide in parts]).sum(0)


def of_share(node: NodeDiff) -> NodeDiff:
    """A node of a tied embedding, which says that it is one of two shares of the parameter's gradient."""
    own, other = ("head", "lookup") if node.name.endswith("#head") else ("lookup", "head")
    said = f"(tied: the share of the {own}; that of the {other} is compared apart)"
    return replace(node, reason=f"{node.reason} {said}".strip())


def not_compared(name: str, dtype: str, value: Tensor | None, why: str) -> NodeDiff:
    """A gradient that the reference does not show."""
    return _record(name, dtype, value, "NOT_COMPARED", why)


def _one_sided(name: str, dtype: str, port: Tensor | None, reference: Tensor | None) -> NodeDiff:
    """No gradient on a side: as good as zeros, and a fault where the other side has more."""
    held = reference if port is None else port
    if held is None or not bool(held.any()):
        return _record(name, dtype, held, "PASS", "no gradient on either side")
    with_it, without = ("reference", "port") if port is None else ("port", "reference")
    return _record(name, dtype, held, "FAIL", f"no gradient in the {without}, one in the {with_it}")


def _record(name: str, dtype: str, value: Tensor | None, status: Verdict, reason: str) -> NodeDiff:
    kind = kind_of(name)
    status = "WARN" if status == "FAIL" and kind == "gauge" else status
    shape = () if value is None else tuple(value.shape)
    return NodeDiff(GRADIENT + name, kind, STAGE, dtype, shape, status, reason)
