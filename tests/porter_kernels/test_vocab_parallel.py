"""vocab_parallel_linear_cross_entropy in groups of two and of three processes, started once for all tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from porter_kernels.linear_cross_entropy import vocab_parallel_linear_cross_entropy
from tests.porter_kernels.linear_cross_entropy_budget import DEVICE, draw, run_case
from tests.porter_kernels.vocab_parallel_worker import RUNS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By check and number of processes: the tracebacks of those in which it failed."""
    folder = tmp_path_factory.mktemp("vocab_parallel")
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"}
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.porter_kernels.vocab_parallel_worker", str(rank), str(folder)],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(3)
    ]  # fmt: skip
    try:
        outputs = [worker.communicate(timeout=240)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0, 0], "\n".join(outputs)
    read: dict[str, str] = json.loads((folder / "failures.json").read_text())
    return read


@pytest.mark.parametrize(("check", "processes"), RUNS)
def test_a_split_vocabulary(check: str, processes: int, failures: dict[str, str]) -> None:
    assert not failures[f"{check} over {processes}"], failures[f"{check} over {processes}"]


# Dynamo's own look at tensors between graphs.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_its_graph_breaks_and_the_bits_stay(tmp_path: Path, generator: torch.Generator) -> None:
    case = draw(generator, N=5, bias=False)
    backend = "nccl" if DEVICE == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:

        def op(hidden, weight, target, *, bias, **only):
            return 3 * vocab_parallel_linear_cross_entropy(2 * hidden, weight, target, **only)

        eager, compiled = run_case(op, case), run_case(torch.compile(op, backend="aot_eager"), case)
    finally:
        dist.destroy_process_group()
    assert all(torch.equal(eager[name], compiled[name]) for name in eager)
