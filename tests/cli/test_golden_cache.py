"""porter diff --golden-cache on the command line: killed, interrupted, shared by two runs, refused."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.models.commands import ENVIRONMENT, porter, refused
from tests.models.tiny import porter_cache
from tests.read_only import read_only

__all__ = ["porter_cache"]
GIVEN = ["diff", "llama", "--size", "tiny", "--tokens", "8", "--stage", "semantics,precision", "--json", "-"]
UNITS = 26  # embed, three layers, head, of golden and of the reference, whose own way makes three more; in two dtypes
HALF_A_UNIT = """
import sys, time
from pathlib import Path
from porter.weights import checked_file

real, left = checked_file.write_file, int(sys.argv.pop(1))

def half(path, *given):
    global left
    left -= 1
    real(path, *given)
    if left < 0:
        path.write_bytes(path.read_bytes()[:1000])
        Path("half").touch()
        time.sleep(600)

checked_file.write_file = half
from porter.cli.main import cli
cli()
"""


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, folder: Path = Path()) -> dict[str, Any]:
    """A run to its end in a process of its own: what a test process has set may change bits, and the cache's key."""
    result = subprocess.run(
        [sys.executable, "-c", "from porter.cli.main import cli; cli()", *GIVEN, *arguments], capture_output=True,
        text=True, env=ENVIRONMENT | {"XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]}, timeout=120, cwd=folder,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def bare(porter_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run without a golden cache; no two tests need another."""
    return run(folder=tmp_path_factory.mktemp("bare"))


def numbers(document: dict[str, Any]) -> dict[str, Any]:
    """The JSON but for times and what names the cache."""
    ran = {key: value for key, value in document["run"].items() if key not in ("created", "golden", "command")}
    return {key: value for key, value in document.items() if key not in ("timings", "warnings")} | {"run": ran}


def counts(document: dict[str, Any]) -> tuple[int, int]:
    golden = document["run"]["golden"]
    return golden["cache_read"], golden["cache_made"]


def started(*arguments: str, script: str = "from porter.cli.main import cli; cli()") -> subprocess.Popen[str]:
    """The command in a process of its own, with the weights that this process has drawn."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments, *GIVEN, "--golden-cache", "cache"], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=ENVIRONMENT | {"XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]},
    )  # fmt: skip


def stopped_halfway(by: signal.Signals, after: int) -> subprocess.Popen[str]:
    """A run that was stopped in the middle of writing a unit, `after` units having been written."""
    ran = started(str(after), script=HALF_A_UNIT)
    while not Path("half").exists() and ran.poll() is None:
        time.sleep(0.05)
    assert ran.poll() is None, ran.communicate()
    ran.send_signal(by)
    return ran


@pytest.mark.parametrize("after", [0, 9])
def test_a_run_that_was_killed_while_it_wrote_is_taken_up_where_it_was(after: int, bare: dict[str, Any]) -> None:
    stopped_halfway(signal.SIGKILL, after).communicate(timeout=60)
    assert len(list(Path("cache").rglob("*.safetensors"))) == after
    (part,) = Path("cache").rglob("*.part")
    resumed = run("--golden-cache", "cache")
    assert counts(resumed) == (after, UNITS - after) and resumed["warnings"] == []
    assert numbers(resumed) == numbers(bare) == numbers(run("--golden-cache", "cache"))
    assert part.is_file()  # it might be another run's, at work
    os.utime(part, (time.time() - 3600,) * 2)
    assert counts(run("--golden-cache", "cache")) == (UNITS, 0) and list(Path("cache").rglob("*.part")) == []


def test_ctrl_c_while_a_unit_is_written_leaves_no_half_of_it(bare: dict[str, Any]) -> None:
    ran = stopped_halfway(signal.SIGINT, 5)
    out, err = ran.communicate(timeout=60)
    assert ran.returncode in {1, 130} and "Traceback" not in err and out == "", err
    assert len(list(Path("cache").rglob("*.safetensors"))) == 5 and list(Path("cache").rglob("*.part")) == []
    resumed = run("--golden-cache", "cache")
    assert counts(resumed) == (5, UNITS - 5) and numbers(resumed) == numbers(bare)


def test_two_runs_at_once_on_one_folder(bare: dict[str, Any]) -> None:
    both = [started(), started()]
    for ran in both:
        out, err = ran.communicate(timeout=120)
        document = json.loads(out)
        assert ran.returncode == 0 and document["warnings"] == [] and sum(counts(document)) == UNITS, err
        assert numbers(document) == numbers(bare)
    assert list(Path("cache").rglob("*.part")) == [] and len(list(Path("cache").rglob("*.safetensors"))) == UNITS
    assert counts(run("--golden-cache", "cache")) == (UNITS, 0)


def test_a_folder_that_cannot_be_used_exits_with_2_at_once() -> None:
    Path("file").write_text("mine")
    refused(porter(*GIVEN, "--golden-cache", "file"), 2, "the golden cache file cannot be used: File exists")
    Path("empty").mkdir()
    with read_only(Path("empty")):
        result = porter(*GIVEN, "--golden-cache", "empty")
    refused(result, 2, "empty cannot be used: Permission denied", f"it lacks {UNITS} of the {UNITS} units of this run")
    assert sorted(path.name for path in Path().iterdir()) == ["empty", "file"]


def test_a_damaged_unit_is_a_note_on_the_terminal() -> None:
    porter(*GIVEN, "--golden-cache", "cache")
    path = next(Path("cache").rglob("layers.1.safetensors"))
    path.write_bytes(path.read_bytes()[:-1])
    result = porter(*GIVEN[:-1], "report.json", "--golden-cache", "cache")
    said = " ".join(result.stdout.split())
    assert result.exit_code == 0 and "note golden cache: " in said and "not used, and made again" in said
    assert counts(json.loads(Path("report.json").read_text())) == (UNITS - 1, 1)
