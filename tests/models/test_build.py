"""Builds: what a model argument means, what is recorded, what overrides may touch."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from porter.errors import ArtifactError, PreflightError, SpecError, UsageError
from porter.models.build import build, check_weights, plan_build
from porter.models.choices import pick_device, pick_ops
from porter.models.records import read_build, record
from tests.full_disk import largest_file
from tests.models.checkpoints import change_config
from tests.models.tiny import FAMILIES, random_ids, save_tiny, tiny


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def plan(model: str, **given):
    values = {"size": None, "weights": None, "overrides": (), "dtype": "float32", "ops": "auto", "device": "auto",
              "prompt": None, "tokens": None}  # fmt: skip
    return plan_build(model, **{**values, **given})


def test_a_size_names_its_family_and_its_hub_id() -> None:
    made = plan("gemma-7b", fetch=False)
    assert (made.name, made.spec, made.size, made.weights) == ("gemma-7b", "gemma", "gemma-7b", "google/gemma-7b")
    assert made.blueprint.num_parameters == 8_537_680_896 and made.folder is None


def test_a_tiny_size_is_named_after_its_family_and_random() -> None:
    made = plan("gemma3", size="tiny")
    assert (made.name, made.weights) == ("gemma3-tiny", "random:stress")


def test_a_folder_names_its_family_by_its_config() -> None:
    folder = save_tiny("mistral", Path("model"))
    for given in ({"model": "model"}, {"model": "mistral", "weights": "model"}):
        made = plan(**given)
        assert (made.spec, made.size, made.folder) == ("mistral", None, str(folder.resolve()))
        assert made.blueprint.dims == tiny("mistral").blueprint.dims


def test_a_folder_does_not_hide_the_family_of_its_name() -> None:
    Path("gemma3").mkdir()
    assert plan("gemma3", size="tiny").folder is None
    with pytest.raises(ArtifactError, match=r"config\.json: No such file"):
        plan("./gemma3")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_record_reads_back_as_it_was(family: str) -> None:
    made = replace(tiny(family, tokens=7, prompt="Hello"), overrides=("block.attn.scale=0.3",))
    path = record(made)
    assert path == Path(f"builds/{family}-tiny/build.json") and read_build(None) == read_build(made.name) == made
    assert read_build("other") is None and read_build("a/b") is None
    assert sorted(each.name for each in Path("builds").iterdir()) == ["current", f"{family}-tiny"]


def test_the_build_made_last_is_current() -> None:
    for family in ("llama", "gpt2"):
        record(tiny(family))
    assert read_build(None).name == "gpt2-tiny" and read_build("llama-tiny").name == "llama-tiny"


def test_records_that_cannot_be_used() -> None:
    with pytest.raises(UsageError, match="nothing was built in this folder yet"):
        read_build(None)
    path = record(tiny("llama"))
    good = json.loads(path.read_text())
    for bad in ("{", "[]", "3", json.dumps(good | {"schema": "porter.build/2"}), json.dumps(good | {"config": []}),
                json.dumps({key: good[key] for key in good if key != "dtype"}), "\udcff"):  # fmt: skip
        path.write_text(bad, encoding="utf-8", errors="surrogateescape")
        with pytest.raises(ArtifactError, match=r"build\.json is no record of a build \(.+\)\n.*schema porter.build/1"):
            read_build(None)
    Path("builds/current").write_bytes(b"\xff\n")
    with pytest.raises(ArtifactError, match="there is no such build"):
        read_build(None)


def test_overrides_change_the_port_alone() -> None:
    made = tiny("gemma3", "block.mlp.act=gelu", "norm.eps=1e-5")
    assert {block.mlp.act for block in made.blueprint.blocks} == {"gelu"} and made.blueprint.norm.eps == 1e-5
    assert {block.mlp.act for block in made.reference_blueprint.blocks} == {"gelu_tanh"}
    assert made.config == tiny("gemma3").config and made.checkpoint() == tiny("gemma3").checkpoint()
    assert made.spec_hash == made.blueprint.hash != tiny("gemma3").spec_hash


def test_an_override_may_replace_the_field_that_reads_a_config_key() -> None:
    assert tiny("mistral", "block.attn.window=4").blueprint.blocks[0].attn.window == 4


def test_a_config_key_that_nothing_reads_is_refused() -> None:
    change_config(save_tiny("llama", Path("model")), bend=3, fold=4)
    with pytest.raises(PreflightError, match="nothing reads config keys bend, fold"):
        plan("model")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"model": "gemma3"}, UsageError, "gemma3 has 3 sizes"), ({"model": "gema"}, SpecError, "did you mean gemma"),
        ({"model": "gema", "size": "tiny"}, SpecError, "no family is called 'gema'"),
        ({"model": "llama", "size": "tiny", "dtype": "float8"}, UsageError, "--dtype 'float8'"),
        ({"model": "llama", "size": "tiny", "ops": "cuda"}, UsageError, "--ops 'cuda'"),
        ({"model": "llama", "size": "tiny", "device": "gpu"}, UsageError, "--device 'gpu'"),
        ({"model": "llama", "size": "tiny", "tokens": 0}, UsageError, "--tokens 0"),
    ],
    ids=str,
)  # fmt: skip
def test_arguments_that_mean_nothing(given: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        plan(**given)


def test_a_dry_run_records_nothing() -> None:
    made = build("llama", size="tiny", dry_run=True, save=Path("out"))
    assert made.name == "llama-tiny" and list(Path.cwd().iterdir()) == []


def test_a_saved_build_refers_to_its_folder() -> None:
    made = build("llama", size="tiny", dtype="float32", save=Path("out"))
    assert Path(made.folder) == Path("out").resolve() and read_build(None) == made
    ids_BT = random_ids(made, 5)
    with torch.no_grad():
        assert torch.equal(made.model()(ids_BT), tiny("llama").model()(ids_BT))
    check_weights(made)


def test_a_model_has_the_dtype_and_ops_asked_for() -> None:
    made = tiny("llama", dtype="bfloat16")
    assert {p.dtype for p in made.model().parameters()} == {torch.bfloat16}
    model = made.model("float32", ops="reference")
    assert {p.dtype for p in model.parameters()} == {torch.float32} and not model.training


def test_auto_is_what_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == "cpu"
    with pytest.raises(UsageError, match="torch sees no GPU"):
        pick_device("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (pick_device("auto"), pick_device("cuda:1"), pick_device("cpu")) == ("cuda", "cuda:1", "cpu")
    assert (pick_ops("auto", "cpu"), pick_ops("auto", "cuda:1")) == ("reference", "triton")
    assert (pick_ops("triton", "cpu"), pick_ops("reference", "cuda")) == ("triton", "reference")
    for call in (lambda: pick_device("tpu"), lambda: pick_ops("fast", "cpu")):
        with pytest.raises(UsageError):
            call()


def test_a_record_that_cannot_be_written_leaves_the_one_before() -> None:
    made = tiny("llama", dtype="float32")
    path = record(made)
    before = path.read_bytes()
    with largest_file(10), pytest.raises(UsageError, match=r"builds/llama-tiny cannot be written \(File too large\)"):
        record(tiny("llama", dtype="bfloat16"))
    assert path.read_bytes() == before and read_build(None) == made
    assert sorted(each.name for each in path.parent.iterdir()) == ["build.json"]
