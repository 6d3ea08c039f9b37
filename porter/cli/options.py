"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])


class _Place(click.Path):
    """A path; an empty one, as a variable that is not set leaves it, is none and not the folder porter runs in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


PLACE = _Place(path_type=Path)
DTYPES = click.Choice(["bfloat16", "float16", "float32"])


def build_options(command: F) -> F:
    """Which spec, weights, dtype and ops: on build, and on diff over the build's record."""
    options = [
        click.option("--size", help="Size of a family, or the path of its YAML."),
        click.option(
            "--weights", help="Hub id, folder, .gguf, demo, random or random:stress.  [default: the size's hub id]"
        ),
        click.option(
            "--set", "overrides", multiple=True, metavar="AXIS=VALUE", help="Change one axis of the port's spec."
        ),
        click.option("--dtype", type=DTYPES, help="Dtype of the port.  [default: bfloat16]"),
        click.option(
            "--ops",
            type=click.Choice(["auto", "reference", "triton"]),
            help="Plain torch, or fused; auto: fused on a GPU.  [default: auto]",
        ),
        click.option("--device", help="cpu, cuda, or auto.  [default: auto]"),
        click.option(
            "--prompt", help="Text, or the path of a text file.  [default: 640 tokens of Alice in Wonderland]"
        ),
        click.option("--tokens", type=int, help="Cut the prompt to so many tokens."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def summary_options(command: F) -> F:
    """What CI services read: junit_path, github_path."""
    options = [
        click.option("--junit", "junit_path", type=PLACE, metavar="FILE", help="Write JUnit XML there, a case a node."),
        click.option(
            "--github-summary", "github_path", type=PLACE, metavar="FILE",
            help='Append markdown there: "$GITHUB_STEP_SUMMARY".',
        ),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def report_options(command: F) -> F:
    """Where a report is written: out, json_path, html_path."""
    options = [
        click.option(
            "--out", type=PLACE, default=Path("diff_reports"), show_default=True,
            help="Folder the report is written to.",
        ),
        click.option(
            "--json", "json_path", metavar="PATH", help="Write the JSON there too; - prints it alone on stdout."
        ),
        click.option("--html", "html_path", type=PLACE, metavar="PATH", help="Write the page there too."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command
