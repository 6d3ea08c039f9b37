"""Inputs are the same on each call, laid out as a model lays them out."""

import pytest
import torch

from porter.bench.cases import LOSSES, default_cases, shrink
from porter.bench.operators import OPERATORS, draw_inputs

CPU = torch.device("cpu")
CASES = shrink(default_cases())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_inputs_are_drawn_alike_and_fit_the_function(case) -> None:
    first, second = draw_inputs(case, CPU), draw_inputs(case, CPU)
    assert all(torch.equal(x, second.everything()[name]) for name, x in first.everything().items())
    assert all(x.requires_grad == (name in first.wanted) for name, x in first.tensors.items())
    outputs = OPERATORS[case.op].function(case)(*first.tensors.values())
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    assert len(outputs) == len(OPERATORS[case.op].outputs)
    if case.op in LOSSES:
        assert not first.d_outputs and outputs[0].shape == ()
    else:
        assert [d.shape for d in first.d_outputs] == [y.shape for y in outputs]


def test_heads_lie_as_projections_leave_them() -> None:
    inputs = draw_inputs(next(case for case in CASES if case.op == "rope"), CPU)
    for x in (*inputs.leaves, *inputs.d_outputs):
        assert x.transpose(1, 2).is_contiguous()
    assert torch.equal(inputs.tensors["cos_full"].chunk(2, -1)[1], inputs.tensors["cos"])


def test_a_share_of_the_rows_gives_a_share_of_the_loss() -> None:
    case = next(case for case in CASES if case.op == "cross_entropy")
    logits, target = draw_inputs(case, CPU).tensors.values()
    loss = OPERATORS[case.op].function(case)
    whole, parts = loss(logits, target), [loss(logits[part], target[part]) for part in (slice(0, 3), slice(3, None))]
    assert sum(parts).item() == pytest.approx(whole.item(), rel=1e-6)
