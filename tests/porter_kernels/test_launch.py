"""Where kernels cannot run, references still do, and a launch says how to fix it. Tile and grid sizes; fresh memory."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from porter_kernels import launch
from porter_kernels.launch import (
    Config,
    as_rows,
    block_size,
    next_power_of_2,
    num_programs,
    num_warps,
    rows_per_program,
    tuned,
)

ROOT = Path(__file__).resolve().parents[2]
OPS = "rms_norm", "glu", "softcap", "cross_entropy"
REFERENCES = """
import sys, torch
{before}
import porter_kernels
print(porter_kernels.use_interpreter_on_cpu())
from porter_kernels.rms_norm import rms_norm, rms_norm_reference
from porter_kernels.layer_norm import layer_norm_reference
from porter_kernels.rope import rope_reference
from porter_kernels.rope_tables import rope_tables
from porter_kernels.glu import glu, glu_reference
from porter_kernels.softcap import softcap, softcap_reference
from porter_kernels.cross_entropy import cross_entropy, cross_entropy_reference
x, target = torch.ones(2, 4), torch.ones(2, 4, dtype=torch.int64)
rms_norm_reference(x, x[0], 1e-6, math="cast_then_scale"), layer_norm_reference(x, None, None, 1e-5, math="fused")
glu_reference(x, x, act="silu"), softcap_reference(x, 1.0), cross_entropy_reference(x, target[0, :2])
rows = lambda: cross_entropy(x[:, None].expand(2, 4, 4), target, reduction="none")
for launch in (lambda: rms_norm(x, x[0], 1e-6), lambda: glu(x, x, act="silu"), lambda: softcap(x, 1.0), rows):
    try:
        print(launch().shape)
    except ValueError as error:
        print(error)
"""


def run_without_gpu(before: str) -> list[str]:
    """What a fresh process prints: whether it interprets, then the result or error of each launch."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "kernels"), "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("TRITON_INTERPRET", None)
    script = REFERENCES.format(before=before)
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], env=environment, capture_output=True, text=True, timeout=120
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.splitlines()


def test_interpreter_is_switched_on_in_time() -> None:
    assert run_without_gpu(before="") == ["True", *["torch.Size([2, 4])"] * len(OPS)]


def test_without_triton_a_launch_says_what_to_install() -> None:
    interpreting, *errors = run_without_gpu(before="sys.modules['triton'] = None")  # import triton raises ImportError
    assert interpreting == "False"
    for op, error in zip(OPS, errors, strict=True):
        assert error.startswith(f"{op}: triton is not installed, expected it to launch the kernel. Install it with pip")
        assert error.endswith(f"call {op}_reference.")


def test_on_a_cpu_that_compiles_a_launch_says_what_to_call() -> None:
    interpreting, *errors = run_without_gpu(before="import triton")
    assert interpreting == "False"
    for op, error in zip(OPS, errors, strict=True):
        assert error.startswith(f"{op}: x is on cpu, expected a CUDA device")
        assert "use_interpreter_on_cpu() before triton is imported" in error
        assert error.endswith(f"call {op}_reference.")


@pytest.mark.parametrize(("n", "power"), [(0, 1), (1, 1), (2, 2), (3, 4), (63, 64), (64, 64), (65, 128)])
def test_next_power_of_2(n: int, power: int) -> None:
    assert next_power_of_2(n) == power


@pytest.mark.parametrize(("block", "warps"), [(1, 1), (512, 1), (4096, 8), (65536, 16)])
def test_num_warps(block: int, warps: int) -> None:
    assert num_warps(block) == warps


@pytest.mark.parametrize(("n", "block"), [(1, 1), (63, 64), (2048, 2048), (2049, 2048), (10**9, 2048)])
def test_a_block_is_at_most_a_tile(n: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "TILE", 2048)
    assert block_size(n) == block


@pytest.mark.parametrize(
    ("block", "rows"), [(1, 2048), (64, 32), (256, 8), (1024, 2), (2048, 1), (65536, 1)], ids="{}".format
)
def test_compiled_the_rows_of_a_program_follow_from_their_width_alone(
    block: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "TILE", 2048)
    monkeypatch.setattr(launch, "INTERPRETING", False)
    assert {rows_per_program(num_rows, block) for num_rows in (1, 7, 10**6)} == {rows}


