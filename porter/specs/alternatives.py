"""Other values that the axes of a resolved spec might have: the right one, when the spec's is wrong.

Closed axes give each other value. Numbers give the constants that models use, and what the config says of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from porter.specs.axis_values import field_of
from porter.specs.keys import members
from porter.specs.overrides import axis_paths, keys_of
from porter.specs.resolve import Resolved
from porter.specs.schema import Dims

_SECTIONS = {"embed": ("embed", "norm"), "head": ("head", "norm"), "layer": ("norm", "block", "patterns", "weights")}
_CONFIG_KEYS = {  # axis -> parts of the names that config keys have for it
    "eps": ("eps",), "theta": ("theta", "base"), "window": ("window",), "softcap": ("softcap",), "clip_qkv": ("clip",),
    "partial": ("partial", "rotary_pct"), "scale": ("scal", "multiplier"), "residual_scale": ("residual",),
    "mul": ("logit",), "div": ("logit",),
}  # fmt: skip
_CONSTANTS: dict[str, tuple[float, ...]] = {
    "eps": (1e-5, 1e-6, 1e-8, 1e-12), "theta": (1e4, 5e5, 1e6), "partial": (0.25, 0.4, 0.5, 0.75, 1.0),
    "residual_scale": (1.0,), "mul": (1.0,), "div": (1.0,), "softcap": (20.0, 30.0, 50.0),
}  # fmt: skip
_SCALING = "=first(cfg.rope_parameters, cfg.rope_scaling)"


@dataclass(frozen=True)
class Alternative:
    """One axis with another value.

    Attributes:
        path: as --set takes it.
        value: in force, as YAML has it.
        other: the value instead, as YAML has it.
    """

    path: str
    value: str
    other: str

    @property
    def override(self) -> str:
        """axis=value, for --set."""
        return f"{self.path}={self.other}"

    @property
    def patch(self) -> str:
        """The lines of the family's YAML that set it; of a single layer there are none, and the path stands there."""
        if self.path.startswith("layers["):
            return f"{self.path}: {self.other}"
        lines = [f"{'  ' * depth}{key}:" for depth, key in enumerate(keys_of(self.path))]
        return "\n".join(lines) + f" {_quoted(self.other)}"


def alternatives(
    resolved: Resolved, layer: int | None, section: Literal["embed", "layer", "head"]
) -> Iterator[Alternative]:
    """Every other value of every axis that acts in a unit.

    Args:
        layer: the layer whose axes are meant; None: of the embedding or the head.
    """
    for path in axis_paths(resolved.family.tree):
        keys = keys_of(path)
        if keys[0] not in _SECTIONS[section] or keys[-1] == "by":
            continue
        found, value = _in_force(resolved, keys, layer)
        if not found:
            continue
        places = [path]
        if keys[0] == "block" and any(each.path.startswith(f"layers[{layer}].") for each in resolved.overrides):
            places.append(f"layers[{layer}].{'.'.join(keys[1:])}")
        for other in _others(keys, value, resolved):
            if other != _text(value):
                yield from (Alternative(place, _text(value), other) for place in places)


def _in_force(resolved: Resolved, keys: list[str], layer: int | None) -> tuple[bool, Any]:
    """Whether the axis is in the unit, and its value."""
    node: Any = resolved.blueprint
    if keys[0] == "weights":
        rule = resolved.blueprint.weights.block.get(keys[2])
        return rule is not None, getattr(rule, keys[3], None)
    if keys[0] == "patterns":
        if layer is None or resolved.cases[keys[1]][layer] != keys[3]:
            return False, None
        keys = ["block", *keys[4:]]
    if keys[0] == "block":
        assert layer is not None
        node, keys = resolved.blueprint.blocks[layer], keys[1:]
    for key in keys:
        if node is None:
            return False, None
        node = getattr(node, key)
    return True, node


def _others(keys: list[str], value: Any, resolved: Resolved) -> Iterator[str]:
    name = keys[-1]
    if name == "order":
        yield from (_text(each) for each in permutations(value))
        return
    if name == "scaling":
        yield from ("null", _SCALING)
        return
    kinds = members(field_of(keys).annotation)
    if NoneType in kinds and value is not None:
        yield "null"
    for kind in kinds:
        if get_origin(kind) is Literal:
            yield from map(_text, get_args(kind))
        elif kind is bool:
            yield from ("true", "false")
    if int in kinds or float in kinds:
        whole = float not in kinds
        values = [each for each in _numbers(name, value, resolved) if not whole or each == int(each)]
        yield from dict.fromkeys(_text(int(each) if whole else float(each)) for each in values)


def _numbers(name: str, value: Any, resolved: Resolved) -> Iterator[float]:
    dims, given = (
        resolved.blueprint.dims,
        list(_of_config(name, {**resolved.family.tree["config_defaults"], **resolved.config})),
    )
    yield from given
    yield from _CONSTANTS.get(name, ()) if value is not None or name != "softcap" else ()
    if name == "eps":
        yield from (float(f"{value * factor:.6g}") for factor in (10, 0.1))
    elif name == "scale":
        yield from _scales(dims, given)
    elif name == "window" and value is not None:
        yield from (value + 1, value - 1)
    elif name == "pos_offset":
        yield from (0, 1, 2)
    elif name in ("mul", "div", "residual_scale"):
        yield from (1 / each for each in given if each)


def _scales(dims: Dims, given: Iterable[float]) -> Iterator[float]:
    """Factors on scores, and on an embedding."""
    for width in (dims.head_dim, dims.hidden // dims.heads, *(each for each in given if each > 0)):
        yield from (width**-0.5, 1 / width)
    yield from (1.0, dims.hidden**0.5, dims.hidden**-0.5)


def _of_config(name: str, config: Mapping[str, Any]) -> Iterator[float]:
    """The numbers that a config has under a key that sounds like the axis."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _of_config(name, value)
        elif isinstance(value, int | float) and not isinstance(value, bool) and _is_called(name, key):
            yield value


def _is_called(name: str, key: str) -> bool:
    return any(part in key for part in _CONFIG_KEYS.get(name, ()))


def _text(value: Any) -> str:
    """A value as --set and YAML take it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, int | float | str):
        return str(value)
    return "a map"


def _quoted(text: str) -> str:
    return f'"{text}"' if text.startswith("=") else text
