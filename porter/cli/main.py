"""The porter command: names the subcommands and imports one only when it runs."""

import re
from importlib import import_module

import click

from porter.errors import PorterError, UsageError, closest

# Each is porter/cli/<name>.py with a click command of the same name.
COMMANDS = (
    "bench",
    "build",
    "capture",
    "curves",
    "diff",
    "explain",
    "map",
    "memory",
    "patch",
    "recheck",
    "report",
    "schema",
    "specs",
    "zoo",
)


class _Failure(click.ClickException):
    """A PorterError as click prints it: three lines, and its own exit code."""

    def __init__(self, error: PorterError) -> None:
        super().__init__(str(error))
        self.exit_code = error.exit_code  # type: ignore[misc]  # click declares it on the class


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"porter.cli.{name}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"no command is called {args[0]!r}; {closest(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except PorterError as error:
            raise _Failure(error) from error
        except RuntimeError as error:
            if _was_interrupted(error):
                raise KeyboardInterrupt from None
            if _ran_out_of_memory(error):
                raise _Failure(_out_of_memory(error)) from error
            raise
        except MemoryError as error:
            raise _Failure(_out_of_memory(error)) from error


def _was_interrupted(error: BaseException) -> bool:
    """Whether Ctrl-C is behind an error: torch's modes, interrupted as they change, raise another on their way out."""
    while error.__context__ is not None:
        error = error.__context__
        if isinstance(error, KeyboardInterrupt):
            return True
    return False


def _ran_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch could not allocate: on a GPU that is a class of its own, on a CPU only the message says so."""
    return type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)


def _out_of_memory(error: Exception) -> UsageError:
    """Such a run has judged nothing: its exit code is not that of a divergence."""
    asked = re.search(r"(?i)tried to allocate ([\d.]+ \w+)", str(error))
    wrong = f"this run needs more memory than there is{f': it asked for {asked[1]} more' if asked else ''}"
    return UsageError(wrong, "a model and a prompt that fit", "Pass fewer --tokens, or another --device.")


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="porter-ml")
def cli() -> None:
    """Port a language model, and prove that the port computes what its reference computes.

    \b
    porter build gemma-3-270m --weights demo
    porter diff --reference hf --layers all

    Exit codes: 0 pass, 1 divergence, 2 usage or spec, 3 unreadable artifact, 4 inconclusive or
    nothing to compare, 5 preflight.
    """
