"""Launches of the norms' backward that only a GPU's measurements choose: a tile read twice, several tiles in flight."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from porter_kernels.accuracy import excess
from porter_kernels.layer_norm import layer_norm, layer_norm_reference
from porter_kernels.layer_norm import op as layer_norm_op
from porter_kernels.plans import forget_plans
from porter_kernels.rms_norm import add_rms_norm, add_rms_norm_reference, rms_norm, rms_norm_reference
from porter_kernels.rms_norm import op as rms_norm_op
from tests.porter_kernels.gradients import run, run_in_float64

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = 1e-2
Op = Callable[..., Tensor]
OPS: dict[str, tuple[Op, Op]] = {
    "rms_norm": (
        lambda x, w, b: rms_norm(x, w, EPS, offset=1) + 0 * b,
        lambda x, w, b: rms_norm_reference(x, w, EPS, offset=1, math="scale_then_cast") + 0 * b,
    ),
    "rms_norm without weight": (
        lambda x, w, b: rms_norm(x, None, EPS) + 0 * (w + b),
        lambda x, w, b: rms_norm_reference(x, None, EPS, math="scale_then_cast") + 0 * (w + b),
    ),
    "add_rms_norm": (
        lambda x, w, b: sum(add_rms_norm(x, x.flip(0), w, EPS)) + 0 * b,
        lambda x, w, b: sum(add_rms_norm_reference(x, x.flip(0), w, EPS, math="scale_then_cast")) + 0 * b,
    ),
    "layer_norm": (
        lambda x, w, b: layer_norm(x, w, b, EPS, offset=1),
        lambda x, w, b: layer_norm_reference(x, w, b, EPS, offset=1, math="scale_then_cast"),
    ),
    "layer_norm without weight": (
        lambda x, w, b: layer_norm(x, None, b, EPS) + 0 * w,
        lambda x, w, b: layer_norm_reference(x, None, b, EPS, math="scale_then_cast") + 0 * w,
    ),
}


@pytest.mark.parametrize(
    "launch", [{"reload": 1}, {"stages": 2}, {"rows": 1}, {"rows": 1, "reload": 1}, {"rows": 64}], ids=str
)
@pytest.mark.parametrize(
    ("op", "dtype"),
    [(op, torch.float32) for op in OPS] + [(op, torch.float16) for op in OPS if op != "add_rms_norm"],  # two are added
    ids=str,
)
@pytest.mark.usefixtures("either_way")
def test_matches_reference(
    dtype: torch.dtype, op: str, launch: dict[str, int], generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (rms_norm_op, layer_norm_op):
        tuned = module.tuned
        monkeypatch.setattr(module, "tuned", lambda *rule, tuned=tuned: tuned(*rule)._replace(**launch))
    N, D = 11, 70
    *inputs, dy = (torch.randn(s, generator=generator).to(DEVICE, dtype) for s in ((N, D), (D,), (D,), (N, D)))
    fused, reference = OPS[op]
    actual, truth = run(fused, inputs, [dy]), run_in_float64(reference, inputs, [dy])
    largest = dy.abs().max() * (1 + inputs[1].abs().max()) * inputs[0].abs().max() * 8
    for name, a, t in zip(("y", "dx", "dw", "db"), actual, truth, strict=True):
        assert (worst := excess(a, t, D, largest)) <= 1, f"{name}: {worst:.2g} times its budget"


def test_one_row_a_program_sums_as_many_do(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one row a tile there is nothing to sum over rows, and the tile is added as it is."""
    inputs = [torch.randn(s, generator=generator).to(DEVICE) for s in ((11, 70), (70,), (70,))]
    dy = torch.randn(11, 70, generator=generator).to(DEVICE)
    for op, module in (("rms_norm", rms_norm_op), ("layer_norm", layer_norm_op)):
        tuned = module.tuned
        results = []
        for rows in (1, 4):
            monkeypatch.setattr(module, "tuned", lambda *rule, t=tuned, r=rows: t(*rule)._replace(rows=r, programs=1))
            monkeypatch.setattr(module, "FEW_ROWS", 0)
            forget_plans()
            results.append(run(OPS[op][0], inputs, [dy]))
        for one, many in zip(*results, strict=True):
            assert excess(one, many.double(), 11, dy.abs().max() * inputs[0].abs().max() * 8) <= 1
