"""A plan is compiled once for tensors that its kernel does not tell apart, and launched again as Triton launches it."""

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from porter_kernels import launch as launches
from porter_kernels import plans
from porter_kernels.launch import check_launch
from porter_kernels.plans import Plan, launch, planned


class FakeKernel:
    """As a plan sees a jitted kernel: parameters, and a call that gives what was compiled for these arguments.

    What is compiled is itself: called as Triton's users call it, and run as Triton does. Both note the launch.
    """

    __name__ = "fake"
    function, packed_metadata = "handle", "metadata"

    def __init__(self) -> None:
        self.params = [SimpleNamespace(name=name) for name in ("x_ptr", "b_ptr", "n", "BLOCK")]
        self.compiled: list[tuple[object, ...]] = []
        self.launched: list[tuple[tuple[int, ...], tuple[object, ...]]] = []
        self.called: list[tuple[int, ...]] = []
        self.devices: list[int] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        def call(*values: object, **options: object) -> object:
            if options:
                assert len(grid) < 3
                self.compiled.append((options["num_warps"], options["enable_fp_fusion"]))
                self.devices.append(torch.cuda.current_device())
                self.launched.append(((*grid, 1, 1)[:3], values))
                return self
            self.called.append(grid)
            return None

        return call

    def run(self, x: int, y: int, z: int, stream: object, function: object, metadata: object, *rest: object) -> None:
        assert (function, metadata, rest[:3]) == ("handle", "metadata", (None,) * 3)
        assert stream == f"stream of {torch.cuda.current_device()}"
        self.devices.append(torch.cuda.current_device())
        self.launched.append(((x, y, z), rest[3:]))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    monkeypatch.setattr(plans, "INTERPRETING", False)
    monkeypatch.setattr(plans, "check_launch", lambda op, x: None)
    current = [-1]  # the device of tensors on a CPU

    class Guard:
        def __init__(self, device: int) -> None:
            self.device = device

        def __enter__(self) -> None:
            self.before, current[0] = current[0], self.device

        def __exit__(self, *_: object) -> None:
            current[0] = self.before

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "device", Guard)
    driver = SimpleNamespace(active=SimpleNamespace(get_current_stream="stream of {}".format))
    monkeypatch.setattr(plans.triton.runtime, "driver", driver)
    return FakeKernel()


def test_a_plan_is_compiled_once_for_tensors_it_does_not_tell_apart(kernel: FakeKernel) -> None:
    plan, tensors = (
        Plan("op", kernel, (3, 2), BLOCK=8, n=5, num_warps=2, contract=False),
        [torch.zeros(64) for _ in range(3)],
    )
    for x in tensors:
        launch(plan, b_ptr=None, x_ptr=x)
    assert kernel.compiled == [(2, False)]
    for (grid, values), x in zip(kernel.launched, tensors, strict=True):
        assert grid == (3, 2, 1)
        assert values[1:] == (None, 5, 8)
        assert values[0] is x or values[0] == x.data_ptr()


@pytest.mark.parametrize(
    "change",
    [{"x_ptr": torch.zeros(64, dtype=torch.bfloat16)}, {"x_ptr": torch.zeros(65)[1:]}, {"b_ptr": torch.zeros(64)}],
    ids=["dtype", "alignment", "given"],
)
def test_it_is_compiled_anew_for_those_it_does(change: dict[str, torch.Tensor], kernel: FakeKernel) -> None:
    plan, tensors = Plan("op", kernel, (1,), BLOCK=8, n=5), {"x_ptr": torch.zeros(64), "b_ptr": None}
    for each in (tensors, tensors | change, tensors, tensors | change):
        launch(plan, **each)
    assert (len(kernel.compiled), len(kernel.launched)) == (2, 4)


def test_a_launch_is_on_the_device_of_its_tensors_and_compiled_for_it(kernel: FakeKernel) -> None:
    plan, x = Plan("op", kernel, (1,), BLOCK=8, n=5), torch.zeros(64)
    there: Any = SimpleNamespace(data_ptr=x.data_ptr, dtype=x.dtype, get_device=lambda: -2)
    for each in (x, there, x, there):
        launch(plan, x_ptr=each, b_ptr=None)
    assert (len(kernel.compiled), kernel.devices) == (2, [-1, -2, -1, -2])


def test_a_first_launch_is_refused_where_none_can_be(kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "check_launch", check_launch)
    monkeypatch.setattr(launches, "INTERPRETING", False)
    with pytest.raises(ValueError, match=r"^op: x is on"):
        launch(Plan("op", kernel, (1,), BLOCK=8, n=5), x_ptr=torch.zeros(64), b_ptr=None)


def test_what_is_launched_again_costs_the_host_few_calls(kernel: FakeKernel) -> None:
    plan, x = Plan("op", kernel, (1,), BLOCK=8, n=5), torch.zeros(64)
    launch(plan, x_ptr=x, b_ptr=None)
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        launch(plan, x_ptr=x, b_ptr=None)
    finally:
        sys.setprofile(None)
    assert called[:2] == ["launch", "<lambda>"] and called[2] == "launch_again"  # the lambda is the test's own device
    assert len(called) <= 6, called


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_a_profiler_sees_every_launch(hook: str, kernel: FakeKernel) -> None:
    plan = Plan("op", kernel, (4, 2), BLOCK=8, n=5)
    launch(plan, x_ptr=None, b_ptr=None)
    chain = getattr(plans.triton.knobs.runtime, hook)
    chain.add(print)
    try:
        launch(plan, x_ptr=None, b_ptr=None)
    finally:
        chain.remove(print)
    launch(plan, x_ptr=None, b_ptr=None)
    assert (kernel.called, len(kernel.launched)) == ([(4, 2, 1)], 2)


@pytest.mark.parametrize(("grid", "axes"), [((4,), (4, 1, 1)), ((4, 2), (4, 2, 1)), ((4, 2, 3), (4, 2, 3))], ids=str)
def test_a_grid_has_three_axes(grid: tuple[int, ...], axes: tuple[int, ...]) -> None:
    assert Plan("op", None, grid).axes == axes


@pytest.mark.parametrize(("numbers", "tensors"), [({"m": 1}, {}), ({}, {"m_ptr": None})], ids=str)
def test_an_argument_without_a_parameter_is_refused(
    numbers: dict[str, int], tensors: dict[str, None], kernel: FakeKernel
) -> None:
    with pytest.raises(TypeError, match="fake has no parameter m"):
        launch(Plan("op", kernel, (1,), BLOCK=8, n=5, **numbers), x_ptr=None, b_ptr=None, **tensors)


@pytest.fixture
def forgetting() -> Iterator[None]:
    before = len(plans.PLANNED)
    yield
    del plans.PLANNED[before:]


@pytest.mark.parametrize(("interpreting", "made"), [(False, 2), (True, 3)])
def test_a_plan_is_made_once_for_a_shape_unless_interpreted(
    interpreting: bool, made: int, monkeypatch: pytest.MonkeyPatch, forgetting: None
) -> None:
    monkeypatch.setattr(plans, "INTERPRETING", interpreting)
    count = 0

    @planned
    def plan(n: int) -> Plan:
        nonlocal count
        count += 1
        return Plan("op", None, (n,))

    assert [plan(n).grid for n in (3, 4, 3)] == [(3,), (4,), (3,)]
    assert count == made
