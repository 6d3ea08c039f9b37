"""Taps: where a tensor shows in a module, written as in a map file, and noted while the module runs.

    mlp.gate                    what the module mlp.gate returns
    attn.proj:input             what it is given: its first tensor; :input1 the second
    attn@add#1                  what the second call of torch's add within attn returns
    attn@matmul:input           what the first call of matmul within attn is given
    rope#1:output1              the second tensor that the second call of rope returns

Functions count within the innermost module that calls them.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

_TAP = re.compile(
    r"(?P<path>[\w.]*)(?:@(?P<function>\w+))?(?:#(?P<call>\d+))?(?::(?P<side>input|output)(?P<index>\d*))?"
)
_OWN_CALLS = {"__get__", "__set__"}  # attributes, not computations


@dataclass(frozen=True, order=True)
class Tap:
    """One tensor of one call.

    Attributes:
        path: of the module, below the one that is watched; empty: that one itself.
        function: a torch function called in it; empty: the module's own call.
        call: which call, of several in one forward pass.
        side: what the call is given, or what it returns.
        index: which of its tensors.
    """

    path: str
    function: str = ""
    call: int = 0
    side: Literal["input", "output"] = "output"
    index: int = 0

    def __str__(self) -> str:
        function = f"@{self.function}" if self.function else ""
        call = f"#{self.call}" if self.call else ""
        index = str(self.index) if self.index else ""
        side = f":{self.side}{index}" if self.side == "input" or self.index else ""
        return f"{self.path}{function}{call}{side}"

    @staticmethod
    def read(text: str) -> "Tap":
        """The tap that a map file writes so.

        Raises:
            ValueError: it is none.
        """
        found = _TAP.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} is no place in a module; path, path:input, path@add#1 are")
        side: Literal["input", "output"] = "input" if found["side"] == "input" else "output"
        return Tap(found["path"], found["function"] or "", int(found["call"] or 0), side, int(found["index"] or 0))


See = Callable[[Tap, Tensor], None]


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor of arguments or results, in order."""
    return [each for each in tree_leaves(_opened(value)) if isinstance(each, Tensor)]


def _opened(value: Any) -> Any:
    """Results with named fields as their values; others as they are."""
    if isinstance(value, Mapping):
        return [_opened(each) for each in value.values()]
    if isinstance(value, (tuple, list)):
        return [_opened(each) for each in value]
    if hasattr(value, "__dataclass_fields__"):
        return [_opened(getattr(value, name)) for name in value.__dataclass_fields__]
    return value


@contextmanager
def watching(
    root: nn.Module, see: See, *, paths: frozenset[str] | None = None, functions: bool = False
) -> Iterator[None]:
    """Within it, `see` is told the tensors of every call in `root`.

    Args:
        paths: only those modules' own calls; None: all.
        functions: torch functions too, wherever they are called.
    """
    watch = _Watch(see)
    with ExitStack() as stack:
        for path, module in root.named_modules():
            if functions or paths is None or path in paths:
                stack.enter_context(watch.module(path, module, tell=paths is None or path in paths))
        if functions:
            stack.enter_context(_Functions(watch))
        yield


class _Watch:
    """Counts calls, and knows the module that is running."""

    def __init__(self, see: See) -> None:
        self.see = see
        self.running = [""]
        self.calls: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def module(self, path: str, module: nn.Module, *, tell: bool) -> Iterator[None]:
        def before(_module: nn.Module, args: Any, kwargs: Any) -> None:
            self.running.append(path)
            if tell:
                self.tell(path, "", "input", (args, kwargs))

        def after(_module: nn.Module, _args: Any, _kwargs: Any, out: Any) -> None:
            self.running.pop()
            if tell:
                self.tell(path, "", "output", out)
                self.calls[path, ""] += 1

        first = module.register_forward_pre_hook(before, with_kwargs=True)
        last = module.register_forward_hook(after, with_kwargs=True)
        try:
            yield
        finally:
            first.remove()
            last.remove()

    def tell(self, path: str, function: str, side: Literal["input", "output"], value: Any) -> None:
        call = self.calls[path, function]
        with torch._C.DisableTorchFunction():  # what is done with a tensor is no call of the user's
            for index, tensor in enumerate(tensors_in(value)):
                self.see(Tap(path, function, call, side, index), tensor)


class _Functions(TorchFunctionMode):
    """Tells the watch of torch's functions, as they are called."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if not name or name in _OWN_CALLS:
            return func(*args, **(kwargs or {}))
        name, path = name.strip("_") if name.startswith("__") else name, self.watch.running[-1]
        self.watch.tell(path, name, "input", (args, kwargs or {}))  # before a function that writes to them
        found = func(*args, **(kwargs or {}))
        if isinstance(found, (Tensor, tuple, list)):
            self.watch.tell(path, name, "output", found)
            self.watch.calls[path, name] += 1
        return found
