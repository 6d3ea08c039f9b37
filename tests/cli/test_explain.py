"""porter explain on the command line: the card, exit codes, JSON."""

import json
import shlex
from pathlib import Path

import pytest

import porter_kernels.glu
from tests.models.commands import porter, refused
from tests.models.tiny import porter_cache  # noqa: F401

LLAMA = ("llama", "--size", "tiny", "--weights", "random:stress", "--tokens", "24")


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_command_under_a_fail_names_the_axis_and_its_change_mends_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    assert porter("build", *LLAMA, "--set", "norm.eps=1e-6").exit_code == 0
    arguments = ["diff", "--stage", "semantics", "--layers", "0"]
    monkeypatch.setattr("sys.argv", ["porter", *arguments])
    failed = porter(*arguments)
    command = failed.stdout.rstrip().rpartition("next: ")[2]
    assert failed.exit_code == 1 and command == "porter explain"
    found = porter(*shlex.split(command)[1:])
    assert found.exit_code == 0, found.output
    lines = [line.split() for line in found.stdout.splitlines()]
    assert ["axis", "norm.eps"] in lines and ["the", "port", "has", "1e-06"] in lines
    assert ["the", "reference", "1e-05"] in lines and "    norm:\n      eps: 1e-05\n" in found.stdout
    assert "The mended port: --set norm.eps=1e-05" in found.stdout and "Explained: 1 fault;" in found.stdout
    mended = porter("diff", "--stage", "semantics,exact", "--layers", "0", "--set", "norm.eps=1e-05")
    assert mended.exit_code == 0, mended.output


def test_nothing_to_explain_exits_with_0() -> None:
    found = porter("explain", *LLAMA)
    assert found.exit_code == 0 and found.stdout.startswith("Nothing to explain: the spec, in plain torch, computes")


def test_other_bits_alone_are_told_as_such() -> None:
    found = porter("explain", *LLAMA, "--set", "norm.math=scale_then_cast")
    assert found.exit_code == 0 and "layers.0.attn.norm (exact, bfloat16)" in found.stdout
    assert "→ bit-equal" in found.stdout and "ρ" not in found.stdout


def test_what_no_axis_explains_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    right = porter_kernels.glu.glu_reference
    monkeypatch.setattr(porter_kernels.glu, "glu_reference", lambda gate, up, act: right(gate, up, act=act) * 1.01)
    found = porter("explain", *LLAMA)
    assert found.exit_code == 1, found.output
    assert "layers.0.mlp.act (semantics): no change of the spec brings it to the floor" in found.stdout
    assert "values of" in found.stdout and "the closest" in found.stdout and "Not explained: " in found.stdout
    partly = porter("explain", *LLAMA, "--set", "norm.eps=1e-6")
    assert partly.exit_code == 1 and "Partly explained: 1 fault, and one more" in partly.stdout


def test_json() -> None:
    found = porter("explain", *LLAMA, "--set", "block.mlp.act=gelu", "--json", "-")
    document = json.loads(found.stdout)
    assert (document["schema"], document["outcome"], document["exit"]) == ("porter.explain/1", "explained", 0)
    assert document["set"] == ["block.mlp.act=silu"]
    (fault,) = document["faults"]
    assert (fault["node"], fault["stage"], fault["explained"]) == ("layers.0.mlp.act", "semantics", fault["failing"])
    assert fault["before"] > 10 > 4 >= fault["after"]
    assert fault["changes"][0] == [
        {"kind": "axis", "axis": "block.mlp.act", "port": "gelu", "reference": "silu", "set": "block.mlp.act=silu",
         "patch": "block:\n  mlp:\n    act: silu"}
    ]  # fmt: skip
    porter("explain", *LLAMA, "--json", "deep/explain.json")
    assert json.loads(Path("deep/explain.json").read_text(encoding="utf-8"))["outcome"] == "nothing"


def test_refusals() -> None:
    refused(porter("explain"), 2, "nothing was built in this folder yet")
    refused(porter("explain", *LLAMA, "--set", "act=silu"), 2, "changes nothing")
    refused(porter("explain", *LLAMA, "--json", "."), 2, "it is a folder")
