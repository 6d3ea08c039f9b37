"""The families as porter specs list prints them. Reads YAML alone: without pydantic and rich it takes half the time."""

import json

import click

from porter.specs.tree import builtin_spec_names, read_own


def print_families(*, as_json: bool) -> None:
    """A line for each family: its name, model_type and sizes."""
    trees = {name: read_own(name) for name in builtin_spec_names()}
    if as_json:
        rows = [
            {
                "name": name,
                "model_type": tree["model_type"],
                "architecture": tree["architecture"],
                "sizes": {size: values.get("hf") for size, values in tree["sizes"].items()},
            }
            for name, tree in trees.items()
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    click.echo(f"{'family':<10} {'model_type':<12} sizes")
    for name, tree in trees.items():
        click.echo(f"{name:<10} {tree['model_type']:<12} {', '.join(tree['sizes'])}")
