from dataclasses import replace

import pytest
import torch

from porter.bench.footprint.plan import Plan
from porter.bench.training.peaks import Setting, measure_peak, predict_peak
from porter.bench.training.tracker import AllocationTracker

CPU = torch.device("cpu")


@pytest.mark.parametrize("checkpointing", ("none", "plain", "offloaded"))
def test_a_tiny_model_in_place_of_a_large_one(checkpointing: str) -> None:
    setting = Setting("gemma-7b", 8, Plan(2, 4096, checkpointing=checkpointing))  # type: ignore[arg-type]
    assert setting.name == f"gemma-7b/8 2x4096 sdpa hf naive {checkpointing}"
    assert setting.tiny.name == f"gemma/2 2x32 sdpa hf naive {checkpointing}"
    tiny = setting.tiny
    if checkpointing == "offloaded":  # a CPU keeps all inputs
        tiny = replace(tiny, plan=replace(tiny.plan, checkpointing="plain"))
    found = measure_peak(setting.tiny, CPU)
    assert predict_peak(tiny, CPU)[0] == pytest.approx(found.measured, rel=0.03)
    assert found.step_ms > 0


def test_the_tracker_counts_storages_once_and_while_they_live() -> None:
    x = torch.ones(256)
    with AllocationTracker(x) as tracker:
        y = x + 1
        z = y.view(16, 16)
        assert tracker.bytes == 2048
        del y
        assert tracker.bytes == 2048
        del z
        assert tracker.bytes == 1024
    assert tracker.peak == 2048
