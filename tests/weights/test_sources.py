"""What --weights names: six kinds, and what is said of a name that is none."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import errors

from porter.errors import ArtifactError, UsageError
from porter.models.build import plan_build
from porter.weights.sources import Source, find_weights, random_folder, read_config


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "porter"


def folder_with_config(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return path


@pytest.mark.parametrize("label", ["random", "random:stress"])
def test_random_weights_are_made_later(label: str) -> None:
    assert find_weights(label, size="tiny") == Source(label, None, None)
    assert find_weights(label, size="tiny").is_random


def test_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with_config(tmp_path / "some" / "model")
    monkeypatch.chdir(tmp_path)
    for label in (str(folder), "some/model", "./some/model"):  # a folder that is there is no hub id
        found = find_weights(label, size="")
        assert (found.folder, found.config, found.is_random) == (folder, {"model_type": "llama"}, False)


@pytest.mark.parametrize("label", ["/nowhere/at/all", "./gone", "~/no such folder"])
def test_a_path_that_is_not_there(label: str) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        find_weights(label, size="")


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"x")
    with pytest.raises(ArtifactError, match=r"model.bin is no folder and no .gguf file"):
        find_weights(str(path), size="")


@pytest.mark.parametrize("label", ["", "stress", "random:", "a/b/c", "two words", "/", "-x/y"])
def test_a_name_that_is_no_kind(label: str) -> None:
    with pytest.raises((UsageError, ArtifactError)) as caught:
        find_weights(label, size="")
    assert caught.value.exit_code in {2, 3}


def test_demo_weights_are_of_some_sizes() -> None:
    with pytest.raises(ArtifactError, match=r"llama-2-7b has no demo weights"):
        find_weights("demo", size="llama-2-7b")


def test_a_dry_run_fetches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", None)
    assert find_weights("google/gemma-7b", size="", fetch=False) == Source("google/gemma-7b", None, None)


RESPONSE = SimpleNamespace(headers={}, request=None)  # hubs of requests and of httpx take it


@pytest.mark.parametrize(
    ("error", "message", "fix"),
    [
        (lambda: errors.GatedRepoError("gated", response=RESPONSE), "google/gemma-7b is gated", "hf auth login"),
        (lambda: errors.RepositoryNotFoundError("gone", response=RESPONSE), "the hub has no google/gemma-7b", "name"),
        (lambda: errors.LocalEntryNotFoundError("offline"), "google/gemma-7b cannot be reached", "random:stress"),
        (lambda: OSError("no network"), "google/gemma-7b cannot be reached", "random:stress"),
    ],
    ids=["gated", "no such id", "offline", "no network"],
)
def test_a_hub_id_that_cannot_be_had_names_the_other_kinds(monkeypatch, error, message: str, fix: str) -> None:
    def fail(*_args: object, **_kwargs: object) -> str:
        raise error()

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(ArtifactError, match=message) as caught:
        find_weights("google/gemma-7b", size="")
    assert "a folder, a .gguf file, demo, random or random:stress" in caught.value.expected
    assert fix in caught.value.fix and caught.value.exit_code == 3


def test_a_hub_id_is_fetched_without_what_porter_does_not_read(tmp_path: Path, monkeypatch) -> None:
    asked: dict[str, object] = {}

    def download(hub_id: str, **given: object) -> str:
        asked.update(given, id=hub_id)
        return str(folder_with_config(tmp_path / "hub"))

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert find_weights("google/gemma-7b", size="").folder == tmp_path / "hub"
    assert asked["id"] == "google/gemma-7b" and "*.bin" not in asked["allow_patterns"]
    assert {"config.json", "*.safetensors"} <= set(asked["allow_patterns"])


def test_random_weights_are_drawn_once_for_each_spec_and_dtype(cache: Path) -> None:
    def plan(*overrides: str):
        return plan_build("gemma", size="tiny", weights="random:stress", overrides=overrides, dtype="float32",
                          ops="reference", device="cpu", prompt=None, tokens=None)  # fmt: skip

    clean, changed = plan(), plan("block.mlp.act=gelu")
    folder = clean.checkpoint()
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert folder.parent == cache and changed.checkpoint() == folder  # every port gets the reference's weights
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    source = Source("random:stress", None, None)
    assert random_folder(source, clean.blueprint, clean.config, "bfloat16") != folder


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), ("{", "not JSON"), ("[]", "not a JSON object"), ("[" * 99_999, "not JSON")],
    ids=lambda each: str(each)[:20],
)
def test_a_config_that_cannot_be_read(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ArtifactError, match=rf"config\.json: {message}"):
        read_config(tmp_path)
