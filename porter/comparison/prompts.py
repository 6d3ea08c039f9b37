"""What a diff runs on: text from the command line or a file, porter's own text, or seeded ids without a tokenizer.

porter's text is the opening of Carroll, Alice's Adventures in Wonderland (1865, public domain): 640 tokens and more, so
that positions pass 256 (where bfloat16 has gaps) and windows of 512.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from porter.comparison.report import Prompt
from porter.errors import ArtifactError, ComparisonError, UsageError
from porter.models.choices import check_tokens
from porter.models.decoder import check_length
from porter.specs.blueprint import Blueprint

DEFAULT_TOKENS = 640
TEXT = Path(__file__).parent / "text" / "alice.txt"
_FILE_SUFFIXES = (".txt", ".md", ".jsonl", ".json")


def read_prompts(
    blueprint: Blueprint, tokenizer: Tokenizer | None, prompt: str | None, prompts: Path | None, tokens: int | None
) -> list[Prompt]:
    """The prompts of a run, as ids.

    Args:
        prompt: text, or the path of a text file; None: porter's own text.
        prompts: a .jsonl file with a string, {"text": …} or {"ids": […]} a line, or a text file that is one prompt.
        tokens: cut to so many; porter's own text is repeated up to them.

    Raises:
        ArtifactError: a file cannot be read.
        UsageError: text without a tokenizer, ids outside the vocabulary, no tokens asked for, or too many.
        ComparisonError: a prompt without tokens.
    """
    check_tokens(tokens)
    if prompt is not None and prompts is not None:
        raise UsageError("--prompt and --prompts are both given", "one of them", "Add the text to the file as a line.")
    if prompt is None and prompts is None:
        found = [_default(blueprint, tokenizer, tokens or _default_length(blueprint))]
    else:
        texts = _from_file(prompts) if prompts else [_text_or_file(str(prompt))]
        found = [_encode(blueprint, tokenizer, each, tokens) for each in texts]
    for each in found:
        if not each.ids:
            raise ComparisonError("the prompt has no tokens", "at least one token", "Give text, or leave --prompt out.")
        check_length(blueprint, each.length)
    return found


def _default_length(blueprint: Blueprint) -> int:
    return min(DEFAULT_TOKENS, blueprint.dims.max_pos)


def _default(blueprint: Blueprint, tokenizer: Tokenizer | None, tokens: int) -> Prompt:
    if tokenizer is None:
        return _seeded(blueprint, tokens)
    text = TEXT.read_text(encoding="utf-8")
    ids = tokenizer.encode(text).ids
    rest = tokenizer.encode("\n\n" + text, add_special_tokens=False).ids
    while len(ids) < tokens:
        ids += rest
    return make_prompt("Alice's Adventures in Wonderland", ids[:tokens], tokenizer)


def _seeded(blueprint: Blueprint, tokens: int) -> Prompt:
    """Ids without a tokenizer: seeded, the spec's BOS first where the spec asks for it."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(blueprint.dims.vocab, (tokens,), generator=generator).tolist()
    if blueprint.tokenizer.add_bos and blueprint.tokenizer.bos_id is not None:
        ids[0] = blueprint.tokenizer.bos_id
    return make_prompt("seeded ids (there is no tokenizer)", ids, None)


def _text_or_file(prompt: str) -> str:
    path = Path(prompt)
    looks_like_file = prompt.endswith(_FILE_SUFFIXES) and not any(c.isspace() for c in prompt)
    return _read(path) if looks_like_file else prompt


def _from_file(path: Path) -> list[str | list[int]]:
    text = _read(path)
    if path.suffix != ".jsonl":
        return [text]
    found: list[str | list[int]] = []
    for number, line in enumerate(text.split("\n"), start=1):  # splitlines would split at U+2028 within a string
        if not line.strip():
            continue
        try:
            found.append(_line(json.loads(line)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ArtifactError(
                f"{path}:{number}: no prompt", 'a string, {"text": "…"} or {"ids": [1, 2]} on each line', "Correct it."
            ) from error
    if not found:
        raise ComparisonError(f"{path} holds no prompt", "a prompt a line", "Add one.")
    return found


def _line(value: Any) -> str | list[int]:
    """The prompt of one line's JSON; raises TypeError or KeyError where there is none."""
    if isinstance(value, str):
        return value
    kind, prompt = (list, value["ids"]) if "ids" in value else (str, value["text"])
    if not isinstance(prompt, kind):
        raise TypeError(f"expected a {kind.__name__}")
    return prompt


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ArtifactError(f"{path}: {reason}", "a readable prompt file, UTF-8", "Check the path.") from error


def _encode(blueprint: Blueprint, tokenizer: Tokenizer | None, prompt: str | list[int], tokens: int | None) -> Prompt:
    if isinstance(prompt, list):
        ids = prompt
        if any(type(i) is not int or not 0 <= i < blueprint.dims.vocab for i in ids):
            raise UsageError(
                "a prompt has ids outside the vocabulary", f"0 to {blueprint.dims.vocab - 1}", "Correct it."
            )
        return make_prompt("given ids", ids[:tokens], tokenizer)
    if not prompt:
        return make_prompt("", (), tokenizer)
    if tokenizer is None:
        raise UsageError(
            "these weights come without a tokenizer, so text has no ids",
            'a folder with tokenizer.json, or ids: --prompts FILE.jsonl with {"ids": [1, 2]}',
            "Leave --prompt out to run on seeded ids.",
        )
    ids = tokenizer.encode(prompt).ids
    return make_prompt(prompt[:60].replace("\n", " "), ids[:tokens], tokenizer)


def make_prompt(label: str, ids: Sequence[int], tokenizer: Tokenizer | None) -> Prompt:
    """A prompt of these ids, decoded one by one where there is a tokenizer."""
    decoded = tuple(tokenizer.decode([i], skip_special_tokens=False) for i in ids) if tokenizer else ()
    digest = hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()
    return Prompt(label=label, ids_sha256=digest, length=len(ids), ids=tuple(ids), tokens=decoded)