@pytest.mark.parametrize(("num_rows", "rows"), [(1, 1), (7, 8), (10**6, 1024)])
def test_interpreted_they_also_stay_within_the_rows_there_are(
    num_rows: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "TILE", 2**16)
    monkeypatch.setattr(launch, "INTERPRETING", True)
    assert rows_per_program(num_rows, 64) == rows


def test_num_programs_is_at_least_one() -> None:
    assert num_programs(torch.device("cpu")) >= 1


@pytest.mark.parametrize(
    ("shape", "rows"), [((), (1, 1)), ((3,), (1, 3)), ((2, 3, 4), (6, 4)), ((2, 0), (2, 0)), ((0, 3), (0, 3))], ids=str
)
def test_as_rows(shape: tuple[int, ...], rows: tuple[int, int]) -> None:
    assert as_rows(torch.zeros(shape)).shape == rows


def test_fresh_memory_is_nan() -> None:
    x = torch.zeros(3)
    assert all(fresh.isnan().all() for fresh in (torch.empty(3), torch.empty_like(x), x.new_empty(3)))


MEASURED = {
    "op": {
        "9.0": {
            "4096": {"rows": 1, "warps": 16, "programs": 2},
            "16384": {"rows": 1, "warps": 16},
            "1024": {"rows": 4, "warps": 8},
        }
    }
}


@pytest.mark.parametrize(
    ("width", "capability", "config"),
    [
        (1024, (9, 0), Config(4, 8)),
        (256, (9, 0), Config(16, 8)),  # narrower: as many elements a tile
        (2048, (9, 0), Config(2, 16, programs=2)),
        (4096, (9, 0), Config(1, 16, programs=2)),
        (32768, (9, 0), Config(1, 16, programs=4)),  # wider than any measured: the rule
        (1024, (8, 0), Config(2, 4, programs=4)),  # another GPU: the rule
    ],
    ids=[
        "as measured",
        "narrower",
        "between",
        "as measured of the wider",
        "wider",
        "another GPU",
    ],  # not by a text that says its defaults
)
def test_tuned_launches_are_data(
    width: int, capability: tuple[int, int], config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tuning.json").write_text(json.dumps(MEASURED))
    monkeypatch.setattr(launch, "TUNING", tmp_path / "tuning.json")
    monkeypatch.setattr(launch, "TILE", 2048)
    monkeypatch.setattr(launch, "INTERPRETING", False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    for cached in (launch._tuned, launch._measured):
        cached.cache_clear()
    try:
        assert tuned("op", 10**6, width, torch.device("cuda")) == config
        assert tuned("op", 1, width, torch.device("cuda")) == config
    finally:
        for cached in (launch._tuned, launch._measured):
            cached.cache_clear()


def test_measured_launches_can_be_launched() -> None:
    for op, by_gpu in json.loads(launch.TUNING.read_text()).items():
        for width, config in (item for by_width in by_gpu.values() for item in by_width.items()):
            assert next_power_of_2(int(width)) == int(width), op
            assert all(n == next_power_of_2(n) for n in (Config(**config).rows, Config(**config).warps)), op
            assert Config(**config).warps <= 32 and Config(**config).programs >= 1, op


def test_a_gpu_without_bfloat16_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    launch._check_bfloat16.cache_clear()
    launch.check_launch("rms_norm", fake_tensor(0, torch.float16))
    message = r"^rms_norm: x is torch.bfloat16 on a Tesla T4, expected float16 or float32"
    with pytest.raises(ValueError, match=message):
        launch.check_launch("rms_norm", fake_tensor(0, torch.bfloat16))


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)], ids=str)
def test_a_gpu_with_bfloat16_may_launch(capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", {1: capability}.__getitem__)
    launch._check_bfloat16.cache_clear()
    launch.check_launch("rms_norm", fake_tensor(1, torch.bfloat16))
    launch._check_bfloat16.cache_clear()


def fake_tensor(device: int, dtype: torch.dtype = torch.float32) -> Any:
    """As check_launch sees a tensor of a GPU."""
    return SimpleNamespace(is_cuda=True, get_device=lambda: device, dtype=dtype)
