"""porter explain on the command line: the card, exit codes, JSON."""

import json
import shlex
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import porter.models as porter_models
import porter_kernels.glu
from porter.reports.explain_json import explained_from_json, make_schema
from porter.reports.read_json import read_report
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
    assert found.stderr.startswith("explaining diff_reports/llama-tiny/")
    lines = [line.split() for line in found.stdout.splitlines()]
    assert ["axis", "norm.eps"] in lines and ["the", "port", "has", "1e-06"] in lines
    assert ["the", "reference", "1e-05"] in lines and "    norm:\n      eps: 1e-05\n" in found.stdout
    assert "The mended port: --set norm.eps=1e-05" in found.stdout and "Explained: 1 fault;" in found.stdout
    mended = porter("diff", "--stage", "semantics,exact", "--layers", "0", "--set", "norm.eps=1e-05")
    assert mended.exit_code == 0, mended.output


def test_nothing_to_explain_exits_with_0() -> None:
    found = porter("explain", *LLAMA)
    assert found.exit_code == 0 and found.stdout.startswith("Nothing to explain: the spec, in plain torch, computes")
    assert found.stdout.rstrip().endswith("report.html") and "porter diff runs first" in found.stderr


def test_other_bits_alone_are_told_as_such() -> None:
    found = porter("explain", *LLAMA, "--set", "norm.math=scale_then_cast")
    assert found.exit_code == 0 and "layers.0.attn.norm (exact, bfloat16)" in found.stdout
    assert "→ bit-equal" in found.stdout and "ρ" not in found.stdout


def test_what_no_axis_explains_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    right = porter_kernels.glu.glu_reference
    monkeypatch.setattr(porter_kernels.glu, "glu_reference", lambda gate, up, act: right(gate, up, act=act).tanh())
    found = porter("explain", *LLAMA)
    assert found.exit_code == 1, found.output
    assert "layers.0.mlp.act (semantics): no change of the spec brings it to the floor" in found.stdout
    assert "values of" in found.stdout and "the closest" in found.stdout and "Not explained: " in found.stdout
    assert "\n  excluded       " in found.stdout and "shifted by one token" in found.stdout
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
         "patch": "block:\n  mlp:\n    act: silu", "line": "--set block.mlp.act=gelu"}
    ]  # fmt: skip
    porter("explain", *LLAMA, "--json", "deep/explain.json")
    assert json.loads(Path("deep/explain.json").read_text(encoding="utf-8"))["outcome"] == "nothing"


def written() -> list[Path]:
    return sorted(Path("diff_reports/llama-tiny").glob("*/report.json"))


SHORT = ("--size", "tiny", "--weights", "random:stress", "--tokens", "12", "--dtype", "float32")


def test_the_report_gets_a_card_and_explain_json_stands_beside_it() -> None:
    found = porter("explain", "llama", *SHORT, "--set", "block.mlp.act=gelu")
    (path,) = written()
    report, page = read_report(path), path.with_name("report.html").read_text(encoding="utf-8")
    (explained,) = report.explanations
    assert found.exit_code == explained.exit_code == 0 and report.verdict == "FAIL"
    assert explained.sentence == "block.mlp.act is gelu, and silu in the reference"
    assert json.loads(path.read_text(encoding="utf-8"))["summary"]["explanation"] == explained.sentence
    document = json.loads(path.with_name("explain.json").read_text(encoding="utf-8"))
    Draft202012Validator(make_schema(strict=True)).validate(document)
    assert document["report"] == "report.json" and explained_from_json(document) == explained
    assert 'class="card pass"' in page and "Explained: <a" in page and "block:\n  mlp:\n    act: silu" in page
    assert str(path.with_name("report.html")) in found.stdout.splitlines()[-1]
    drawn = porter("report", path, "--html", "again.html")
    assert drawn.exit_code == 0 and 'class="card pass"' in Path("again.html").read_text(encoding="utf-8")


def test_a_spec_of_a_family_says_in_which_line_it_is_wrong() -> None:
    text = (Path(porter_models.__file__).parents[2] / "model_specs" / "gemma.yaml").read_text(encoding="utf-8")
    Path("mine.yaml").write_text(text.replace("gelu_tanh", "gelu"), encoding="utf-8")
    line = next(i for i, each in enumerate(text.splitlines(), start=1) if "gelu_tanh" in each)
    found = porter("explain", "mine.yaml", *SHORT)
    assert found.exit_code == 0 and f"/mine.yaml:{line}\n" in found.stdout, found.output


def test_the_diff_runs_first_unless_a_report_of_this_very_port_is_newer() -> None:
    assert porter("build", "llama", *SHORT).exit_code == 0
    runs = "porter diff runs first"
    assert runs in porter("explain").stderr and len(written()) == 1
    assert runs not in porter("explain").stderr and len(written()) == 1
    changed = ("--set", "block.mlp.act=gelu")
    assert runs in porter("explain", *changed).stderr and len(written()) == 2
    assert runs not in porter("explain", *changed).stderr
    assert runs not in porter("explain").stderr  # the one before is of this port still
    assert runs in porter("explain", "--tokens", "9").stderr and len(written()) == 3
    assert runs in porter("explain", "--dtype", "bfloat16").stderr and len(written()) == 4
    assert runs not in porter("explain").stderr
    for path in written()[1:]:
        path.unlink()
    cut = written()[0]
    cut.write_text(cut.read_text(encoding="utf-8")[:1000], encoding="utf-8")  # as no porter leaves it
    assert runs in porter("explain").stderr
    record = Path("builds/llama-tiny/build.json")
    built = json.loads(record.read_text(encoding="utf-8"))
    record.write_text(json.dumps({**built, "created": "2999-01-01T00:00:00+00:00"}), encoding="utf-8")
    assert runs in porter("explain").stderr


def test_an_interrupted_diff_leaves_no_report_and_is_run_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_args: object, **_given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("porter.cli.explained_report.diff", interrupt)
        assert porter("explain", "llama", *SHORT).exit_code == 1 and written() == []
    assert "porter diff runs first" in porter("explain", "llama", *SHORT).stderr


def test_a_spec_that_the_tensors_do_not_fit_is_explained_without_a_report() -> None:
    found = porter("explain", "qwen2", *SHORT, "--set", "block.attn.bias_qkv=false", "--json", "found.json")
    assert found.exit_code == 0 and "porter diff refuses this port: " in found.stderr
    assert json.loads(Path("found.json").read_text(encoding="utf-8"))["report"] is None
    assert not Path("diff_reports").exists() and "The mended port: --set block.attn.bias_qkv=true" in found.stdout


def test_refusals() -> None:
    refused(porter("explain"), 2, "nothing was built in this folder yet")
    refused(porter("explain", *LLAMA, "--set", "act=silu"), 2, "changes nothing")
    refused(porter("explain", *LLAMA, "--json", "."), 2, "it is a folder")
