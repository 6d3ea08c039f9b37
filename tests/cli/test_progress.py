"""What a long command shows on stderr while it runs: on a terminal, and where there is none."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from porter.cli.progress import describe_left
from porter.comparison.progress import Estimate, Work
from tests.models.commands import ENVIRONMENT
from tests.models.tiny import porter_cache  # noqa: F401

DIFF = [sys.executable, "-m", "porter", "diff", "llama", "--size", "tiny", "--tokens", "16", "--json"]
STAGES = ["semantics float32", "behaviour float32", "precision bfloat16", "behaviour bfloat16", "observability"]


def on_terminal(folder: Path, *command: str, columns: int = 80) -> tuple[str, str]:
    """stdout, a file, and what a terminal on stderr was sent."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with (folder / "stdout").open("w") as out:
        streams = {"stdout": out, "stderr": theirs, "stdin": subprocess.DEVNULL}
        ran = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT | {"TERM": "xterm"}, **streams)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # Linux: the other end is closed
        pass
    finally:
        os.close(ours)
    assert ran.wait(timeout=60) == 0, shown
    return (folder / "stdout").read_text(), shown.decode()


def test_a_terminal_has_one_live_line(tmp_path: Path) -> None:
    stdout, shown = on_terminal(tmp_path, *DIFF, "-")
    assert json.loads(stdout)["verdict"] == "PASS"
    *frames, last = shown.split("\r\x1b[2K")
    text = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frame) for frame in [*frames, last]]
    assert all("\n" not in line and len(line) <= 80 for line in text[:-1]), text
    assert text[-1].count("\n") == 1 and last.endswith("\r\x1b[1A\x1b[2K"), "the line is taken away at the end"
    percents = [int(found) for line in text for found in re.findall(r"(\d+)%", line)]
    assert percents == sorted(percents) and percents[0] == 0 and percents[-1] == 100 and len(set(percents)) > 3
    assert any("time left not known yet" in line for line in text) and text[-1].startswith("observability axes")
    assert re.search(r"0:0\d:\d\d 0:00 left", text[-1])


@pytest.mark.parametrize("extra", [{}, {"FORCE_COLOR": "1"}], ids=["plain", "colours forced"])
def test_elsewhere_a_stage_is_a_plain_line(tmp_path: Path, extra: dict[str, str]) -> None:
    ran = subprocess.run([*DIFF, "o.json"], capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT | extra)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stderr.splitlines()
    assert [re.fullmatch(r"(.*): \d+\.\d s, \d+% done", line)[1] for line in lines] == STAGES  # type: ignore[index]
    assert lines[-1].endswith("100% done") and not re.search(r"[\x00-\x09\x0b-\x1f]", ran.stderr)


def test_json_on_stdout_leaves_stderr_empty_where_a_program_may_read_both(tmp_path: Path) -> None:
    ran = subprocess.run(
        [*DIFF, "-"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, env=ENVIRONMENT
    )
    assert json.loads(ran.stdout)["verdict"] == "PASS"


def test_what_is_left_is_said_as_far_as_it_is_known() -> None:
    estimate = Estimate([Work("a", 4), Work("b", 100)], now_s=0.0)
    assert describe_left(estimate) == "time left not known yet"
    estimate.done("a", 30.0)
    estimate.done("a", 62.0)
    assert describe_left(estimate) == "at least 1:02 left"
    estimate.done("a", 90.0)
    estimate.done("a", 120.0)
    assert describe_left(estimate) == "time left not known yet", "b has not begun"
    estimate.done("b", 160.0)
    estimate.done("b", 200.0)
    assert describe_left(estimate) == "1:05:20 left"
