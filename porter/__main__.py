"""python -m porter is the porter command."""

from porter.cli.main import cli

cli(prog_name="porter")
