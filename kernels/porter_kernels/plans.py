"""Launches made once and run often: all that does not depend on the tensors is worked out for a shape, then kept.

For the norm of a small batch the host takes longer than the GPU, and most of that is what comes before a launch.
"""

import operator
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any, ParamSpec, cast

import torch
from torch import Tensor

from porter_kernels.launch import INTERPRETING, triton

MOST_PLANS = 4096  # of a function that makes them: one for each shape, so batches of changing lengths have many
PLANNED: list[Any] = []  # the functions that keep them
P = ParamSpec("P")


class Plan:
    """A launch that lacks nothing but its tensors; what a `planned` function makes."""

    def __init__(
        self, kernel: Any, grid: tuple[int, ...], *, num_warps: int = 4, contract: bool = True, **numbers: Any
    ) -> None:
        """Looks at no GPU.

        Args:
            kernel: jitted; its parameters are pointers, then numbers, then constexprs.
            grid: programs along each axis, at most 3.
            num_warps: of a program.
            contract: whether a product and a sum may become one operation, rounded once. Which do is decided for each
                kernel anew: without it, the same arithmetic has the same bits in two kernels.
            numbers: every parameter of the kernel that is no pointer, by name.
        """
        self.kernel, self.grid, self.numbers = kernel, grid, numbers
        self.options = {"num_warps": num_warps, "enable_fp_fusion": contract}
        self.runs: dict[tuple[Any, ...], Callable[[tuple[Any, ...]], None]] = {}

    @cached_property
    def in_order(self) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
        """The tensors as the kernel takes them."""
        return operator.itemgetter(*(name for name in self._names if name.endswith("_ptr")))

    @cached_property
    def _names(self) -> list[str]:
        return [parameter.name for parameter in self.kernel.params]

    def compile(self, tensors: dict[str, Any], device: int) -> Callable[[tuple[Any, ...]], None]:
        """Launches it, compiled if need be; the function launches it again, on other tensors in order."""
        if unknown := (self.numbers.keys() | tensors.keys()) - set(self._names):
            raise TypeError(f"{self.kernel.__name__} has no parameter {', '.join(sorted(unknown))}")
        first, rest = self.in_order(tensors), tuple(self.numbers[name] for name in self._names[len(tensors) :])
        compiled = self.kernel[self.grid](*first, *rest, **self.options)
        run, function, metadata, (x, y, z) = compiled.run, compiled.function, compiled.packed_metadata, self._axes
        hooks, current_stream = triton.knobs.runtime, triton.runtime.driver.active.get_current_stream

        def launch_again(pointers: tuple[Any, ...]) -> None:
            if _is_set(hooks.launch_enter_hook) or _is_set(hooks.launch_exit_hook):  # a profiler watches
                compiled[x, y, z](*pointers, *rest)
            else:
                run(x, y, z, current_stream(device), function, metadata, None, None, None, *pointers, *rest)

        return launch_again

    @property
    def _axes(self) -> tuple[int, ...]:
        return (*self.grid, 1, 1)[:3]


def planned(make: Callable[P, Plan]) -> Callable[P, Plan]:
    """Remembers the plans that a function made, by its arguments; not in the interpreter, where tests change tiles."""
    if INTERPRETING:
        return make
    remembering: Any = lru_cache(MOST_PLANS)(make)
    PLANNED.append(remembering)
    return cast(Callable[P, Plan], remembering)


def launch(plan: Plan, **tensors: Tensor | None) -> None:
    """Launches a plan, within `launching`, at an eighth of what Triton takes the host.

    Triton binds and specialises every argument of every launch, 35 us on the host of an H200, and calls hooks that are
    not set. Of one plan only what the tensors' pointers are specialised by can differ, dtype and whether 16 divides the
    address; once compiled for those, it is run as Triton runs it.

    Args:
        plan: of a kernel.
        tensors: every pointer of the kernel by name, None for one that it does not read.
    """
    if INTERPRETING:
        plan.kernel[plan.grid](**tensors, **plan.numbers)
        return
    pointers, device = plan.in_order(tensors), torch.cuda.current_device()
    key: list[Any] = [device]
    for x in pointers:
        if x is None:
            key.append(None)
        else:
            key += (x.dtype, x.data_ptr() % 16)
    where = tuple(key)
    run = plan.runs.get(where)
    if run is None:
        plan.runs[where] = plan.compile(tensors, device)
    else:
        run(pointers)


def _is_set(hook: Any) -> bool:
    """Whether anything would be called: newer versions of Triton keep a chain, empty at first."""
    return bool(getattr(hook, "calls", hook))
