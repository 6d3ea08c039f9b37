"""A plan is compiled once for tensors that its kernel does not tell apart, and launched again as Triton launches it."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from porter_kernels import plans
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

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        def call(*values: object, **options: object) -> object:
            if options:
                assert len(grid) < 3
                self.compiled.append((options["num_warps"], options["enable_fp_fusion"]))
                self.launched.append(((*grid, 1, 1)[:3], values))
                return self
            self.called.append(grid)
            return None

        return call

    def run(self, x: int, y: int, z: int, stream: object, function: object, metadata: object, *rest: object) -> None:
        assert (function, metadata, rest[:3]) == ("handle", "metadata", (None,) * 3)
        assert stream == f"stream of {torch.cuda.current_device()}"
        self.launched.append(((x, y, z), rest[3:]))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    monkeypatch.setattr(plans, "INTERPRETING", False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    driver = SimpleNamespace(active=SimpleNamespace(get_current_stream="stream of {}".format))
    monkeypatch.setattr(plans.triton.runtime, "driver", driver)
    return FakeKernel()


def test_a_plan_is_compiled_once_for_tensors_it_does_not_tell_apart(kernel: FakeKernel) -> None:
    plan, tensors = Plan(kernel, (3, 2), BLOCK=8, n=5, num_warps=2, contract=False), [torch.zeros(64) for _ in range(3)]
    for x in tensors:
        launch(plan, b_ptr=None, x_ptr=x)
    assert kernel.compiled == [(2, False)]
    for (grid, values), x in zip(kernel.launched, tensors, strict=True):
        assert grid == (3, 2, 1)
        assert values[0] is x and values[1:] == (None, 5, 8)


@pytest.mark.parametrize(
    "change",
    [{"x_ptr": torch.zeros(64, dtype=torch.bfloat16)}, {"x_ptr": torch.zeros(65)[1:]}, {"b_ptr": torch.zeros(64)}],
    ids=["dtype", "alignment", "given"],
)
def test_it_is_compiled_anew_for_those_it_does(change: dict[str, torch.Tensor], kernel: FakeKernel) -> None:
    plan, tensors = Plan(kernel, (1,), BLOCK=8, n=5), {"x_ptr": torch.zeros(64), "b_ptr": None}
    for each in (tensors, tensors | change, tensors, tensors | change):
        launch(plan, **each)
    assert (len(kernel.compiled), len(kernel.launched)) == (2, 4)


def test_another_device_compiles_anew(kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(kernel, (1,), BLOCK=8, n=5)
    for device in (0, 1, 0, 1):
        monkeypatch.setattr(torch.cuda, "current_device", lambda device=device: device)
        launch(plan, x_ptr=None, b_ptr=None)
    assert (len(kernel.compiled), len(kernel.launched)) == (2, 4)


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_a_profiler_sees_every_launch(hook: str, kernel: FakeKernel) -> None:
    plan = Plan(kernel, (4, 2), BLOCK=8, n=5)
    launch(plan, x_ptr=None, b_ptr=None)
    chain = getattr(plans.triton.knobs.runtime, hook)
    chain.add(print)
    try:
        launch(plan, x_ptr=None, b_ptr=None)
    finally:
        chain.remove(print)
    launch(plan, x_ptr=None, b_ptr=None)
    assert (kernel.called, len(kernel.launched)) == ([(4, 2, 1)], 2)


@pytest.mark.parametrize(("numbers", "tensors"), [({"m": 1}, {}), ({}, {"m_ptr": None})], ids=str)
def test_an_argument_without_a_parameter_is_refused(
    numbers: dict[str, int], tensors: dict[str, None], kernel: FakeKernel
) -> None:
    with pytest.raises(TypeError, match="fake has no parameter m"):
        launch(Plan(kernel, (1,), BLOCK=8, n=5, **numbers), x_ptr=None, b_ptr=None, **tensors)


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
        return Plan(None, (n,))

    assert [plan(n).grid for n in (3, 4, 3)] == [(3,), (4,), (3,)]
    assert count == made
