"""What porter specs show prints."""

import json
from collections.abc import Iterator
from itertools import groupby

import click

from porter.specs.axes import first_of_each_kind
from porter.specs.axis_values import axis_values
from porter.specs.blueprint import Blueprint
from porter.specs.conventions import conventions
from porter.specs.resolve import Resolved


def print_blueprint(resolved: Resolved) -> None:
    """The blueprint as JSON, with its hash and number of parameters."""
    blueprint = resolved.blueprint
    about = {"spec_sha256": blueprint.hash, "parameters": blueprint.num_parameters}
    click.echo(json.dumps({**about, **blueprint.model_dump(mode="json")}, indent=2))


def print_model(resolved: Resolved, size: str | None) -> None:
    """Conventions, number of parameters, and which layers differ; for a family without a size, its sizes first."""
    blueprint, family = resolved.blueprint, resolved.family
    shown = size or family.default_size
    click.echo(
        f"{click.style(shown, bold=True)}  {family.name}, {blueprint.architecture}, model_type {blueprint.model_type}"
    )
    if size is None and len(family.tree["sizes"]) > 1:
        click.echo(f"sizes of {family.name}: {', '.join(family.tree['sizes'])}; shown is {shown}, others with --size")
    click.echo(f"{blueprint.num_parameters:,} parameters")
    for topic, text in [*conventions(blueprint), ("layers", layer_summary(blueprint))]:
        click.echo(f"{topic:<10} {text}")
    for override in resolved.overrides:
        click.secho(f"set: {override.text}", fg="yellow")
    click.echo(f"spec sha256 {blueprint.hash[:16]}")


def layer_summary(blueprint: Blueprint) -> str:
    """Which layers are alike: `6: 5 × A, 1 × B; A: window 512, theta 10000; B: theta 1e+06`."""
    kinds = first_of_each_kind(blueprint)
    if len(kinds) == 1:
        return f"{blueprint.dims.layers}, all alike"
    letters = {blueprint.blocks[layer].model_dump_json(): chr(ord("A") + i % 26) for i, layer in enumerate(kinds)}
    row = [letters[block.model_dump_json()] for block in blueprint.blocks]
    runs = [f"{sum(1 for _ in same)} × {letter}" for letter, same in groupby(row)]
    shown = ", ".join(runs[:6]) + (", …" if len(runs) > 6 else "")
    told = [f"{letters[blueprint.blocks[i].model_dump_json()]}: {_differences(blueprint, i, kinds)}" for i in kinds]
    return f"{len(row)}: {shown}; {'; '.join(told)}"


def _differences(blueprint: Blueprint, layer: int, kinds: list[int]) -> str:
    flat = {i: dict(_flat(blueprint.blocks[i].model_dump())) for i in kinds}
    paths = dict.fromkeys(path for each in flat.values() for path in each)
    varies = [path for path in paths if len({str(each.get(path)) for each in flat.values()}) > 1]
    return ", ".join(f"{path} {'null' if (v := flat[layer].get(path)) is None else v}" for path in varies)


def _flat(values: dict[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, f"{value:g}" if isinstance(value, float) else value


def print_axes(resolved: Resolved) -> None:
    """Every axis with its value in force and the values it may have."""
    rows = [("axis", "value", "allowed"), *((row.path, row.value, row.allowed) for row in axis_values(resolved))]
    path, value = (max(len(row[i]) for row in rows) for i in range(2))
    for row in rows:
        click.echo(f"{row[0]:<{path}}  {row[1]:<{value}}  {row[2]}".rstrip())
