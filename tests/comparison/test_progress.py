"""What a diff says there is to do is what it does; the estimate of the time left."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from porter.comparison.diff import diff
from porter.comparison.progress import Estimate, Work
from tests.models.tiny import tiny


class Noted:
    def __init__(self) -> None:
        self.planned: list[list[Work]] = []
        self.units: list[str] = []

    def plan(self, work: Sequence[Work]) -> None:
        assert not self.units
        self.planned.append(list(work))

    def done(self, stage: str, unit: str) -> None:
        self.units.append(stage)


RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "all": ("bfloat16", {}),
    "float32": ("float32", {}),
    "layers": ("bfloat16", {"layers": "0,2"}),
    "first-bad": ("bfloat16", {"layers": "first-bad"}),
    "precision": ("bfloat16", {"stages": ["precision"]}),
    "behaviour": ("bfloat16", {"stages": ["behaviour"]}),
    "short": ("bfloat16", {"tokens": 5}),
}


@pytest.mark.parametrize("case", RUNS)
def test_every_unit_that_was_planned_is_done(case: str) -> None:
    dtype, options = RUNS[case]
    noted = Noted()
    diff(tiny("llama", dtype=dtype), **{"tokens": 14, **options}, progress=noted)
    ((planned),) = noted.planned
    units: Counter[str] = Counter()
    for part in planned:
        units[part.stage] += part.units
    assert Counter(noted.units) == +units and noted.units
    order = list(dict.fromkeys(part.stage for part in planned if part.units))
    assert list(dict.fromkeys(noted.units)) == order


def test_the_units_of_all_prompts_are_planned(tmp_path: Path) -> None:
    file, noted = tmp_path / "three.jsonl", Noted()
    file.write_text('{"ids": [1, 2, 3]}\n{"ids": [%s]}\n{"ids": [4, 5]}\n' % ", ".join(["7"] * 20))  # noqa: UP031
    diff(tiny("gpt2", dtype="float32"), prompts=file, progress=noted)
    (planned,) = noted.planned
    assert [(part.units, part.tokens) for part in planned if part.stage == "semantics float32"] == [
        (5, 3), (5, 20), (5, 2),
    ]  # fmt: skip
    assert len(noted.units) == sum(part.units for part in planned)


def test_time_left_is_known_of_stages_with_two_units_done() -> None:
    estimate = Estimate([Work("a", 4, 10), Work("b", 2, 20)], now_s=100.0)
    assert estimate.share == 0.0 and estimate.left_s is None and estimate.untimed
    estimate.done("a", 103.0)
    assert estimate.left_s is None and estimate.share == 10 / 80
    estimate.done("a", 104.0)
    assert estimate.left_s == pytest.approx(4.0) and estimate.untimed
    estimate.done("a", 106.0)
    estimate.done("a", 108.0)
    assert estimate.left_s == 0.0 and estimate.untimed and estimate.finished("a") and estimate.seconds("a") == 8.0
    estimate.done("b", 118.0)
    estimate.done("b", 128.0)
    assert estimate.left_s == 0.0 and not estimate.untimed and estimate.share == 1.0


def test_units_are_weighed_by_their_tokens() -> None:
    estimate = Estimate([Work("a", 2, 10), Work("a", 2, 100)], now_s=0.0)
    estimate.done("a", 1.0)
    estimate.done("a", 2.0)
    assert estimate.left_s == pytest.approx(20.0) and estimate.share == pytest.approx(20 / 220) and not estimate.untimed
    estimate.done("c", 3.0)  # not planned
    assert estimate.share == pytest.approx(20 / 220)
