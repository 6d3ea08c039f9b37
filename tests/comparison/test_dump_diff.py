"""Dumps as sides of a diff: judged as the live run judges, and refused where they are not what they should be."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from porter.cli.main import cli
from porter.comparison.capture import capture
from porter.errors import ArtifactError, PorterError, UsageError
from porter.references.dump import open_dump
from porter.references.recorder import Recorder
from tests.comparison.dump_runs import FAMILY, TOKENS, dump, found, judge
from tests.models.tiny import tiny

GELU = "block.mlp.act=gelu"


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("dumps")
    return {
        "clean": dump(folder / "clean"), "gelu": dump(folder / "gelu", GELU),
        "hf": dump(folder / "hf", side="reference"), "bf16": dump(folder / "bf16", dtype="bfloat16"),
    }  # fmt: skip


@pytest.mark.parametrize("reference", ["hf", "dump"])
def test_a_clean_dump_passes_at_every_node(dumps: dict[str, str], reference: str) -> None:
    report = judge(dumps["clean"], dumps["hf"] if reference == "dump" else "hf")
    assert (report.verdict, report.exit_code) == ("PASS", 0)
    assert report.compared == report.declared and len(report.nodes) > 100
    assert {"final.norm", "logits", "embed.out", "layers.5.resid_post"} <= {node.name for node in report.nodes}
    assert report.logits[0].agreement == 1.0


@pytest.mark.parametrize("reference", ["hf", "dump"])
def test_a_wrong_dump_fails_where_the_live_run_does(dumps: dict[str, str], reference: str) -> None:
    live = judge(None, "hf", GELU, stages=["semantics"], tokens=TOKENS)
    report = judge(dumps["gelu"], dumps["hf"] if reference == "dump" else "hf")
    assert found(report) == found(live) == (True, "layers.0.mlp.act")
    said = report.sentence.partition("look at block.mlp.act, gate/up order")[2]
    again = f"; next: porter explain gemma3 --size tiny --weights random:stress --port {dumps['gelu']}"
    assert said == ("." if reference == "dump" else again)  # explain runs the reference
    # Past the fault the two dumps go ways of their own, and each is measured from golden on its own.
    assert max(node.local.e_ref for node in report.nodes if node.local) < 1e-5


def test_a_reference_may_be_a_dump_alone(dumps: dict[str, str]) -> None:
    assert judge(None, dumps["hf"]).verdict == "PASS"
    assert found(judge(None, dumps["hf"], GELU)) == (True, "layers.0.mlp.act")


def test_a_reference_dump_that_is_itself_wrong_judges_nobody(dumps: dict[str, str]) -> None:
    report = judge(dumps["clean"], dumps["gelu"])
    node = next(node for node in report.nodes if node.name == "layers.0.mlp.act")
    assert node.status == "INCONCLUSIVE" and "itself parts from HuggingFace" in node.reason
    assert report.exit_code == 4 and not any(node.status == "FAIL" for node in report.nodes)


def test_the_curve_is_that_of_the_live_run(dumps: dict[str, str]) -> None:
    live = judge(None, "hf", GELU, stages=["semantics"], tokens=TOKENS)
    report = judge(dumps["gelu"])
    curves = [[node.propagated.l2 for node in each.nodes if node.propagated] for each in (live, report)]
    assert curves[0] == pytest.approx(curves[1]) and len(curves[0]) == 8


def edited(dumps: dict[str, str], tmp_path: Path, change: Callable[[dict[str, Any], Path], None]) -> str:
    """A copy of the clean dump with another manifest or other files."""
    folder = tmp_path / "edited"
    shutil.copytree(dumps["clean"].removeprefix("dump:"), folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest, folder)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return f"dump:{folder}"


def again(dumps: dict[str, str], folder: Path, change: Callable[[str, Any], Any] = lambda name, value: value, **said: Any) -> str:  # fmt: skip  # noqa: E501
    """The clean dump recorded anew, consistent in itself, with other values or another manifest."""
    clean = open_dump(dumps["clean"])
    given = {"ids": clean.manifest.ids, "dtype": "float32", **said}
    recorder = Recorder(folder, **given)
    recorder.manifest["weights"] = (
        None if "dtype" in said else clean.manifest.weights
    )  # random ones are those of a dtype
    with recorder as record:
        for name in clean.manifest.nodes:
            value = change(name, clean.read(name, torch.device("cpu")))
            if value is not None:
                record(name, value.numpy())
    return f"dump:{folder}"


def cut(manifest: dict[str, Any], folder: Path) -> None:
    file = folder / next(iter(manifest["files"]))
    file.write_bytes(file.read_bytes()[:-7])


def flip(manifest: dict[str, Any], folder: Path) -> None:
    file = folder / next(iter(manifest["files"]))
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")


def other_ids(manifest: dict[str, Any], folder: Path) -> None:
    manifest["ids"][7] += 1


def other_shape(manifest: dict[str, Any], folder: Path) -> None:
    manifest["nodes"]["layers.0.attn.ctx"]["shape"][-1] *= 2


def one_node_more(manifest: dict[str, Any], folder: Path) -> None:
    manifest["nodes"]["layers.0.attn.q2"] = manifest["nodes"]["layers.0.attn.q"]


def one_file_less(manifest: dict[str, Any], folder: Path) -> None:
    (folder / list(manifest["files"])[2]).unlink()


def other_weights(manifest: dict[str, Any], folder: Path) -> None:
    manifest["weights"] = "0" * 64


def other_schema(manifest: dict[str, Any], folder: Path) -> None:
    manifest["schema"] = "porter.dump/2"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (cut, r"0000-embed.safetensors is truncated"),
        (flip, r"has the checksum .*…\n.*as its manifest says"),
        (other_ids, r"its 160 token ids have the hash .*\n.*the ids were changed"),
        (other_shape, r"layers.0.attn.ctx is F32 \[1, 160, \d+\] in 0001-layers.0.safetensors"),
        (one_node_more, r"layers.0.attn.q2 is in the manifest alone"),
        (one_file_less, r"lacks 0002-layers.1.safetensors"),
        (other_weights, r"is a dump of other weights: their hash is 000000000000"),
        (other_schema, r"its schema is 'porter.dump/2'"),
        (lambda manifest, folder: manifest.pop("nodes"), r"nodes: Field required"),
        (lambda manifest, folder: manifest.update(dtype="int8"), r"dtype: Input should be 'float32'"),
    ],
    ids=lambda value: getattr(value, "__name__", "") if callable(value) else "",
)
def test_a_damaged_or_lying_dump_is_exit_3(dumps: dict[str, str], tmp_path: Path, change: Any, said: str) -> None:
    side = edited(dumps, tmp_path, change)
    with pytest.raises(ArtifactError, match=said) as raised:
        judge(side)
    assert raised.value.exit_code == 3


@pytest.mark.parametrize(
    ("said", "change", "message"),
    [
        ({"ids": list(range(1, TOKENS + 1))}, None, r"embed.out of 1\d\d of 160 tokens is not the embedding"),
        ({"dtype": "bfloat16"}, None, r"layers.0.resid_post holds values that no bfloat16 has"),
        ({}, lambda name, value: value.bfloat16().float(), r"every value of layers.0.resid_post, .* is a bfloat16"),
        ({}, lambda name, value: value[..., :8] if name.endswith("attn.ctx") else value, r"layers.0.attn.ctx is \[1, 160, 8\]\n  expected: \[1, 160, \d+\]"),  # noqa: E501
    ],
    ids=["tokens", "finer dtype", "coarser dtype", "shape"],
)  # fmt: skip
def test_a_manifest_that_is_consistent_and_lies_is_exit_3(
    dumps: dict[str, str], tmp_path: Path, said: dict[str, Any], change: Any, message: str
) -> None:
    side = again(dumps, tmp_path / "lying", change or (lambda name, value: value), **said)
    with pytest.raises(ArtifactError, match=message) as raised:
        judge(side)
    assert raised.value.exit_code == 3


@pytest.mark.parametrize(
    ("port", "reference", "flags", "said"),
    [
        ("clean", "hf", {"tokens": 128}, "is a dump of other tokens: 160 ids"),
        ("clean", "hf", {"dtype": "bfloat16"}, "is a dump in float32, and --dtype says bfloat16"),
        ("bf16", "dump", {}, "has other dtype than"),
        ("none", "hf", {}, "none does not exist"),
    ],
    ids=["tokens", "dtype", "two dtypes", "no folder"],
)  # fmt: skip
def test_another_run_than_the_dump_is_of_is_exit_3(
    dumps: dict[str, str], port: str, reference: str, flags: dict[str, Any], said: str
) -> None:
    given = {"dtype": flags.pop("dtype")} if "dtype" in flags else {}
    with pytest.raises(ArtifactError, match=said) as raised:
        from porter.comparison.diff import diff

        diff(tiny(FAMILY), port=dumps.get(port, "dump:none"), reference=dumps["hf"] if reference == "dump" else "hf", **flags, **given)  # fmt: skip  # noqa: E501
    assert raised.value.exit_code == 3


def test_an_unfinished_dump_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), Recorder(tmp_path, ids=[1], dtype="float32"):
        raise RuntimeError("the model broke")
    with pytest.raises(ArtifactError, match=r"has no manifest.json\n.*\n.*A run that broke off leaves none"):
        judge(f"dump:{tmp_path}")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"grad": True}, "a dump has no backward pass"), ({"self_check": True}, "faults cannot be put into a dump"),
        ({"stages": ["exact"]}, "a dump in float32 is judged by semantics alone"),
        ({"overrides": [GELU]}, "it changes the port, and that is a dump"),
    ],
    ids=["grad", "self-check", "stage", "set"],
)  # fmt: skip
def test_what_a_dump_cannot_do_is_refused(dumps: dict[str, str], given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        judge(dumps["clean"], **given)


def test_what_a_dump_lacks_is_counted_and_not_judged(dumps: dict[str, str], tmp_path: Path) -> None:
    without = {"layers.1.resid_post", "layers.3.mlp.act"}
    side = again(dumps, tmp_path / "d", lambda name, value: None if name in without else value)
    report = judge(side)
    status = {node.name: node for node in report.nodes}
    assert report.verdict == "PASS"
    assert status["layers.3.mlp.act"].status == "NOT_COMPARED" and status["layers.3.mlp.out"].status == "PASS"
    assert status["layers.2.attn.ctx"].reason.startswith("the dump does not hold what this was given")
    assert judge(side, fail_on=["missing"]).exit_code == 1


def test_a_misspelt_node_is_named(dumps: dict[str, str], tmp_path: Path) -> None:
    clean = open_dump(dumps["clean"])
    with Recorder(tmp_path / "d", ids=clean.manifest.ids, dtype="float32") as record:
        for name in clean.manifest.nodes:
            record(
                name.replace("layers.0.attn.ctx", "layers.0.attn.ctxt"), clean.read(name, torch.device("cpu")).numpy()
            )
    report = judge(f"dump:{tmp_path / 'd'}")
    found = next(node for node in report.nodes if node.name == "layers.0.attn.ctxt")
    assert found.reason == "the reference has no such node; did you mean attn.ctx?"
    assert any(check.name == "dump.port.weights" and check.status == "NOT_COMPARED" for check in report.preflight)


def test_a_dump_is_never_written_over_and_a_bad_place_is_refused(dumps: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="holds a dump already"):
        capture(tiny(FAMILY), out=Path(dumps["clean"].removeprefix("dump:")), tokens=8)
    (tmp_path / "file").write_text("")
    with pytest.raises(PorterError, match="the dump cannot be written to"):
        capture(tiny(FAMILY), out=tmp_path / "file" / "dump", tokens=8)


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = [FAMILY, "--size", "tiny", "--weights", "random:stress"]
    made = CliRunner().invoke(cli, ["capture", *model, "--dtype", "float32", "--tokens", "32", "--out", "d"])
    assert made.exit_code == 0 and "next: porter diff gemma3 --port dump:d" in made.output, made.output
    result = CliRunner().invoke(cli, ["diff", *model, "--port", "dump:d"])
    assert result.exit_code == 0 and "dump d of porter" in result.output, result.output
