"""The float64 truth, found on parts, is the whole computation in float64."""

import pytest
import torch
from torch import Tensor

from porter.bench import truth
from porter.bench.cases import LOSSES, default_cases, shrink
from porter.bench.operators import OPERATORS, draw_inputs
from porter.bench.truth import D_LOSS, find_truth, sample

CPU = torch.device("cpu")


def in_float64(case, inputs) -> list[Tensor]:
    """Outputs and gradients of everything at once."""
    wide = [x.detach().double() if x.is_floating_point() else x for x in inputs.tensors.values()]
    leaves = [wide[list(inputs.tensors).index(name)].requires_grad_() for name in inputs.wanted]
    outputs = OPERATORS[case.op].function(case)(*wide)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    d_outputs = [d.double() for d in inputs.d_outputs] or [torch.tensor(D_LOSS, dtype=torch.float64)]
    return [*(y.detach() for y in outputs), *torch.autograd.grad(outputs, leaves, d_outputs)]


@pytest.mark.parametrize("most", [2, 3, 512])
@pytest.mark.parametrize("case", shrink(default_cases()), ids=lambda case: case.name)
def test_parts_agree_with_the_whole(case, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truth, "MOST_ROWS", most)
    monkeypatch.setattr(truth, "MOST_COLUMNS", most)
    monkeypatch.setattr(truth, "CHUNK", 700)  # several chunks
    inputs = draw_inputs(case, CPU)
    whole = in_float64(case, inputs)
    found = find_truth(case, inputs)
    assert [each.name for each in found] == [*OPERATORS[case.op].outputs, *(f"d_{name}" for name in inputs.wanted)]
    for each, expected in zip(found, whole, strict=True):
        assert each.value.dtype == torch.float64
        torch.testing.assert_close(each.value, each.part(expected), rtol=1e-11, atol=1e-13)
        if case.op not in LOSSES:
            assert each.value.numel() > 0 and (torch.as_tensor(each.scale) > 0).all()


def test_samples_have_both_ends() -> None:
    assert sample(5, 8, CPU).tolist() == [0, 1, 2, 3, 4]
    drawn = sample(8192, 64, CPU)
    assert (len(set(drawn.tolist())), drawn[0].item(), drawn[-1].item()) == (64, 0, 8191)
    assert torch.equal(drawn, sample(8192, 64, CPU)) and drawn.sort().values.equal(drawn)
    assert len(set(drawn.remainder(64).tolist())) > 30  # no stride that a tile could hide behind
