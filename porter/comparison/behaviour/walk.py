"""The sides in lock-step through the layers, and how far each route is from its base after each of them.

    floor    the reference from golden, in one forward pass: what rounding costs
    apart    a side's route from the same side's base: what the route costs
    across   the port's route from the reference's

Each is the relative error of the worst token. A port may be as far apart as the larger of the floor and what the
reference is itself; and as far across as the larger of the floor and what port and reference are in one forward pass.
Where the route makes the reference another function (OPT does not keep documents apart), a port is right if the route
costs it rounding alone, or if it is as the reference is.
What a cache holds is compared with what attention computed (apart) and with HF's cache (across).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from porter.comparison.behaviour.lanes import HfRoutes, Passed, PortRoutes, RouteLane, Streams
from porter.comparison.behaviour.routes import WHOLE, Piece, Route
from porter.comparison.verdicts import FLOORS, UNDECIDABLE
from porter.models.matmul import widened_once

ANOTHER = 100  # floors that a reference's route is from its base when it is not rounding, but another function
STREAM = "resid_post"
CACHE = "cache"


@dataclass(frozen=True)
class Sides:
    """Who goes through the layers."""

    port: PortRoutes
    reference: HfRoutes
    golden: HfRoutes


@dataclass(frozen=True)
class Reading:
    """One tensor of some tokens of one route.

    Attributes:
        check: the route's; CACHE for what its cache holds.
        node: layers.3.resid_post, layers.3.keys, layers.3.values.
        row, slot: the worst token.
        apart, across: relative error of the worst token, in units of what it may be; see above.
        error: that relative error itself, of the worse of the two.
        reference_apart: how far the reference's route is from its base, in floors.
        decidable: the reference's own errors are small enough to judge by.
        prompt: whose token it is; None: the longest prompt's.
    """

    check: str
    route: str
    node: str
    row: int
    slot: int
    apart: float
    across: float
    error: float
    reference_apart: float
    decidable: bool
    prompt: int | None = None

    @property
    def ratio(self) -> float:
        return max(self.apart, self.across)


def walk(
    dtype: str,
    sides: Sides,
    routes: Sequence[Route],
    num_layers: int,
    advance: Callable[[str], None] = lambda unit: None,
) -> tuple[list[Reading], dict[str, dict[str, Streams]]]:
    """Takes all routes through all layers, one layer of each side in memory at a time.

    Returns:
        What was read after each layer; and the streams at the end, by side and route.
    """
    readings: list[Reading] = []
    lanes: dict[str, RouteLane] = {"port": sides.port, "reference": sides.reference, "golden": sides.golden}
    streams = {
        side: {route.name: lane.start(route) for route in routes if side in route.sides} for side, lane in lanes.items()
    }
    for lane in lanes.values():
        lane.release()
    for index in range(num_layers):
        here = [route for route in routes if route.goes_through(index)]
        passed: dict[str, dict[str, Passed]] = {}
        with widened_once():
            for side, lane in lanes.items():
                taken = [route for route in here if side in route.sides]
                passed[side] = {route.name: lane.layer(index, route, streams[side][route.name]) for route in taken}
                streams[side].update({name: each.streams for name, each in passed[side].items()})
        for lane in lanes.values():
            lane.release()
        readings += _Layer(dtype, index, passed).read(here)
        advance(f"layers.{index}")
    return readings, streams


@dataclass(frozen=True)
class _Rows:
    """A tensor of one route on one side: [B, S, F], whose first row is slot `first`."""

    values: Tensor
    first: int

    def cut(self, row: int, slots: slice) -> Tensor:
        return self.values[row, slots.start - self.first : slots.stop - self.first]


@dataclass(frozen=True)
class _Layer:
    """All sides and routes after one layer."""

    dtype: str
    index: int
    passed: Mapping[str, Mapping[str, Passed]]  # side -> route
    floors: dict[tuple[str, str], float] = field(default_factory=dict)  # base, node -> the reference from golden

    def read(self, routes: Sequence[Route]) -> Iterator[Reading]:
        for route in routes:
            held = tuple(self.passed["reference"][route.name].held) if "reference" in route.sides else ()
            if route.documents_BS is None and "port" in route.sides:
                yield from (self._read_cache(route, node) for node in held)
            for piece in route.pieces:
                for node in (STREAM, *held):
                    yield from self._read_piece(route, piece, node)

    def _rows(self, side: str, route: str, node: str) -> _Rows:
        passed = self.passed[side][route]
        stream_BSD = torch.cat(passed.streams, dim=1)
        value = stream_BSD if node == STREAM else passed.held[node].flatten(2)
        return _Rows(value, stream_BSD.shape[1] - value.shape[1])

    def _floor(self, base: str, node: str) -> float:
        """What rounding costs a base in one forward pass; where golden did not take it, what it costs `whole`."""
        key = (base if base in self.passed["golden"] else WHOLE, node)
        if key not in self.floors:
            reference, golden = (self._rows(side, *key) for side in ("reference", "golden"))
            self.floors[key] = max(worst_token(reference.values[0], golden.values[0])[0], FLOORS[self.dtype])
        return self.floors[key]

    def _read_piece(self, route: Route, piece: Piece, node: str) -> Iterator[Reading]:
        sides = ("port", "reference")
        routes = [self._rows(side, route.name, node) for side in sides]
        bases = [self._rows(side, piece.base, node) for side in sides]
        lost = max(each.first - piece.slots.start for each in routes)  # HF keeps the last slots alone of a window
        lost = max(0, lost, *(each.first - piece.base_slots.start for each in bases))
        slots = slice(piece.slots.start + lost, piece.slots.stop)
        base_slots = slice(piece.base_slots.start + lost, piece.base_slots.stop)
        if slots.start >= slots.stop:
            return
        port, reference = (each.cut(piece.row, slots) for each in routes)
        port_base, reference_base = (each.cut(0, base_slots) for each in bases)
        floor = self._floor(piece.base, node)
        reference_apart, _ = worst_token(reference, reference_base)
        before, _ = worst_token(port_base, reference_base)
        apart = _Worst(*worst_token(port, port_base), max(floor, reference_apart))
        across = _Worst(*worst_token(port, reference), max(floor, before))
        if reference_apart > ANOTHER * floor:
            own = _Worst(apart.error, apart.at, floor)
            apart = across = min(own, across, key=lambda each: each.ratio)
        where = (piece.row, slots.start, piece.prompt)
        yield self._reading(route.check, route, node, where, apart, across, floor, reference_apart)

    def _read_cache(self, route: Route, node: str) -> Reading:
        held, theirs = (self._rows(side, route.name, node) for side in ("port", "reference"))
        computed = self.passed["port"][route.name].computed[node].flatten(2)[0]
        base = next((piece.base for piece in route.pieces), route.name)
        floor, first = self._floor(base, node), max(held.first, theirs.first)
        slots = slice(first, len(computed))
        own, reference = (each.cut(0, slots) for each in (held, theirs))
        before, _ = worst_token(computed[first:], reference)
        apart = _Worst(*worst_token(own, computed[first:]), floor)
        across = _Worst(*worst_token(own, reference), max(floor, before))
        return self._reading(CACHE, route, node, (0, first, route.prompt), apart, across, floor, 0.0)

    def _reading(
        self, check: str, route: Route, node: str, start: tuple[int, int, int | None], apart: "_Worst",
        across: "_Worst", floor: float, reference_apart: float,
    ) -> Reading:  # fmt: skip
        worse = across if across.ratio > apart.ratio else apart
        return Reading(
            check=check, route=route.check, node=f"layers.{self.index}.{node}", row=start[0], slot=start[1] + worse.at,
            apart=apart.ratio, across=across.ratio, error=worse.error, reference_apart=reference_apart / floor,
            decidable=floor <= UNDECIDABLE and math.isfinite(apart.allowed + across.allowed), prompt=start[2],
        )  # fmt: skip


@dataclass(frozen=True)
class _Worst:
    """The relative error of the worst token, which token it is, and what the error may be."""

    error: float
    at: int
    allowed: float

    @property
    def ratio(self) -> float:
        return self.error / self.allowed


def worst_token(value_SF: Tensor, truth_SF: Tensor) -> tuple[float, int]:
    """The largest relative error of a row, and where; infinite where the value alone is not finite."""
    if torch.equal(value_SF, truth_SF):
        return 0.0, 0
    value64_SF, truth64_SF = value_SF.double().flatten(1), truth_SF.double().flatten(1)
    size_S = truth64_SF.norm(dim=1)
    error_S = (value64_SF - truth64_SF).norm(dim=1) / size_S.clamp_min(torch.finfo(torch.float64).tiny)
    error_S = error_S.nan_to_num(nan=math.inf, posinf=math.inf)
    error_S[~size_S.isfinite()] = 0.0  # nothing to compare with
    at = int(error_S.argmax())
    return float(error_S[at]), at
