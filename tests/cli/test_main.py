"""The porter command: quick, lazy, and plain about what is wrong."""

import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from porter.cli.main import COMMANDS, cli

SLACK = 3  # of a busy CI machine over the budgets of design.md
HEAVY = {"torch", "transformers", "triton", "numpy"}
MINE = """extends: llama
model_type: mine
architecture: MineForCausalLM
sizes:
  tiny:
    config: {foo: 1, vocab_size: 8, hidden_size: 8, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 8,
             max_position_embeddings: 8, rms_norm_eps: 1.0e-6}
"""


def timed(*args: str) -> float:
    """Seconds of the best of five runs, the start of the interpreter with them."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "porter", *args], check=True, capture_output=True, timeout=60)
        times.append(time.perf_counter() - start)
    return min(times)


def loaded_by(*args: str) -> set[str]:
    """The top-level modules that a command leaves loaded."""
    call = f"try:\n cli({list(args)})\nexcept SystemExit: pass\n"
    code = f"import sys\nfrom porter.cli.main import cli\n{call}print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    return {name.partition(".")[0] for name in run.stdout.splitlines()[-1].split()}


@pytest.mark.parametrize(
    ("args", "budget"), [(("--help",), 0.25), (("specs", "list"), 0.8), (("specs", "--help"), 0.25)]
)
def test_budgets(args: tuple[str, ...], budget: float) -> None:
    assert timed(*args) < budget * SLACK


@pytest.mark.parametrize(
    "args",
    [
        ("--help",),
        *((name, "--help") for name in COMMANDS),
        ("specs", "list"),
        ("specs", "show", "gemma3"),
        ("specs", "check", "--no-hf", "llama"),
    ],
    ids=" ".join,
)
def test_what_needs_no_torch_loads_none(args: tuple[str, ...]) -> None:
    assert loaded_by(*args).isdisjoint(HEAVY)


def test_help_and_list_load_no_pydantic() -> None:
    assert "pydantic" not in loaded_by("--help") | loaded_by("specs", "list")


def test_help_names_every_command_with_a_sentence() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    for name in COMMANDS:
        assert f"  {name} " in result.stdout
    for name in COMMANDS:
        assert CliRunner().invoke(cli, [name, "--help"]).exit_code == 0


def test_an_unknown_command_is_told_the_closest() -> None:
    result = CliRunner().invoke(cli, ["spec"])
    assert result.exit_code == 2
    assert "no command is called 'spec'; did you mean specs?" in result.stderr
    assert result.stdout == ""


def test_an_error_is_three_lines_and_no_traceback() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "porter", "specs", "show", "gema"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 2 and run.stdout == ""
    assert run.stderr.splitlines() == [
        "Error: no size or family is called 'gema'",
        "  expected: did you mean gemma?",
        "  fix: porter specs list shows all.",
    ]


def test_exit_codes_are_the_errors_own(tmp_path: Path) -> None:
    assert CliRunner().invoke(cli, ["specs", "check", str(tmp_path / "none.yaml")]).exit_code == 2
    path = tmp_path / "mine.yaml"
    path.write_text(MINE, encoding="utf-8")
    result = CliRunner().invoke(cli, ["specs", "check", str(path)])
    assert result.exit_code == 5
    assert "mine.yaml:6: size tiny: nothing reads config key foo" in result.stderr


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes."), "4096 bytes"),
        (
            type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 20.00 GiB."),
            "20.00 GiB",
        ),
        (MemoryError(), ""),
    ],
    ids=["cpu", "gpu", "python"],
)
def test_too_little_memory_is_no_divergence(error: Exception, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        raise error

    monkeypatch.setattr(cli, "get_command", lambda ctx, name: click.Command(name, callback=run))
    result = CliRunner().invoke(cli, ["zoo"])
    assert result.exit_code == 2 and "this run needs more memory than there is" in result.stderr
    assert asked in result.stderr and len(result.stderr.splitlines()) == 3


@pytest.mark.parametrize("interrupted", [True, False])
def test_an_error_on_the_way_out_of_an_interrupt_is_an_interrupt(
    interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        try:
            raise KeyboardInterrupt if interrupted else ValueError
        except BaseException:
            raise RuntimeError("trying to pop from empty mode stack")  # noqa: B904

    monkeypatch.setattr(cli, "get_command", lambda ctx, name: click.Command(name, callback=run))
    result = CliRunner().invoke(cli, ["zoo"])
    if interrupted:
        assert result.exit_code == 1 and result.stderr.strip() == "Aborted!"
    else:
        assert isinstance(result.exception, RuntimeError)
