"""Every change that explain may try runs in every make of layer, and those of code do change something."""

from collections.abc import Iterator

import pytest
import torch

from porter.comparison.lanes import Nodes
from porter.comparison.one_unit import Captured, run_unit
from porter.explanation.code_changes import CodeChange
from porter.explanation.code_run import run_with_code
from porter.explanation.transforms import code_changes
from porter.explanation.weight_candidates import weight_changes
from porter.explanation.weight_changes import ChangedReader, WeightChange
from porter.explanation.weight_notes import note_weights
from porter.models.build import Build
from porter.specs.blueprint import Blueprint
from porter.weights.reader import WeightReader
from tests.models.tiny import tiny

CPU, TOKENS = torch.device("cpu"), 10


def every_change(blueprint: Blueprint) -> Iterator[tuple[str, WeightChange | CodeChange]]:
    """The unit in which it acts, and the change."""
    for mending in (False, True):
        for unit in ("embed", "layers.1", "head"):
            yield from ((unit, each) for each in weight_changes(blueprint, unit, mending=mending))
        yield from (("layers.1", each) for each in code_changes(blueprint, 1, mending=mending))


def run(build: Build, reader: WeightReader, unit: str, change: WeightChange | CodeChange | None) -> Nodes:
    blueprint = build.blueprint
    x_BTD = torch.randn(1, TOKENS, blueprint.dims.hidden, generator=torch.Generator().manual_seed(0))
    captured = Captured(torch.arange(3, 3 + TOKENS)[None], {1: x_BTD, blueprint.dims.layers: x_BTD})
    if isinstance(change, CodeChange):
        return run_with_code(unit, blueprint, reader, captured, [change], dtype=torch.float32, device=CPU)
    changed = reader if change is None else ChangedReader.of(reader, (change,))
    return run_unit(unit, blueprint, changed, captured, dtype=torch.float32, device=CPU)


@pytest.mark.parametrize("family", ["gpt2", "phi3", "deepseek_v2"])
def test_it_runs_and_changes_something(family: str) -> None:
    build = tiny(family)
    reader = build.reader()
    right = {unit: run(build, reader, unit, None) for unit in ("embed", "layers.1", "head")}
    seen: set[str] = set()
    for unit, change in every_change(build.blueprint):
        assert change.acts_in(unit) and change.kind, change.override
        seen.add(change.override)
        nodes = run(build, reader, unit, change)
        shared = nodes.keys() & right[unit].keys()  # another layer may have experts
        assert shared >= ({"resid_post"} if unit == "layers.1" else right[unit].keys())
        if isinstance(change, CodeChange):
            assert any(not torch.equal(nodes[name], right[unit][name]) for name in shared), change.override
    assert len(seen) > 150
    assert list(note_weights(build.blueprint, reader)) == []
