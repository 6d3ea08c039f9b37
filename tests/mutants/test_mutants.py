"""The mutator changes what it says, names it for good, and tells a killed mutant from a survivor."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.find import PACKAGE, Mutant, choose, find_mutants, mutants_of
from tests.mutants.report import check_reasons
from tests.mutants.wiring import KINDS

ROOT = Path(__file__).resolve().parents[2]
TOY = '''"""x times w."""

import torch
from torch import Tensor

from porter_kernels.launch import check_launch, tl, triton
from porter_kernels.plans import Plan, launch

# --- reference ------------------


def toy_reference(x: Tensor, w: float) -> Tensor:
    return x * w + 0


# --- kernels --------------------


@triton.jit
def _toy_kernel(x_ptr, y_ptr, n, w, BLOCK: tl.constexpr):
    """Not mutated: 1 + 1."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    if BLOCK > 1:
        x = x * w
    tl.store(y_ptr + at, x, mask=at < n)


def toy(x: Tensor, w: float, eps: float = 1e-6) -> Tensor:
    if w == 0:
        raise ValueError(f"toy: w is {w + 1}")
    y = torch.empty_like(x.contiguous())
    check_launch("toy", x)
    launch(Plan("toy", _toy_kernel, (1,), n=x.numel(), w=w, BLOCK=8, num_warps=4), x_ptr=x, y_ptr=y)
    return y
'''
TEST_TOY = """
import torch
from porter_kernels.toy import toy, toy_reference

def test_matches_reference():
    for x in (torch.arange(5.0), torch.arange(8.0).half()):
        assert toy(x, 3.0).tolist() == toy_reference(x, 3.0).tolist()
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A root with one op, and what it imports."""
    for name in ("__init__.py", "interpret.py", "interpreter_bf16.py", "launch.py", "plans.py"):
        target = tmp_path / PACKAGE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text((ROOT / PACKAGE / name).read_text())
    (tmp_path / PACKAGE / "toy.py").write_text(TOY)
    tests = tmp_path / "tests/porter_kernels"
    tests.mkdir(parents=True)
    (tests / "test_toy.py").write_text(TEST_TOY)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    shutil.copytree(ROOT / "tests/mutants", tmp_path / "tests/mutants", ignore=shutil.ignore_patterns("*.json"))
    return tmp_path


@pytest.fixture(scope="module")
def everything() -> list[Mutant]:
    return find_mutants(ROOT)


def toy_mutants(root: Path) -> list[Mutant]:
    return mutants_of(root, PACKAGE / "toy.py")


def test_every_mutant_of_the_library_is_python_and_differs(everything: list[Mutant]) -> None:
    assert len(everything) >= 300
    assert {m.kind for m in everything} == KINDS.keys()
    assert len({m.id for m in everything}) == len(everything)
    for m in everything[::101]:
        assert ast.dump(ast.parse(m.text)) != ast.dump(ast.parse(m.original)), m.id


def test_references_errors_docstrings_and_speed_are_left_alone(toy: Path) -> None:
    lines = TOY.splitlines()
    mutated = {lines[m.lines[0] - 1].strip() for m in toy_mutants(toy)}
    assert not [line for line in mutated if line.startswith(("return x * w", "raise", '"""', "import", "from"))]
    assert not [m.diff for m in toy_mutants(toy) if "Plan(" in m.text and "num_warps=4" not in m.text]


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("operator", "x = x / w"),
        ("dropped", "tl.store"),  # replaced by pass
        ("mask", "tl.store(y_ptr + at, x)"),
        ("mask", "at < n - 1"),
        ("cast", "tl.load(x_ptr + at, mask=at < n, other=0.0)\n"),
        ("cast", "(tl.program_id(0) * BLOCK).to(tl.int64)"),
        ("constant", "eps: float = 1.01e-06"),
        ("swapped", "tl.load(y_ptr + at"),
        ("swapped", "x_ptr=y, y_ptr=x"),
        ("condition", "if not BLOCK > 1"),
        ("launch", "    None\n    launch("),
        ("layout", "torch.empty_like(x)"),
    ],
)
def test_kinds(kind: str, change: str, toy: Path) -> None:
    texts = [m.text for m in toy_mutants(toy) if m.kind == kind]
    if kind == "dropped":
        assert any(change not in text and "    pass\n" in text for text in texts)
    else:
        assert any(change in text for text in texts)


def test_an_id_stays_when_other_lines_change(toy: Path) -> None:
    before = {m.id: m.diff for m in toy_mutants(toy)}
    moved = TOY.replace('"""x times w."""', '"""x times w."""\n\nSCALE = 2').replace("x * w + 0", "x * w")
    (toy / PACKAGE / "toy.py").write_text(moved)
    after = {m.id: m.diff for m in toy_mutants(toy)}
    assert before.items() <= after.items() and len(after) > len(before)


def test_draws_are_equal_for_equal_seeds(everything: list[Mutant]) -> None:
    draws = [[m.id for m in choose(everything, ("softcap", "cross_entropy"), 5, seed)] for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert {i.split(".")[0] for i in draws[0]} == {"softcap", "cross_entropy"}
    assert sum(i.startswith("softcap.") for i in draws[0]) == 5


def test_reasons_neither_lack_nor_rot(toy: Path) -> None:
    survivor, killed, *_ = judged = toy_mutants(toy)[:2]
    verdicts = {survivor.id: {"verdict": "survived", "by": ""}, killed.id: {"verdict": "killed", "by": "test_x"}}
    assert check_reasons(judged, judged, verdicts, {survivor.id: "why"}) == []
    (lacks,) = check_reasons(judged, judged, verdicts, {})
    assert lacks.startswith(f"{survivor.id} survives.")
    problems = check_reasons(judged, judged, verdicts, dict.fromkeys((survivor.id, killed.id, "gone"), "why"))
    assert problems == [
        "equivalent.json: gone is no mutant. Remove it.",
        f"equivalent.json: {killed.id} is killed by test_x. Remove it.",
    ]


def test_a_planted_mutant_is_killed_and_a_survivor_needs_a_reason(toy: Path) -> None:
    by_text = {m.text: m.id for m in toy_mutants(toy)}
    killed = by_text[TOY.replace("x = x * w", "x = x / w")]
    survivor = by_text[TOY.replace("1e-6", "1.01e-06")]

    command = [sys.executable, "-m", "tests.mutants", "--mutant", killed, "--mutant", survivor]
    environment = os.environ | {"PYTHONPATH": str(toy)}
    result = subprocess.run(command, cwd=toy, env=environment, capture_output=True, text=True, timeout=120)

    assert result.returncode == 1 and "-        x = x * w\n+        x = x / w\n" in result.stdout, result.stderr
    assert f"{survivor} survives. Write a test" in result.stderr and f"{killed} survives" not in result.stderr
    verdicts = [json.loads(line) for line in (toy / "build/mutants.jsonl").read_text().splitlines()]
    assert {v["id"]: v["verdict"] for v in verdicts} == {killed: "killed", survivor: "survived"}
    assert {v["by"] for v in verdicts} == {"", "tests/porter_kernels/test_toy.py::test_matches_reference"}
