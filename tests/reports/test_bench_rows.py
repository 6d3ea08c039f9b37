"""The numbers that the terminal and the page share."""

from porter.bench.cases import Case
from porter.reports.bench_rows import (
    format_megabytes,
    format_ms,
    format_peer,
    format_ratio,
    ops,
    rows,
    tally,
    tone,
    unranked,
)
from tests.bench.synthetic import synthetic_run, with_value

RUN = synthetic_run()
NORM = "rms_norm 8192x2048 bf16"


def test_a_row_is_porter_beside_its_best_right_peer() -> None:
    run = with_value(
        with_value(RUN, NORM, "porter", "forward_backward_ms", 0.05), NORM, "liger", "forward_backward_ms", 0.06
    )
    first = next(rows(run, "rms_norm"))
    assert (first.label, first.status, first.both_ms) == ("8192x2048 bf16", "ok", 0.05)
    assert first.share == run.floors[0].forward_backward_ms / 0.05
    assert format_peer(first.peer) == "liger 0.0600"
    assert first.ratios["forward_backward_ms"] == 0.06 / 0.05
    assert set(first.ratios) == {"forward_backward_ms", "forward_ms"}  # host time is of small cases


def test_variants_stand_under_their_case() -> None:
    labels = [row.label.strip() for row in rows(RUN, "linear_cross_entropy")]
    assert labels[:2] == ["8192x4096x128256 bf16", "porter-lean"] and len(labels) == 12


def test_a_case_without_a_right_peer_has_no_ratio() -> None:
    run = synthetic_run([Case("cross_entropy", (8192, 151936))])
    peers = ("eager", "compile", "torch")
    records = tuple(record for record in run.records if record.provider not in peers)
    from dataclasses import replace

    (row,) = rows(replace(run, records=records), "cross_entropy")
    assert (row.peer, row.ratios) == (None, {})


def test_tally_and_lists() -> None:
    counts = tally(RUN)
    assert sum(counts.values()) == len(RUN.cases) and counts["ahead"] > counts["level"] > 0
    assert ops(RUN)[:3] == ["rms_norm", "add_rms_norm", "layer_norm"]
    found = [(record.provider, record.status) for record in unranked(RUN)]
    assert sorted(found) == [("compile", "failed"), ("liger", "wrong"), ("quack", "missing"), ("quack-base", "missing")]
    assert [tone(ratio) for ratio in (1.031, 1.03, 1.0, 0.97, 0.969)] == ["ahead", "level", "level", "level", "behind"]


def test_formats() -> None:
    assert [format_ms(value) for value in (None, 0.05774, 1.6712, 37.66)] == ["", "0.0577", "1.671", "37.7"]
    assert [format_megabytes(value) for value in (None, 3.2e5, 1.6e9)] == ["", "0.3", "1,600"]
    assert [format_ratio(value) for value in (None, 1.474)] == ["", "1.47×"]
    assert format_peer(None) == ""
