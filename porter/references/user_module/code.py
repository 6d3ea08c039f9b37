"""A user's module: found from the working directory, made by the function that `module:pkg.mod:fn` names."""

import copy
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from porter.errors import ArtifactError, PorterError, PreflightError, UsageError, closest

PREFIX = "module:"
_EXAMPLE = "module:my_model:load, for the function load of my_model.py in the working directory"
_GIVEN = "folder (of the checkpoint), config (a dict), dtype"


@dataclass(frozen=True)
class Opening:
    """What a user's function may ask for by the names of its arguments."""

    folder: Path
    config: Mapping[str, Any]
    dtype: torch.dtype
    device: torch.device


class UserModule:
    """Where a module comes from: a function that is called for each dtype, or a module that is there already."""

    def __init__(self, given: str | nn.Module) -> None:
        self.given = given
        self.name = given.removeprefix(PREFIX) if isinstance(given, str) else type(given).__name__
        self.notes: list[str] = []

    def open(self, opening: Opening) -> nn.Module:
        """The module in eval mode, its parameters in the dtype asked for, on the device.

        A function without an argument `dtype` gives a module that `Module.to` turns to it, buffers too.

        Raises:
            UsageError: there is no such function, it needs arguments porter does not have, or gives no module.
            ArtifactError: the user's code raised.
            PreflightError: its parameters are not in the dtype that the function was asked for.
        """
        if isinstance(self.given, nn.Module):
            made, asked = copy.deepcopy(self.given), False
        else:
            made, asked = self._call(opening)
        if not isinstance(made, nn.Module):
            raise UsageError(
                f"{self.name} gives a {type(made).__name__}", "a torch.nn.Module", "Return the module itself."
            )
        made = getattr(made, "_orig_mod", made)  # hooks do not reach into what torch.compile made
        if asked:
            self._check_dtype(made, opening.dtype)
        elif any(each.dtype != opening.dtype for each in _floating(made.parameters())):
            rounded = [name for name, each in made.named_buffers() if _loses(each, opening.dtype)]
            made = made.to(opening.dtype)
            if rounded:
                self._note_rounded(rounded, opening.dtype)
        return made.to(opening.device).eval()

    def _call(self, opening: Opening) -> tuple[Any, bool]:
        """What the function gives, and whether it asked for a dtype."""
        module, name = split_target(str(self.given))
        with importable():
            function = _find(module, name)
            known: dict[str, Any] = {name: getattr(opening, name) for name in ("folder", "config", "dtype", "device")}
            known["config"] = dict(opening.config)
            arguments = _arguments(self.name, function, known)
            with users_code(self.name, "raised"):
                return function(**arguments), "dtype" in arguments

    def _check_dtype(self, made: nn.Module, dtype: torch.dtype) -> None:
        sizes: dict[torch.dtype, int] = {}
        for each in _floating(made.parameters()):
            sizes[each.dtype] = sizes.get(each.dtype, 0) + each.numel()
        most = max(sizes, key=lambda kind: sizes[kind], default=dtype)
        if most != dtype:
            raise PreflightError(
                f"{self.name} was asked for {_called(dtype)} and gives parameters in {_called(most)}",
                f"a module in the argument dtype, torch.{_called(dtype)}",
                "Pass dtype on to what makes or loads the module; or leave the argument out, and porter casts it.",
            )

    def _note_rounded(self, names: list[str], dtype: torch.dtype) -> None:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        note = (
            f"{self.name} takes no dtype, so its buffer {names[0]}{more} was rounded to {_called(dtype)} by Module.to"
        )
        if note not in self.notes:
            self.notes.append(note)


def split_target(text: str) -> tuple[str, str]:
    """Module and function of `module:pkg.mod:fn`, `module:pkg.mod.fn`, or either without `module:`.

    Raises:
        UsageError: it is neither.
    """
    target = text.removeprefix(PREFIX)
    module, colon, function = target.partition(":") if ":" in target else target.rpartition(".")
    parts = [*module.split("."), *function.split(".")]
    if module.endswith(".py") or "/" in module:
        as_name = module.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise UsageError(f"{text!r} names a file", _EXAMPLE, f"Write {PREFIX}{as_name}:{function or 'load'}.")
    if not colon or not all(part.isidentifier() for part in parts):
        raise UsageError(f"{text!r} names no function", _EXAMPLE, "Write the module, a colon, and the function.")
    return module, function


