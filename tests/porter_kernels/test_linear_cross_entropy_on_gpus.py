"""What only a GPU reaches in linear_cross_entropy's plain parts, on tensors that say they are on one."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from porter_kernels.linear_cross_entropy import passes
from porter_kernels.linear_cross_entropy.gradients import multiply


class OnGpu(Tensor):
    is_cuda = True


@pytest.mark.parametrize(
    ("drop", "worth", "capturing", "kept"),
    [
        (True, 1001, False, [1, 3]),
        (False, 0, False, None),
        (None, 1000, False, [1, 3]),
        (None, 1001, False, None),
        (None, 1000, True, None),
    ],
)
def test_rows_are_dropped_where_the_wait_pays(
    drop: bool | None, worth: int, capturing: bool, kept: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "WORTH_A_WAIT", worth)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    problem: Any = SimpleNamespace(
        target_N=torch.tensor([-100, 4, -100, 2]).as_subclass(OnGpu), hidden_NH=torch.zeros(4, 25), drop_ignored=drop,
        ignore_index=-100, token_weight_N=None,
    )  # fmt: skip
    rows = passes.kept_rows(problem, num_classes=10)
    assert rows is kept if kept is None else rows.tolist() == kept


@pytest.mark.parametrize("add", [False, True])
def test_a_wide_product_of_narrow_factors_is_one_call(add: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    for name in ("mm", "addmm"):
        monkeypatch.setattr(torch, name, lambda *args, _name=name, **options: calls.append((_name, args, options)))
    a, b = (torch.zeros(2, 2, dtype=torch.bfloat16).as_subclass(OnGpu) for _ in range(2))
    out = torch.zeros(2, 2)
    multiply(a, b, out, add=add)
    ((name, args, options),) = calls
    assert name == ("addmm" if add else "mm")
    assert [id(x) for x in args] == [id(x) for x in ((out, a, b) if add else (a, b))]
    assert options["out"] is out and options["out_dtype"] == torch.float32
