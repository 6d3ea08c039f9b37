"""Tokenizer and config against the spec, before any number is compared."""

import json
from pathlib import Path

import pytest

from porter.comparison.preflight import TRICKY, check_config, check_tokenizer, load_tokenizer
from porter.errors import ArtifactError, PreflightError
from porter.models.build import plan_build
from tests.models.checkpoints import add_tokenizer, change_config
from tests.models.tiny import save_tiny, tiny


@pytest.fixture(scope="module")
def gemma():
    return tiny("gemma").blueprint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma"}))
    add_tokenizer(tmp_path)
    return tmp_path


def check(blueprint, folder: Path) -> dict[str, tuple[str, str]]:
    return {
        each.name: (each.status, each.detail) for each in check_tokenizer(blueprint, folder, load_tokenizer(folder))
    }


def test_no_tokenizer_is_said(gemma, tmp_path: Path) -> None:
    assert check(gemma, tmp_path) == {
        "tokenizer": ("NOT_COMPARED", "these weights come without one; the prompt is seeded ids")
    }


def test_a_tokenizer_that_agrees(gemma, folder: Path) -> None:
    assert check(gemma, folder) == {
        "tokenizer.add_bos": ("PASS", "BOS 2 first"), "tokenizer.bos_id": ("PASS", "2"),
        "tokenizer.eos_ids": ("PASS", "1"), "tokenizer.pad_id": ("PASS", "0"),
        "tokenizer.ids": ("PASS", f"{len(TRICKY) + 3} strings encode alike"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("add_bos", "bos", "status", "detail"),
    [
        (True, None, "FAIL", "puts nothing first, the spec says BOS 2"),
        (True, "<eos>", "FAIL", r"puts \[1\] first, the spec says BOS 2"),
        (False, "<bos>", "FAIL", r"puts \[2\] first, the spec says no BOS"),
        (False, None, "PASS", "no BOS"),
        (None, "<bos>", "NOT_COMPARED", "the spec does not say"),
    ],
    ids=str,
)
def test_bos(gemma, folder: Path, add_bos: bool | None, bos: str | None, status: str, detail: str) -> None:
    add_tokenizer(folder, bos=bos)
    spec = gemma.model_copy(update={"tokenizer": gemma.tokenizer.model_copy(update={"add_bos": add_bos})})
    if status != "FAIL":
        assert check(spec, folder)["tokenizer.add_bos"] == (status, detail)
        return
    with pytest.raises(PreflightError, match=f"tokenizer.add_bos: {detail}"):
        check(spec, folder)


@pytest.mark.parametrize(
    ("name", "value", "found"), [("bos_id", 3, 2), ("eos_ids", (7, 9), 1), ("pad_id", 3, 0)], ids=["bos", "eos", "pad"]
)
def test_ids_of_special_tokens(gemma, folder: Path, name: str, value: object, found: int) -> None:
    changed = {name: value, "add_bos": None}
    spec = gemma.model_copy(update={"tokenizer": gemma.tokenizer.model_copy(update=changed)})
    with pytest.raises(PreflightError, match=rf"tokenizer.{name}: the tokenizer has {found}, the spec says"):
        check(spec, folder)


def test_one_of_several_ends_of_text_is_enough(gemma, folder: Path) -> None:
    changed = gemma.tokenizer.model_copy(update={"eos_ids": (9, 1), "pad_id": None})
    found = check(gemma.model_copy(update={"tokenizer": changed}), folder)
    assert found["tokenizer.eos_ids"] == ("PASS", "1")
    assert found["tokenizer.pad_id"] == ("NOT_COMPARED", "the spec does not say")


def test_ids_that_differ_from_hf_s_class_name_the_text_and_the_token(gemma, folder: Path) -> None:
    add_tokenizer(folder, kind="GemmaTokenizer")
    with pytest.raises(
        PreflightError, match=r"tokenizer.ids: 'Hello world': \[.*\] from tokenizer.json, \[.*\] from HF"
    ):
        check(gemma, folder)


def test_a_corrupt_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        load_tokenizer(folder)


def test_a_config_is_compared_with_the_size_it_is_built_as(tmp_path: Path) -> None:
    folder = save_tiny("gemma", tmp_path / "gemma")

    def checked():
        return check_config(
            plan_build("gemma", size="tiny", weights=str(folder), overrides=(), dtype="float32", ops="auto",
                       device="cpu", prompt=None, tokens=None)
        )  # fmt: skip

    same, ledger = checked()
    assert (same.status, same.detail) == ("PASS", "resolves as the size tiny does")
    assert ledger.detail == "29 tensors fill 29 parameters, none missing, none left over"
    assert ("model.embed_tokens.weight", "embed.weight", "512 × 96") in ledger.rows
    change_config(folder, rms_norm_eps=1e-5, rope_theta=5e5)
    other, _ = checked()
    assert (other.status, other.detail) == ("WARN", "differs from the size tiny in norm, blocks")
    assert ("rope_theta", "500000.0", "10000.0") in other.rows and ("num_hidden_layers", "3", "3") in other.rows
    assert [each.name for each in check_config(tiny("gemma"))] == ["weights.ledger"]  # their config is the size's own


def test_strings_are_shown_with_the_ids_of_both(gemma, folder: Path) -> None:
    found = {each.name: each for each in check_tokenizer(gemma, folder, load_tokenizer(folder))}["tokenizer.ids"]
    assert len(found.rows) == len(TRICKY) + 3 and len(found.head) == 3
    text, own, theirs = found.rows[0]
    assert text == "'Hello world'" and own == theirs and own.startswith("2 ")
