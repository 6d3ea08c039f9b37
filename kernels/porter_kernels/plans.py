"""Launches made once and run often: all that does not depend on the tensors is worked out for a shape, then kept.

For the norm of a small batch the host takes longer than the GPU, and most of that is what comes before a launch.
"""

import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from porter_kernels.launch import INTERPRETING, check_launch, triton

MOST_PLANS = 4096  # of a function that makes them: one for each shape, so batches of changing lengths have many
PLANNED: list[Any] = []  # the functions that keep them
P = ParamSpec("P")
R = TypeVar("R")


class Plan:
    """A launch that lacks nothing but its tensors; what a `planned` function makes."""

    def __init__(
        self, op: str, kernel: Any, grid: tuple[int, ...], *, num_warps: int = 4, contract: bool = True, **numbers: Any
    ) -> None:
        """Looks at no GPU.

        Args:
            op: whose launch it is, for what is raised.
            kernel: jitted; its parameters are pointers, then numbers, then constexprs.
            grid: programs along each axis, at most 3.
            num_warps: of a program.
            contract: whether a product and a sum may become one operation, rounded once. Which do is decided for each
                kernel anew: without it, the same arithmetic has the same bits in two kernels.
            numbers: every parameter of the kernel that is no pointer, by name.
        """
        self.op, self.kernel, self.grid, self.numbers = op, kernel, grid, numbers
        self.options = {"num_warps": num_warps, "enable_fp_fusion": contract}
        self.runs: dict[tuple[Any, ...], Callable[[list[int | None]], None]] = {}
        self.in_order: Callable[[dict[str, Any]], tuple[Any, ...]] | None = None  # tensors as the kernel takes them

    def check(self, tensors: dict[str, Any]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
        """What puts tensors in the order in which the kernel takes them.

        Raises:
            ValueError: no kernel can be launched on these tensors.
            TypeError: the kernel has no such parameter.
        """
        for x in tensors.values():
            if x is not None:
                check_launch(self.op, x)
        names = [parameter.name for parameter in self.kernel.params]
        if unknown := (self.numbers.keys() | tensors.keys()) - set(names):
            raise TypeError(f"{self.kernel.__name__} has no parameter {', '.join(sorted(unknown))}")
        self.rest = tuple(self.numbers[name] for name in names[len(tensors) :])
        self.in_order = operator.itemgetter(*names[: len(tensors)])
        return self.in_order

    def compile_and_launch(self, tensors: dict[str, Any], device: int) -> Callable[[list[int | None]], None]:
        """The function that launches it again, on other addresses in order.

        Of an address that is a number Triton does not ask the driver whether the device can read it.

        Raises: as check does.
        """
        in_order, rest = self.check(tensors), self.rest
        with torch.cuda.device(device):
            compiled = self.kernel[self.grid](*in_order(tensors), *rest, **self.options)
        run, function, metadata, (x, y, z) = compiled.run, compiled.function, compiled.packed_metadata, self.axes
        knobs, current_stream = triton.knobs.runtime, triton.runtime.driver.active.get_current_stream

        def launch_again(addresses: list[int | None]) -> None:
            enter, leave = knobs.launch_enter_hook, knobs.launch_exit_hook  # a chain each, or what there is to call
            if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):  # a profiler watches
                compiled[x, y, z](*addresses, *rest)
            else:
                run(x, y, z, current_stream(device), function, metadata, None, None, None, *addresses, *rest)

        return launch_again

    @property
    def axes(self) -> tuple[int, ...]:
        """The grid along all three."""
        return (*self.grid, 1, 1)[:3]


def planned(make: Callable[P, R]) -> Callable[P, R]:
    """Remembers the plans that a function made, by its arguments; not in the interpreter, where tests change tiles."""
    if INTERPRETING:
        return make
    remembering: Any = lru_cache(MOST_PLANS)(make)
    PLANNED.append(remembering)
    return cast(Callable[P, R], remembering)


def forget_plans() -> None:
    """Has every plan made anew: after a change of what they rest on, as when tiles are tuned."""
    for make in PLANNED:
        make.cache_clear()


def launch(plan: Plan, **tensors: Tensor | None) -> None:
    """Launches a plan on the device of its tensors, at a fraction of what Triton takes the host.

    Triton binds and specialises every argument of every launch, 35 us on the host of an H200, and calls hooks that are
    not set. Of one plan only what the tensors' pointers are specialised by can differ, dtype and whether 16 divides the
    address; once compiled for those, it is run as Triton runs it.

    Args:
        plan: of a kernel.
        tensors: every pointer of the kernel by name, None for one that it does not read.

    Raises: as Plan.check does.
    """
    if INTERPRETING:
        plan.kernel[plan.grid](**tensors, **plan.numbers)
        return
    addresses: list[int | None] = []
    key: list[Any] = []
    device = -1
    for x in (plan.in_order or plan.check(tensors))(tensors):
        if x is None:
            addresses.append(None)
            key.append(None)
        else:
            address = x.data_ptr()
            addresses.append(address)
            key.append(x.dtype if address % 16 == 0 else (x.dtype,))
            device = x.get_device()
    key.append(device)
    run = plan.runs.get(tuple(key))
    if run is None:
        plan.runs[tuple(key)] = plan.compile_and_launch(tensors, device)
    elif device == torch.cuda.current_device():
        run(addresses)
    else:
        with torch.cuda.device(device):
            run(addresses)
