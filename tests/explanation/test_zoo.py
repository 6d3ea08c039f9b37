"""The zoo run for real: caught where expected, and nothing else counts as caught."""

from dataclasses import replace

import pytest

from porter.comparison import diff as diff_module
from porter.errors import SpecError, UsageError
from porter.explanation import zoo as zoo_module
from porter.explanation.zoo import Found, Outcome, Score, choose_rows, judge, run_zoo
from porter.explanation.zoo_file import FalseAlarm, Mistake, Zoo, read_zoo

ZOO = read_zoo()


def one(name: str, zoo: Zoo = ZOO) -> Outcome:
    (outcome,) = run_zoo(zoo, [name])
    return outcome


def changed(name: str, **fields: object) -> Zoo:
    """The zoo with one row changed."""
    return replace(ZOO, rows={**ZOO.rows, name: ZOO.rows[name].model_copy(update=fields)})


@pytest.mark.parametrize(
    "name",
    [
        "3",  # bits alone
        "5",  # bfloat16 alone
        "8",  # float32 alone
        "24",  # a config of its own, in the last layer
        "71",  # refused with its weights
        "81",  # the two sides do not show the same nodes
    ],
)
def test_a_mistake_is_caught_where_it_acts(name: str) -> None:
    outcome, row = one(name), ZOO.rows[name]
    assert isinstance(row, Mistake) and outcome.found is not None
    assert (outcome.status, outcome.found.stage, outcome.found.node) == ("caught", row.stage, row.node)


def test_each_change_of_a_row_shows_alone() -> None:
    for name in ("43", "89"):
        row = ZOO.rows[name]
        assert isinstance(row, Mistake) and len(row.set) > 1
        for change in row.set:
            assert one(name, changed(name, set=(change,))).found.verdict == "FAIL", change


@pytest.mark.parametrize("name", ["N3a", "N5"])
def test_a_false_alarm_stays_quiet(name: str) -> None:
    outcome = one(name)
    assert outcome.status == "quiet" and outcome.found.verdict == ("PASS" if name == "N3a" else "WARN")


def test_a_right_change_at_a_wrong_place_is_not_caught() -> None:
    assert one("8", changed("8", node="layers.0.mlp.out")).status == "elsewhere"
    assert one("8", changed("8", stage="precision")).status == "elsewhere"


def test_what_the_data_cannot_show_is_unobservable() -> None:
    outcome = one("38", changed("38", tokens=100))  # the window is 128
    assert outcome.status == "unobservable" and outcome.found.stage is None
    score = Score([outcome])
    assert (score.mistakes, score.caught, score.passed) == (1, 0, False)


def test_rows_outside_are_not_run() -> None:
    outcome = one("101")
    assert (outcome.status, outcome.found, outcome.seconds) == ("outside", None, 0.0)
    assert Score([outcome]).passed  # there was nothing to catch


def test_rows_with_the_same_change_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def count(port: object, **given: object) -> object:
        calls.append(str(given))
        return diff_module.diff(port, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(zoo_module, "diff", count)
    first, again = run_zoo(ZOO, ["15", "16"])
    assert first.found == again.found and first.status == again.status == "caught" and len(calls) == 1


def test_rows_are_chosen_in_the_order_of_the_file() -> None:
    assert choose_rows(ZOO, ["N4", "8", "3"]) == ["3", "8", "N4"] and choose_rows(ZOO, []) == list(ZOO.rows)
    with pytest.raises(UsageError, match="--row 2: the zoo has no such row"):
        choose_rows(ZOO, ["2"])


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"set": ("block.mlp.act=gelu_tanh",)}, "changes nothing"),
        ({"set": ("block.mlp.atc=gelu",)}, "no axis is called"),
        ({"family": "gema"}, "did you mean gemma"),
        ({"size": "huge"}, "gemma has no size 'huge'"),
    ],
)
def test_a_row_that_cannot_run_is_named_with_its_line(fields: dict[str, object], says: str) -> None:
    with pytest.raises(SpecError) as caught:
        one("8", changed("8", **fields))
    assert caught.value.wrong.startswith(f"{ZOO.where['8']}: row 8: ") and says in str(caught.value)


def test_judgement() -> None:
    mistake = ZOO.rows["8"]
    alarm = ZOO.rows["N5"]
    assert isinstance(mistake, Mistake) and isinstance(alarm, FalseAlarm)
    nothing = Found(None, None, None, "PASS", "")
    assert judge(mistake, nothing) == "unobservable" and judge(alarm, nothing) == "quiet"
    undecided = replace(nothing, verdict="INCONCLUSIVE")
    assert judge(mistake, undecided) == judge(alarm, undecided) == "inconclusive"
    failed = Found("semantics", "layers.0.mlp.act", 508.0, "FAIL", "")
    assert judge(mistake, failed) == "caught" and judge(alarm, failed) == "false alarm"


def outcomes(caught: int, missed: int, alarms: int = 0) -> Score:
    mistake, alarm = ZOO.rows["8"], ZOO.rows["N5"]
    rows = [Outcome("8", mistake, "caught", None, 0.0)] * caught + [
        Outcome("8", mistake, "elsewhere", None, 0.0)
    ] * missed
    return Score([*rows, *[Outcome("N5", alarm, "false alarm", None, 0.0)] * alarms])


def test_the_score_needs_98_of_100_and_no_false_alarm() -> None:
    assert outcomes(98, 2).passed and not outcomes(97, 3).passed
    assert not outcomes(100, 0, alarms=1).passed
    assert not outcomes(0, 1).passed and outcomes(0, 0).passed
    assert (outcomes(98, 2).mistakes, outcomes(98, 2).caught) == (100, 98)
