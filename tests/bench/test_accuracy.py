"""Who counts as right: faults that hide in rounding are found, and rounding is forgiven."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from porter.bench.accuracy import find_fault, measure_errors, worst_error
from porter.bench.cases import Case
from porter.bench.operators import draw_inputs
from porter.bench.truth import find_truth
from porter.bench.worker import Worker, copy_all
from tests.bench.fakes import right

CPU = torch.device("cpu")
CASES = [
    Case("rms_norm", (64, 512)),
    Case("layer_norm", (64, 512)),
    Case("add_rms_norm", (64, 256)),
    Case("rope", (1, 32, 4, 2, 64)),
    Case("glu", (64, 512), options=(("act", "gelu_tanh"),)),
    Case("softcap", (64, 512), options=(("cap", 30.0),)),
    Case("cross_entropy", (64, 4096)),
    Case("cross_entropy", (64, 4096), options=(("softcap", 30.0),)),
    Case("linear_cross_entropy", (128, 256, 2048)),
]


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def setting(request: pytest.FixtureRequest):
    """Truths, eager's tensors and its errors at a case, in bfloat16."""
    case = request.param
    inputs = draw_inputs(case, CPU)
    truths = find_truth(case, inputs)
    tensors = [x.detach() for x in Worker("eager", right(case), inputs, copy_all(inputs)).both(0.5)]
    return truths, tensors, measure_errors(tensors, truths)


def test_plain_torch_is_right(setting) -> None:
    _, _, eager = setting
    assert find_fault(eager, eager) == ""
    assert 0 < worst_error(eager)[1] < 0.1


def corrupt(damage: Callable[[Tensor], Tensor], setting) -> list[str]:
    """What is said when one tensor after the other is damaged."""
    truths, tensors, eager = setting
    said = []
    for index in range(len(tensors)):
        damaged = [damage(x.clone()) if i == index else x for i, x in enumerate(tensors)]
        said.append(find_fault(measure_errors(damaged, truths), eager))
        assert not said[-1] or said[-1].startswith(truths[index].name)
    return said


def test_five_percent_anywhere_is_found(setting) -> None:
    assert all(corrupt(lambda x: x * 1.05, setting))


def test_a_block_not_written_is_found(setting) -> None:
    def unwritten(x: Tensor) -> Tensor:
        x[..., -max(1, x.shape[-1] // 16) :] = 0 if x.ndim else x
        return x

    truths, _, _ = setting
    said = corrupt(lambda x: unwritten(x) if x.ndim else x * 0, setting)
    assert all(said), list(zip([each.name for each in truths], said, strict=True))


def test_nan_and_shapes_are_found(setting) -> None:
    def one_nan(x: Tensor) -> Tensor:
        x.view(-1)[-1] = math.nan
        return x

    assert all("is not finite" in each for each in corrupt(lambda x: one_nan(x.contiguous()), setting))


def test_a_log_softmax_kept_in_bfloat16_is_not_right() -> None:
    case = Case("cross_entropy", (64, 32000))
    inputs = draw_inputs(case, CPU)
    truths = find_truth(case, inputs)
    narrow, eager = (
        measure_errors(Worker("", function, inputs, copy_all(inputs)).both(0.5), truths)
        for function in (lambda x, target: F.cross_entropy(x.log_softmax(-1), target), right(case))
    )
    assert "d_logits is off by" in find_fault(narrow, eager)


def test_without_eager_rounding_alone_is_forgiven() -> None:
    case = Case("rms_norm", (8, 64), "float32")
    inputs = draw_inputs(case, CPU)
    errors = measure_errors(Worker("", right(case), inputs, copy_all(inputs)).both(), find_truth(case, inputs))
    assert find_fault(errors, {}) == ""
