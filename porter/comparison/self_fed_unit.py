"""The nodes of one unit of a comparison with dumps, measured and judged."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from porter.comparison.dump_lane import DumpLane, shaped_as
from porter.comparison.lanes import Lane, Nodes
from porter.comparison.measure import Tally, measure_propagated
from porter.comparison.names import StageName, full_name, kind_of
from porter.comparison.report import NodeDiff
from porter.comparison.verdicts import self_fed_limits
from porter.errors import closest

_ROWS = 16  # tokens of a vocabulary that are measured at once
_WIDE = 2**16  # values a token from which they are


@dataclass(frozen=True)
class Unit:
    """What each side has in one unit; nodes of a layer without layers.{i}.

    Attributes:
        golden: on the port's input; `other` is golden on the reference's, the same object where the two are one.
        hf: HuggingFace in the dtype, on the reference's input.
        at: the tokens, where these are not 0, 1, 2, …
        curve: node -> (port, reference, golden), each on its own hidden states.
    """

    name: str
    port: Nodes
    reference: Nodes
    golden: Nodes
    other: Nodes
    hf: Nodes
    at: Tensor | None = None
    curve: Mapping[str, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Judge:
    """How the nodes of a stage are judged."""

    stage: StageName
    dtype: str
    port: Lane
    reference: Lane
    apart: bool

    def nodes(self, unit: Unit) -> Iterator[NodeDiff]:
        """Every node that golden or the port shows, in golden's order.

        Raises:
            ArtifactError: a dump's node has another shape than golden's.
        """
        for node in [*unit.golden, *(each for each in unit.port if each not in unit.golden)]:
            reason = _why_not(node, unit)
            if reason:
                like = unit.golden[node] if node in unit.golden else unit.port[node]
                yield self.not_compared(full_name(unit.name, node), like, reason)
            else:
                yield self._compared(node, unit)

    def not_compared(self, name: str, like: Tensor, reason: str) -> NodeDiff:
        return NodeDiff(
            name=name, kind=kind_of(name), stage=self.stage, dtype=self.dtype, shape=tuple(like.shape),
            status="NOT_COMPARED", reason=reason,
        )  # fmt: skip

    def _compared(self, node: str, unit: Unit) -> NodeDiff:
        name, golden, other = full_name(unit.name, node), unit.golden[node], unit.other[node]
        port = shaped_as(self.port, name, unit.port[node], golden)
        reference = shaped_as(self.reference, name, unit.reference[node], golden)
        found = self._tally(name, (port, reference, golden, other), unit.at, apart=self.apart)
        if node in unit.curve:
            found = replace(found, propagated=measure_propagated(*unit.curve[node]))
        if not isinstance(self.reference, DumpLane) or node not in unit.hf:
            return found
        own = self._tally(name, (reference, unit.hf[node], other, other), unit.at, apart=False)
        if own.status != "FAIL":
            return found
        why = f"the reference’s dump itself parts from HuggingFace here: {own.reason}"
        return replace(found, status="INCONCLUSIVE", reason=why)

    def _tally(self, name: str, values: tuple[Tensor, ...], at: Tensor | None, *, apart: bool) -> NodeDiff:
        """The node, a few tokens at a time where each has a vocabulary."""
        limits = self_fed_limits(self.stage, self.dtype, apart=apart)
        tally = Tally(name, self.stage, self.dtype, limits=limits, sampled=True)
        length = values[0].shape[1]
        at = torch.arange(length) if at is None else at
        step = _ROWS if values[0][0, 0].numel() >= _WIDE else length
        for start in range(0, length, step):
            rows = slice(start, start + step)
            port, reference, golden, other = (value[:, rows] for value in values)
            elsewhere = None if values[2] is values[3] else other
            tally.add(port, reference, golden, None, at[rows], reference_golden=elsewhere)
        return tally.finish()


def _why_not(node: str, unit: Unit) -> str:
    if node not in unit.golden:
        hint = closest(node, unit.golden)
        return f"the reference has no such node{f'; {hint}' if hint.startswith('did') else ''}"
    missing = next((what for what in ("port", "reference") if node not in getattr(unit, what)), None)
    return f"the {missing} does not show it" if missing else ""
