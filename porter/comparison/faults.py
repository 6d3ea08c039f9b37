"""Known faults of a port, each acting in one unit: what a diff is asked whether it could see them."""

from collections.abc import Container
from dataclasses import dataclass

from porter.specs.axes import changes
from porter.specs.blueprint import Blueprint


@dataclass(frozen=True)
class Fault:
    """One mistake.

    Attributes:
        path: the axis that is changed.
        value, tried: its value in the port's spec, and the one instead.
        unit: where it acts: embed, layers.3 or head.
        blueprint: the port's with the fault.
        rounding: it changes rounding alone, so float32 cannot show it.
    """

    path: str
    value: str
    tried: str
    unit: str
    blueprint: Blueprint
    rounding: bool


def axis_faults(blueprint: Blueprint, among: Container[int] | None = None) -> list[Fault]:
    """Each axis of the blueprint changed; see `changes`."""
    return [
        Fault(each.path, _short(each.value), _short(each.tried), each.unit, each.blueprint, each.rounding)
        for each in changes(blueprint, among)
    ]


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
