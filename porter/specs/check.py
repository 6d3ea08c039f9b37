"""The audit of a family file alone: sizes resolve, each parameter has its own weight rule, every config key is read."""

from collections.abc import Iterator
from dataclasses import dataclass

from porter.errors import PorterError, SpecError
from porter.specs.blueprint import Blueprint
from porter.specs.family import Family
from porter.specs.ledger import layout, rule_for, sources
from porter.specs.resolve import check_config_is_read, resolve_size
from porter.specs.tree import locate


@dataclass(frozen=True)
class SizeCheck:
    """A size that passed."""

    size: str
    layers: int
    parameters: int
    tensors: int


def check_family(family: Family, size: str | None = None) -> Iterator[SizeCheck]:
    """The sizes of a family that pass, one after the other.

    Args:
        size: check this one alone.

    Raises:
        PorterError: a size does not resolve, a parameter has no weight rule, nothing reads a config key, no tiny size.
    """
    if "tiny" not in family.tree["sizes"]:
        raise SpecError(
            f"{locate(family.tree, ('sizes',))}: {family.name} has no size tiny",
            "a size that runs on a CPU in a second; the tests and porter specs exact use it",
            "Add `tiny: {config: {hidden_size: 96, …}}` to sizes, with every option of the family on.",
        )
    for name in family.tree["sizes"] if size is None else (size,):
        yield check_size(family, name)


def check_size(family: Family, name: str) -> SizeCheck:
    """One size, resolved and audited; its place leads every error that has none of its own.

    Raises:
        PorterError: see `check_family`.
    """
    path: tuple[str, ...] = ("sizes", name, "config")
    try:
        resolved = resolve_size(family, name)
        path += resolved.unread[:1]
        check_config_is_read(resolved)
    except PorterError as error:
        wrong = _placed(error.wrong, locate(family.tree, path), family, name)
        raise type(error)(wrong, error.expected, error.fix) from error
    try:
        entries = layout(resolved.blueprint)
    except SpecError as error:
        rules = locate(family.tree, ("weights", "block" if "weights.block" in error.wrong else "globals"))
        raise SpecError(f"{rules}: {error.wrong}, needed by size {name}", error.expected, error.fix) from error
    _check_sources(family, resolved.blueprint)
    blueprint = resolved.blueprint
    return SizeCheck(name, blueprint.dims.layers, blueprint.num_parameters, len(entries))


def _placed(wrong: str, place: object, family: Family, size: str) -> str:
    """An error of one size: at its own line of the family's file, else at the size's line and then its own."""
    return f"{wrong} (size {size})" if wrong.startswith(f"{family.path}:") else f"{place}: size {size}: {wrong}"


def _check_sources(family: Family, blueprint: Blueprint) -> None:
    """Refuses two rules that read one tensor; a tied head has none of its own."""
    seen: dict[str, str] = {}
    for parameter in blueprint.parameters().values():
        _, prefix = rule_for(blueprint, parameter.module)
        section, key = ("block", parameter.module.split(".", 2)[2]) if prefix else ("globals", parameter.module)
        called, source = f"weights.{section}.{key}", sources(blueprint, parameter)[0][0]
        if seen.setdefault(source, called) != called:
            raise SpecError(
                f"{locate(family.tree, ('weights', section, key))}: {called} reads {source}, as {seen[source]} does",
                "each tensor of a checkpoint read by one rule",
                "Correct the path of one; a fused tensor has one rule, attn.qkv or mlp.gate_up, with the order of its parts.",  # noqa: E501
            )
