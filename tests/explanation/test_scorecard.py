"""The scorecard of explain: what counts as named, with the right value, or as an accusation."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from porter.explanation.explain import Explanation
from porter.explanation.scorecard import Given, Scorecard, Scored, draw_pairs, score_explain
from porter.explanation.zoo_file import Mistake, read_zoo
from porter.models.build import Build
from porter.specs.alternatives import Alternative
from tests.models.commands import porter
from tests.models.tiny import porter_cache  # noqa: F401

ZOO = read_zoo()


def scored(
    faults: int,
    named: Sequence[bool] = (),
    valued: Sequence[bool] = (),
    told: Sequence[str] = (),
    outcome: str = "explained",
) -> Scored:  # fmt: skip
    return Scored("8", "gemma", (("a=1",),) * faults, tuple(named), tuple(valued), outcome, tuple(told), 1.0)


def test_shares_and_what_passes() -> None:
    right, other = scored(1, [True], [True], ["a=2"]), scored(1, [True], [False], ["a=3"])
    card = Scorecard([right] * 19 + [other])
    assert (card.axis, card.value, card.passed) == ((20, 20), (19, 20), True)
    assert not Scorecard([right] * 17 + [other] * 3).passed  # 85 % have the right value
    missed = scored(1, [False], [False], [], "unexplained")
    assert not missed.right and not Scorecard([right] * 9 + [missed]).passed
    half = scored(2, [True, False], [True, False], ["a=2"])
    assert not half.right and Scorecard([right, half]).pairs == (0, 1) and not Scorecard([right, half]).passed


def test_a_clean_port_of_which_anything_is_said_is_accused() -> None:
    quiet, accused = scored(0, outcome="nothing"), scored(0, told=["a=1"])
    assert quiet.right and Scorecard([quiet]).passed
    assert Scorecard([quiet, accused]).accused == [accused] and not Scorecard([quiet, accused]).passed
    assert not scored(0, outcome="unexplained").right


def test_pairs_are_of_one_family_and_change_different_axes() -> None:
    rows = {name: row for name, row in ZOO.rows.items() if isinstance(row, Mistake)}
    pairs = draw_pairs(rows, 50)
    assert len(set(pairs)) == 50 and pairs == draw_pairs(rows, 50)
    for one, other in pairs:
        assert rows[one].family == rows[other].family and "preflight" not in (rows[one].stage, rows[other].stage)
        axes = [{change.split("=")[0].rsplit(".")[-1] for change in rows[each].set} for each in (one, other)]
        assert not axes[0] & axes[1]


@pytest.mark.parametrize("given", ["specs", "dumps", "modules"])
def test_rows_are_scored_by_what_is_named(given: Given) -> None:
    found = list(score_explain(ZOO, ["4", "8"], pairs=1, clean=["gemma"], given=given))
    assert [(each.name, each.right, all(each.valued)) for each in found] == [
        ("4", True, True), ("8", True, True), ("4 + 8", True, True), ("clean", True, True),
    ]  # fmt: skip
    has = ("norm.math=scale_then_cast",) if given == "specs" else ("norm.math=cast_then_scale",)
    assert found[0].told == has


def test_a_wrong_name_is_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    from porter.explanation import scorecard

    right = scorecard.explain

    def wrong(port: Build) -> Explanation:
        found = right(port)
        step = replace(found.steps[0], equals=((Alternative("norm.eps", "1e-06", "1e-05"),),))
        return replace(found, steps=(step,), kept=("norm.eps=1e-05",))

    monkeypatch.setattr(scorecard, "explain", wrong)
    (found,) = score_explain(ZOO, ["8"], pairs=0, clean=[])
    assert found.told == ("norm.eps=1e-05",) and found.named == (False,) and found.valued == (False,)


def test_the_command() -> None:
    result = porter("zoo", "--explain", "--row", "8")
    assert result.exit_code == 0 and "the right axis is named first: 1 of 1" in result.stdout, result.output
    assert "0 of 1 clean ports are accused" in result.stdout
    assert porter("zoo", "--dumps").exit_code == 2 and porter("zoo", "--modules").exit_code == 2
