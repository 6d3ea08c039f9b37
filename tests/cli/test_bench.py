"""porter bench on the command line, on a machine without a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from porter.bench.curves import to_text as memory_to_text
from porter.bench.results import from_document, to_text
from tests.bench.synthetic import synthetic_memory, synthetic_run, with_value
from tests.models.commands import porter, refused

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing without a GPU")


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_without_a_gpu_it_says_so_and_checks_what_it_can() -> None:
    result = porter("bench", "kernels", "--op", "softcap", "--op", "glu", "--quick", "--check")
    assert result.exit_code == 0, result.output
    assert "No GPU here: device times, host times, memory and the roofline were not measured" in result.stdout
    assert "no row in which porter is worse than eager (correctness alone)" in result.stdout
    files = sorted(path.name for path in Path("benchmarks/results").iterdir())
    assert [Path(name).suffix for name in files] == [".csv", ".html", ".json"]
    assert files[0].startswith("kernels-none-")
    document = json.loads(Path("benchmarks/results", files[2]).read_text())
    run = from_document(document, files[2])
    assert {record.metric for record in run.records} == {"error"}
    assert all(record.status == "ok" for record in run.records if record.provider == "porter")
    assert run.environment["gpu"] == "none" and run.environment["sources"]


def test_resume_goes_on_with_a_file_and_begins_one() -> None:
    first = porter("bench", "kernels", "--case", "softcap 64", "--provider", "porter", "--resume", "run.json")
    assert first.exit_code == 0, first.output
    again = porter("bench", "kernels", "--op", "softcap", "--provider", "porter", "--resume", "run.json")
    assert "1 of 2 cases are there already" in again.stderr
    assert len(from_document(json.loads(Path("run.json").read_text()), "").cases) == 2


def test_a_file_of_another_machine_is_left_alone() -> None:
    text = to_text(synthetic_run())
    Path("h200.json").write_text(text, encoding="utf-8")
    result = porter("bench", "kernels", "--case", "softcap 64", "--provider", "porter", "--resume", "h200.json")
    assert result.exit_code == 0, result.output
    assert "cannot go on with h200.json: gpu was NVIDIA H200, is none" in result.stderr
    assert Path("h200.json").read_text() == text and list(Path("benchmarks/results").glob("*.json"))


def test_report_draws_from_a_file_alone_and_needs_no_torch() -> None:
    Path("run.json").write_text(to_text(synthetic_run()), encoding="utf-8")
    call = "try:\n cli(['bench', 'report', 'run.json'])\nexcept SystemExit: pass"
    code = f"import sys\nfrom porter.cli.main import cli\n{call}\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "8192x128256 bf16" in run.stdout and Path("run.html").stat().st_size > 1e6
    assert "torch" not in run.stdout.splitlines()[-1].split()


def test_report_of_memory_curves() -> None:
    Path("memory.json").write_text(memory_to_text(synthetic_memory()), encoding="utf-8")
    result = porter("bench", "report", "memory.json")
    assert result.exit_code == 0 and "out of memory" in result.stdout and Path("memory.html").exists()


def test_memory_without_a_gpu_writes_nothing() -> None:
    result = porter("bench", "memory")
    assert result.exit_code == 0 and "No GPU here" in result.stderr
    assert not Path("benchmarks").exists()


def test_list_names_cases() -> None:
    result = porter("bench", "kernels", "--list", "--op", "rope")
    assert result.stdout.splitlines()[0] == "rope 4x4096x32x8x128 bf16"
    assert not Path("benchmarks").exists()


def test_refusals() -> None:
    refused(porter("bench", "kernels", "--op", "rmsnorm"), 2, "no op is called 'rmsnorm'")
    refused(porter("bench", "kernels", "--provider", "ligre"), 2, "no provider is called 'ligre'")
    refused(porter("bench", "report", "absent.json"), 3, "absent.json cannot be read")
    Path("other.json").write_text('{"schema": "porter.diff/1"}', encoding="utf-8")
    refused(porter("bench", "report", "other.json"), 3, "the schema of other.json is 'porter.diff/1'")


def test_check_fails_on_a_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    from porter.cli import bench_runs

    run = synthetic_run()
    worse = with_value(run, run.cases[0].name, "porter", "forward_ms", 99.0)
    monkeypatch.setattr(bench_runs, "measure_kernels", lambda *args, **options: (Path("run.json"), worse))
    assert porter("bench", "kernels").exit_code == 0
    assert porter("bench", "kernels", "--check").exit_code == 1
