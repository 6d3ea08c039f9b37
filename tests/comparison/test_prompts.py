"""Prompts: seeded ids, porter's own text, files."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from porter.comparison.prompts import DEFAULT_TOKENS, read_prompts
from porter.errors import ArtifactError, ComparisonError, UsageError
from tests.models.checkpoints import add_tokenizer
from tests.models.tiny import tiny


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    add_tokenizer(folder)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def gemma():
    return tiny("gemma").blueprint


def read(blueprint, tokenizer=None, prompt=None, prompts=None, tokens=None):
    return read_prompts(blueprint, tokenizer, prompt, prompts, tokens)


def test_without_a_tokenizer_ids_are_seeded_with_bos_first(gemma) -> None:
    (found,) = read(gemma)
    assert found.length == len(found.ids) == DEFAULT_TOKENS and found.ids[0] == 2 and found.tokens == ()
    assert all(0 <= i < 512 for i in found.ids) and len(set(found.ids)) > 200
    assert read(gemma) == [found] and "no tokenizer" in found.label
    assert read(gemma, tokens=9)[0].ids == found.ids[:9]
    other = tiny("gpt_neox").blueprint  # whose spec asks for no BOS
    assert read(other, tokens=9)[0].ids[1:] == found.ids[1:9]


def test_a_default_prompt_fits_the_position_table() -> None:
    blueprint = tiny("gpt2").blueprint
    dims = blueprint.dims.model_copy(update={"max_pos": 100})
    assert read(blueprint.model_copy(update={"dims": dims}))[0].length == 100
    with pytest.raises(UsageError, match="101 tokens are more than the position table"):
        read(blueprint.model_copy(update={"dims": dims}), tokens=101)


def test_porter_s_own_text_is_repeated_up_to_the_tokens(gemma, tokenizer) -> None:
    (short,), (long,) = read(gemma, tokenizer, tokens=20), read(gemma, tokenizer, tokens=20_000)
    assert (short.length, long.length) == (20, 20_000) and long.ids[:20] == short.ids
    assert short.ids[0] == 2 and 2 not in long.ids[1:]
    assert short.label == "Alice's Adventures in Wonderland" and len(short.tokens) == 20


def test_text_is_encoded_and_cut(gemma, tokenizer) -> None:
    (found,) = read(gemma, tokenizer, prompt="Hello\nworld", tokens=4)
    assert list(found.ids) == tokenizer.encode("Hello\nworld").ids[:4] and found.tokens[1:] == ("H", "e", "l")
    assert found.label == "Hello world"


def test_the_digest_is_of_the_ids(gemma, tokenizer) -> None:
    hashes = {read(gemma, tokenizer, prompt=text)[0].ids_sha256 for text in ("ab", "ba", "ab ")}
    assert len(hashes) == 3 and all(len(each) == 64 for each in hashes)


@pytest.mark.parametrize("name", ["p.txt", "p.md", "notes"])
def test_a_text_file_is_one_prompt(gemma, tokenizer, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("one\ntwo")
    assert list(read(gemma, tokenizer, prompts=path)[0].ids) == tokenizer.encode("one\ntwo").ids
    if path.suffix:
        assert read(gemma, tokenizer, prompt=str(path)) == read(gemma, tokenizer, prompts=path)


def test_text_that_only_ends_like_a_file_is_text(gemma, tokenizer) -> None:
    assert read(gemma, tokenizer, prompt="read me.txt")[0].label == "read me.txt"


def test_a_jsonl_has_a_prompt_a_line(gemma, tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    lines = ["text", {"text": "line\u2028separator"}, {"ids": [5, 6, 7]}]
    path.write_text("\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n", encoding="utf-8")
    found = read(gemma, tokenizer, prompts=path, tokens=18)
    assert list(found[0].ids) == tokenizer.encode("text").ids
    assert list(found[1].ids) == tokenizer.encode("line\u2028separator").ids[:18]
    assert found[2].ids == (5, 6, 7) and found[2].label == "given ids"


@pytest.mark.parametrize(
    "line",
    ["7", "null", "[1, 2]", '{"prompt": "x"}', '{"text": 5}', '{"ids": "x"}', '{"ids": 3}', "{", "[" * 99_999],
    ids=lambda line: line[:20],
)
def test_a_line_without_a_prompt_is_named(gemma, tmp_path: Path, line: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(f'{{"ids": [1]}}\n{line}\n')
    with pytest.raises(ArtifactError, match=r"p\.jsonl:2: no prompt"):
        read(gemma, prompts=path)


@pytest.mark.parametrize("ids", [[1, 512], [-1], [1.0], ["1"], [True], [None]], ids=str)
def test_ids_must_be_of_the_vocabulary(gemma, tmp_path: Path, ids: list) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"ids": ids}))
    with pytest.raises(UsageError, match=r"ids outside the vocabulary\n.*0 to 511"):
        read(gemma, prompts=path)


def test_nothing_to_run(gemma, tokenizer) -> None:
    for known in (tokenizer, None):
        with pytest.raises(ComparisonError, match="the prompt has no tokens"):
            read(gemma, known, prompt="")
    with pytest.raises(UsageError, match="--tokens 0"):
        read(gemma, tokenizer, tokens=0)
    with pytest.raises(UsageError, match="without a tokenizer"):
        read(gemma, prompt="text")
