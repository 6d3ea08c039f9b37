"""Who is best, and the rule that porter is nowhere worse than plain torch."""

from porter.bench.cases import Case
from porter.bench.ranking import boards, longer_on_the_host, regressions
from tests.bench.synthetic import synthetic_run, with_value

CASES = [
    Case("rms_norm", (8192, 2048)),
    Case("cross_entropy", (8192, 151936)),
    Case("rms_norm", (64, 2048), small=True),
]
NORM, LOSS, SMALL = (case.name for case in CASES)
RUN = synthetic_run(CASES)


def board(name: str):
    return next(each for each in boards(RUN) if each.case.name == name)


def test_only_the_right_are_ranked_and_porter_is_no_peer_of_itself() -> None:
    names = [record.provider for record in board(NORM).ranked("forward_backward_ms")]
    assert names[0] == "porter" and set(names) == {"porter", "liger", "compile", "torch", "eager"}
    best = board(NORM).best_peer("forward_backward_ms")
    assert best is not None and best.provider == "liger"
    assert "liger" not in [record.provider for record in board(LOSS).ranked("forward_backward_ms")]
    assert [(record.provider, record.status) for record in board(LOSS).out_of_rank()] == [("liger", "wrong")]


def test_no_regression_in_a_good_run() -> None:
    assert regressions(RUN) == []


def test_slower_than_eager_is_named_unless_the_spreads_overlap() -> None:
    eager = board(NORM).value("eager", "forward_ms")
    assert eager is not None
    assert regressions(with_value(RUN, NORM, "porter", "forward_ms", 1.01 * eager)) == []
    (line,) = regressions(with_value(RUN, NORM, "porter", "forward_ms", 2 * eager))
    assert line.startswith(f"{NORM}: forward ") and line.endswith("(2.00x)")


def test_longer_on_the_host_than_eager_is_named_apart() -> None:
    assert longer_on_the_host(RUN) == []
    run = with_value(RUN, SMALL, "porter", "host_ms", 5.0)
    assert regressions(run) == []
    (line,) = longer_on_the_host(run)
    assert line.startswith(f"{SMALL}: host 5 ms, eager ")


def test_more_memory_than_eager_is_named() -> None:
    eager = board(NORM).value("eager", "peak_bytes")
    assert eager is not None
    assert regressions(with_value(RUN, NORM, "porter", "peak_bytes", 1.005 * eager)) == []
    (line,) = regressions(with_value(RUN, NORM, "porter", "peak_bytes", 1.5 * eager))
    assert "MB above the inputs, eager" in line


def test_a_wrong_porter_is_named() -> None:
    from dataclasses import replace

    records = [
        replace(each, status="wrong", note="y is off by 0.05 as a whole") if _is_verdict(each) else each
        for each in RUN.records
    ]
    assert regressions(replace(RUN, records=tuple(records))) == [f"{NORM}: porter wrong: y is off by 0.05 as a whole"]


def _is_verdict(record) -> bool:
    return (record.case, record.provider, record.metric) == (NORM, "porter", "error")
