"""A benchmark in the terminal."""

from dataclasses import replace
from io import StringIO

from rich.console import Console

from porter.bench.results import Record
from porter.reports.bench_terminal import render_bench
from porter.reports.memory_table import render_memory, saving
from tests.bench.synthetic import synthetic_memory, synthetic_run, with_value

RUN = synthetic_run()


def printed(run=RUN) -> str:
    out = StringIO()
    render_bench(run, Console(file=out, width=80))
    return out.getvalue()


def test_every_op_has_a_table_with_porter_and_its_best_peer() -> None:
    text = printed()
    for case in RUN.cases:
        assert case.size in text
    line = next(line for line in text.splitlines() if line.startswith("8192x2048 bf16"))
    assert line.split()[2:5] == ["0.0440", "91%", "liger"]
    assert "…" not in text and max(map(len, text.splitlines())) <= 120
    assert "GPU NVIDIA H200" in text and "commit 0123456789ab" in text


def test_who_is_not_ranked_is_named_with_the_reason() -> None:
    text = printed()
    assert "wrong liger at cross_entropy 8192x151936 bf16: d_logits is off by 0.5" in text
    assert "failed compile at activation 8192x14336 act=relu2 bf16: out of memory" in text
    assert text.count("missing quack: ModuleNotFoundError: No module named 'quack'") == 1


def test_the_last_lines_name_every_row_that_is_worse_than_eager() -> None:
    assert printed().splitlines()[-1].startswith("no row in which porter is worse than eager")
    worse = with_value(RUN, "rope 4x4096x32x8x128 bf16", "porter", "forward_ms", 99.0)
    assert printed(worse).splitlines()[-1].startswith("regression  rope 4x4096x32x8x128 bf16: forward 99 ms")


def test_small_cases_that_hold_the_host_longer_are_named_last() -> None:
    small = next(case.name for case in RUN.cases if case.small and case.op == "rms_norm")
    *_, longer = printed(with_value(RUN, small, "porter", "host_ms", 5.0)).splitlines()
    assert longer.startswith(f"longer on the host  {small}: host 5 ms, eager ")


def test_without_a_gpu_errors_alone() -> None:
    records = [record for record in RUN.records if record.metric == "error"]
    run = replace(RUN, records=tuple(records), floors=(), rates=(), notes=("No GPU here",))
    text = printed(run)
    assert "note No GPU here" in text and "worst relative error" in text and "ms" not in text.split("rms_norm")[1][:400]
    assert text.splitlines()[-1].endswith("(correctness alone)")


def test_a_porter_that_failed_has_no_time() -> None:
    failed = Record("rope 4x4096x32x8x128 bf16", "porter", "error", status="failed", note="RuntimeError: x")
    kept = [record for record in RUN.records if (record.case, record.provider) != (failed.case, "porter")]
    text = printed(replace(RUN, records=(*kept, failed)))
    assert next(line for line in text.splitlines() if line.startswith("4x4096x32x8x128 bf16")).split()[2] == "failed"
    assert "regression  rope 4x4096x32x8x128 bf16: porter failed: RuntimeError: x" in text


def test_memory_curves() -> None:
    out, run = StringIO(), synthetic_memory()
    render_memory(run, Console(file=out, width=100))
    text = out.getvalue()
    assert "4096 features, 128,256 classes" in text and text.count("out of memory") == 1
    assert "  8192" in text and saving(run) in text
    assert "times less at 16384 tokens and 128,256 classes" in saving(run)
    assert saving(replace(run, points=run.points[:1])) == "No method has a number beside another's"
