"""Other values that the axes of a resolved spec might have: the right one, when the spec's is wrong.

Closed axes give each other value. Numbers give the constants that models use, and what the config says of them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from porter.specs.axis_values import field_of
from porter.specs.expressions import Config, evaluate
from porter.specs.keys import members
from porter.specs.kinds import ACTIVATION_TENSORS
from porter.specs.overrides import axis_paths, keys_of
from porter.specs.resolve import Resolved
from porter.specs.scalings import other_scalings
from porter.specs.schema import Dims

Section = Literal["embed", "layer", "head"]  # where an axis acts
_SECTIONS = {"embed": ("embed", "norm"), "head": ("head", "norm"), "layer": ("norm", "block", "patterns", "weights")}
_CONFIG_KEYS = {  # axis -> parts of the names that config keys have for it
    "eps": ("eps",), "theta": ("theta", "base"), "window": ("window",), "softcap": ("softcap",), "clip_qkv": ("clip",),
    "beta": ("beta",), "base": ("original_max",),
    "partial": ("partial", "rotary_pct"), "scale": ("scal", "multiplier"), "residual_scale": ("residual",),
    "mul": ("logit",), "div": ("logit",), "by": ("pattern",), "top_k": ("per_tok", "topk", "top_k"),
    "limit": ("limit",), "alpha": ("alpha",), "n": ("n_group",), "top": ("topk_group",),
}  # fmt: skip
_CONSTANTS: dict[str, tuple[float, ...]] = {
    "eps": (1e-5, 1e-6, 1e-8, 1e-12), "theta": (1e4, 5e5, 1e6), "partial": (0.25, 0.4, 0.5, 0.75, 1.0),
    "residual_scale": (1.0,), "mul": (1.0,), "div": (1.0,), "softcap": (20.0, 30.0, 50.0),
}  # fmt: skip
_STARTS = {"softcap": 32.0, "clip_qkv": 8.0, "scale": 8.0}
_WHEN = ("before_rope", "after_rope")
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
    resolved: Resolved, layer: int | None, section: Section, alike: Collection[int] = (), *, alone: bool = False
) -> Iterator[Alternative]:
    """Every other value of every axis that acts in a unit.

    Args:
        layer: the layer whose axes are meant; None: of the embedding or the head.
        alike: layers of the kind of that one, whose case of a pattern is likely to be wrong too.
        alone: changes of that layer alone too, which a spec rarely has and a port may.
    """
    for path in axis_paths(resolved.family.tree):
        keys = keys_of(path)
        if keys[0] not in _SECTIONS[section]:
            continue
        if keys[0] == "patterns" and keys[-1] == "by":
            if layer is not None:
                yield from _other_patterns(resolved, keys[1], layer, alike)
            continue
        found, value = _in_force(resolved, keys, layer)
        if not found:
            continue
        places = [path]
        own = alone or any(each.path.startswith(f"layers[{layer}].") for each in resolved.overrides)
        if keys[0] == "block" and layer is not None and own:
            places.append(f"layers[{layer}].{'.'.join(keys[1:])}")
        others = _others(keys, value, resolved)
        for other in (*others, *_of_a_port(keys[-1], value)) if alone else others:
            if other != value_text(value):
                yield from (Alternative(place, value_text(value), other) for place in places)


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


def _of_a_port(name: str, value: Any) -> Iterator[str]:
    """Values that no config has and a port may: its scaling is wrong in a part, its window any round number."""
    if name == "window":
        yield from (str(2**power) for power in range(4, 14))
    elif name == "scaling" and value is not None:
        given = value.model_dump(exclude_none=True, exclude_defaults=True) if hasattr(value, "model_dump") else value
        yield from map(value_text, other_scalings(given))


def _others(keys: list[str], value: Any, resolved: Resolved) -> Iterator[str]:
    name = keys[-1]
    if name == "order" and keys[0] == "weights":  # a router has an order, too
        yield from (value_text(each) for each in permutations(value))
        return
    if name == "scaling":
        yield from ("null", _SCALING)
        return
    kinds = members(field_of(keys).annotation)
    if NoneType in kinds and value is not None:
        yield "null"
    if value is None and name == "rope":
        yield from _rotations(resolved)
    if value is None and name == "qk_norm":
        yield from (f"{{over: {over}, when: {when}}}" for over in ("head", "full") for when in _WHEN)
    for kind in kinds:
        if get_origin(kind) is Literal:
            known = [each for each in get_args(kind) if each not in ACTIVATION_TENSORS]  # which a checkpoint lacks
            yield from map(value_text, known)
        elif kind is bool:
            yield from ("true", "false")
    if int in kinds or float in kinds:
        whole = float not in kinds
        values = [each for each in _numbers(name, value, resolved) if not whole or each == int(each)]
        yield from dict.fromkeys(value_text(int(each) if whole else float(each)) for each in values)


def numbers_in_force(
    resolved: Resolved, layer: int | None, section: Section, *, alone: bool = False
) -> Iterator[tuple[str, float | None, float]]:
    """The continuous axes that act in a unit, whose right value may be any number: path, value, where to start from.

    Args:
        alone: those that are not in force, too, which a port may have.
    """
    for path in axis_paths(resolved.family.tree):
        keys = keys_of(path)
        if keys[0] in _SECTIONS[section] and keys[0] != "weights" and keys[-1] != "by":
            found, value = _in_force(resolved, keys, layer)
            if not found or float not in members(field_of(keys).annotation):
                continue
            if isinstance(value, float) and value > 0:
                yield path, value, value
            elif alone and value is None and keys[-1] in _STARTS:
                yield path, None, _STARTS[keys[-1]]


def other_dims(resolved: Resolved, sizes: Iterable[int]) -> Iterator[Alternative]:
    """Other values of the dims: whole numbers of the config, and the sizes that a checkpoint's tensors have."""
    dims, config = resolved.blueprint.dims, resolved.config
    numbers = [each for each in config.values() if isinstance(each, int) and not isinstance(each, bool) and each > 0]
    for name in type(dims).model_fields:
        value = getattr(dims, name)
        if isinstance(value, int):
            for other in dict.fromkeys((*numbers, dims.hidden // dims.heads, *sorted(sizes))):
                if other != value:
                    yield Alternative(f"dims.{name}", str(value), str(other))


def _other_patterns(resolved: Resolved, name: str, layer: int, alike: Collection[int]) -> Iterator[Alternative]:
    """Other orders of a pattern's cases that leave the layers before `layer` as they are, and change that one.

    First those that change the layers alike with it, too: what the config lists, then regular orders. Last the order
    in force with this layer alone changed.
    """
    cases, now = resolved.family.tree["patterns"][name]["cases"], resolved.cases[name]
    periods = [int(each) for each in _of_config("by", resolved.config) if each == int(each) and each > 1]
    regular = [f"=every({n}, layers, {one!r}, {other!r})" for n in dict.fromkeys((*periods, *range(2, 9)))
               for one, other in permutations(cases, 2)]  # fmt: skip
    regular += [f"=head({layer}, layers, {one!r}, {other!r})" for one, other in permutations(cases, 2)]
    listed = ["=cfg.layer_types"] if isinstance(resolved.config.get("layer_types"), list) else []
    orders = {text: _cases_of(text, resolved)
              for text in (*listed, *regular, *(f"=const({case!r}, layers)" for case in cases))}  # fmt: skip
    orders |= {value_text(order): order for case in cases if (order := (*now[:layer], case, *now[layer + 1 :]))}
    changed = {
        text: sum(order[each] != now[each] for each in alike) for text, order in orders.items()
        if len(order) == len(now) and order[:layer] == now[:layer] and order[layer] != now[layer]
    }  # fmt: skip
    for text in sorted(changed, key=lambda each: -changed[each]):
        yield Alternative(f"patterns.{name}.by", f"{now[layer]} in layer {layer}", text)


def _cases_of(text: str, resolved: Resolved) -> tuple[Any, ...]:
    names = {"cfg": Config(resolved.config), "layers": resolved.blueprint.dims.layers}
    return tuple(evaluate(text, names, text))


def _rotations(resolved: Resolved) -> Iterator[str]:
    """Rotations for a layer that has none: what other layers have, else plain ones by each theta."""
    others = dict.fromkeys(block.rope for block in resolved.blueprint.blocks if block.rope)
    yield from (value_text(rope.model_dump(exclude_defaults=True, exclude_none=True)) for rope in others)
    scaling = f', scaling: "{_SCALING}"'
    thetas = dict.fromkeys((*_of_config("theta", resolved.config), *_CONSTANTS["theta"]))
    for more in (scaling, "") if _has_scaling(resolved.config) else ("",):
        yield from (f"{{theta: {float(theta)}{more}}}" for theta in thetas)


def _has_scaling(config: Mapping[str, Any]) -> bool:
    return bool(config.get("rope_scaling") or config.get("rope_parameters"))


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


def value_text(value: Any) -> str:
    """A value as --set and YAML take it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {value_text(each)}' for key, each in value.items())}}}"
    if isinstance(value, int | float | str):
        return str(value)
    return "a map"


def _quoted(text: str) -> str:
    return f'"{text}"' if text.startswith("=") else text