@contextmanager
def importable() -> Iterator[None]:
    """Within it, modules of the working directory can be imported, first of all."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


@contextmanager
def users_code(name: str, doing: str) -> Iterator[None]:
    """Within it a user's code runs: what it raises is told with the line of the user's that raised it.

    What it prints goes to stderr, as a report may be on stdout; torch's defaults are what they were, at the end.

    Raises:
        ArtifactError: it raised.
    """
    dtype, tracked = torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        with importable(), redirect_stdout(sys.stderr):
            yield
    except PorterError:
        raise
    except Exception as error:  # a user's code may raise anything
        raise ArtifactError(
            f"{name} {doing}: {type(error).__name__}: {_first_line(error)}",
            "code that runs without porter: the module made, and called with ids [1, T]",
            f"See {_place(error)}.",
        ) from error
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(tracked)


def _find(module: str, name: str) -> Callable[..., Any]:
    _forget_another(module)
    try:
        missing = importlib.util.find_spec(module) is None
    except ModuleNotFoundError:  # of a package above it
        missing = True
    if missing:
        raise UsageError(
            f"there is no module {module!r}, seen from {Path.cwd()}", _EXAMPLE, "Change to the folder it is in."
        )
    with users_code(f"import {module}", "raised"):
        found: Any = importlib.import_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{module} has no {name!r}", closest(part, _functions(found)), "Name one it has.")
        found = getattr(found, part)
    if not callable(found) or isinstance(found, nn.Module):
        raise UsageError(f"{module}:{name} is a {type(found).__name__}", "a function that gives the module", "Name it.")
    return found  # type: ignore[no-any-return]


def _functions(module: Any) -> list[str]:
    return [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")] or ["load"]


def _forget_another(module: str) -> None:
    """Drops a module of that name which an earlier working directory had."""
    held, top = sys.modules.get(module), module.partition(".")[0]
    here = [Path.cwd() / f"{top}.py", Path.cwd() / top / "__init__.py", Path.cwd() / top]
    if held is None or not any(each.exists() for each in here):
        return
    if not Path(getattr(held, "__file__", None) or Path.cwd()).resolve().is_relative_to(Path.cwd().resolve()):
        for name in [name for name in sys.modules if name == top or name.startswith(f"{top}.")]:
            del sys.modules[name]


def _arguments(name: str, function: Callable[..., Any], known: dict[str, Any]) -> dict[str, Any]:
    """Values of the arguments that a function needs, by name; a single one of another name is the folder."""
    found = {}
    unknown = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in known:
            found[parameter.name] = known[parameter.name]
        elif parameter.default is parameter.empty:
            unknown.append(parameter.name)
    if len(unknown) == 1 and "folder" not in found:
        found[unknown.pop()] = known["folder"]
    if unknown:
        raise UsageError(
            f"{name} needs {', '.join(unknown)}", f"no arguments, or any of {_GIVEN}", "Give the others defaults."
        )
    return found


def _floating(tensors: Iterator[nn.Parameter]) -> list[nn.Parameter]:
    return [each for each in tensors if each.is_floating_point()]


def _loses(buffer: Tensor, dtype: torch.dtype) -> bool:
    """Whether a cast changes a buffer's values."""
    return buffer.is_floating_point() and not torch.equal(buffer.to(dtype).to(buffer.dtype), buffer)


def _called(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def _place(error: Exception) -> str:
    """File and line of the last frame that is no library's: the user's own, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    inside = ("site-packages", "dist-packages", "lib/python", "<frozen")
    own = Path(__file__).parents[2]
    users = [
        f for f in frames if not any(part in f.filename for part in inside) and own not in Path(f.filename).parents
    ]
    last = (users or list(frames))[-1]
    return f"{last.filename}:{last.lineno}"
