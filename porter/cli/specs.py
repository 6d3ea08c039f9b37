"""porter specs: the families porter knows, what each does, and whether a family file is right."""

import click

from porter.cli.spec_axes import axes
from porter.cli.spec_comparisons import diff, exact
from porter.cli.spec_draft import draft
from porter.cli.spec_table import table


@click.group()
def specs() -> None:
    """The model specs: list, show, compare, check, and prove exact."""


@specs.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_specs(as_json: bool) -> None:
    """Every family that comes with porter, and its sizes."""
    from porter.cli.spec_list import print_families

    print_families(as_json=as_json)


@specs.command()
@click.argument("name")
@click.option("--size", help="Size of a family.")
@click.option("--set", "overrides", multiple=True, metavar="AXIS=VALUE", help="Change one axis, as in porter build.")
@click.option("--axes", is_flag=True, help="Every axis with its value in force and the values it may have.")
@click.option("--json", "as_json", is_flag=True, help="Print the blueprint as JSON.")
def show(name: str, size: str | None, overrides: tuple[str, ...], axes: bool, as_json: bool) -> None:
    """Show conventions, parameters and layers. NAME is a family, a size (gemma-7b), or the path of a spec file."""
    from porter.cli.spec_views import print_axes, print_blueprint, print_model
    from porter.specs.family import find_model
    from porter.specs.overrides import parse_override
    from porter.specs.resolve import resolve_size

    family, found = find_model(name, size)
    parsed = [parse_override(text, family.tree) for text in overrides]
    resolved = resolve_size(family, found or family.default_size, parsed)
    if as_json:
        print_blueprint(resolved)
        return
    print_model(resolved, found)
    if axes:
        print_axes(resolved)


@specs.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--hf/--no-hf", default=True, help="Compare with HuggingFace's classes, too.  [default: hf]")
def check(names: tuple[str, ...], hf: bool) -> None:
    """Audit spec files: NAMES are families, sizes or paths. Exit 2 names the file and line of what is wrong.

    Against HuggingFace, at the size tiny: config keys that nothing reads, what absent and null keys mean, tensors that
    are saved and not read or read and not saved.
    """
    from porter.cli.check_views import print_check

    for name in names:
        print_check(name, hf=hf)


specs.add_command(exact)
specs.add_command(diff)
specs.add_command(draft)
specs.add_command(table)
specs.add_command(axes)
