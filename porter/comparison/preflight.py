"""Before any number is compared: does the tokenizer do what the spec says, and what HF's class does?"""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from porter.comparison.report import Check
from porter.errors import ArtifactError, PreflightError
from porter.models.build import Build
from porter.references.quiet import quiet_transformers
from porter.specs.blueprint import Blueprint
from porter.specs.resolve import resolve

TRICKY = (
    "Hello world", " leading space", "trailing space ", "double  space", "   three leading", "tab\tand\ttabs",
    "line\nbreak", "two\n\nbreaks", "\nleading break", "carriage\r\nreturn", "   \n  mixed \t white ",
    "emoji 🙂🚀", "family 👨‍👩‍👧‍👦", "flag 🇳🇱", "中文分词测试", "日本語のテキスト", "한국어 문장", "العربية نص",
    "combining e\u0301 a\u0308", "precomposed é ä", "ﬁ ligature", "zero\u200bwidth", "1234567890",
    "3.14159 and 1,000,000",
    "def f(x):\n    return x ** 2  # code", "<html>&amp;</html>", "a" * 50, "UPPER lower MiXeD", "it's don't we'll", "",
)  # fmt: skip


def load_tokenizer(folder: Path) -> Tokenizer | None:
    """tokenizer.json of a folder; None where there is none.

    Raises:
        ArtifactError: it cannot be read.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    status = path.stat()
    return _read_tokenizer(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1)
def _read_tokenizer(path: Path, _mtime_ns: int, _size: int) -> Tokenizer:
    """Held, since a large vocabulary takes a second to read, and porter explain and the diff before it both ask."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise ArtifactError(
            f"{path}: {error}", "a tokenizer.json of the tokenizers library", "Fetch it again."
        ) from error


def check_tokenizer(blueprint: Blueprint, folder: Path, tokenizer: Tokenizer | None) -> list[Check]:
    """The tokenizer's conventions against the spec's, and its ids against HF's class.

    Raises:
        PreflightError: one disagrees.
    """
    if tokenizer is None:
        return [Check("tokenizer", "NOT_COMPARED", "these weights come without one; the prompt is seeded ids")]
    from transformers import AutoTokenizer

    with quiet_transformers():
        hf: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    checks = [_check_bos(blueprint, tokenizer), *_check_special(blueprint, hf), _check_ids(tokenizer, hf)]
    for check in checks:
        if check.status == "FAIL":
            raise PreflightError(
                f"{check.name}: {check.detail}",
                f"the conventions of the spec of {blueprint.family} and the ids of HF's tokenizer",
                "Correct `tokenizer` in the spec (or --set tokenizer.…), or the tokenizer's files.",
            )
    return checks


def _check_bos(blueprint: Blueprint, tokenizer: Tokenizer) -> Check:
    spec = blueprint.tokenizer
    ids = tokenizer.encode("Hello").ids
    bare = tokenizer.encode("Hello", add_special_tokens=False).ids
    added = ids[: len(ids) - len(bare)] if ids[-len(bare) :] == bare else ids[:1]
    if spec.add_bos is None:
        return Check("tokenizer.add_bos", "NOT_COMPARED", "the spec does not say")
    if not spec.add_bos:
        return Check(
            "tokenizer.add_bos",
            "FAIL" if added else "PASS",
            f"puts {added} first, the spec says no BOS" if added else "no BOS",
        )
    if added == [spec.bos_id]:
        return Check("tokenizer.add_bos", "PASS", f"BOS {spec.bos_id} first")
    return Check("tokenizer.add_bos", "FAIL", f"puts {added or 'nothing'} first, the spec says BOS {spec.bos_id}")


def _check_special(blueprint: Blueprint, hf: Any) -> list[Check]:
    """bos, eos and pad ids of HF's class against the spec's."""
    spec = blueprint.tokenizer
    checks = []
    for name, found, wanted in (
        ("bos_id", hf.bos_token_id, None if spec.bos_id is None else (spec.bos_id,)),
        ("eos_ids", hf.eos_token_id, spec.eos_ids),
        ("pad_id", hf.pad_token_id, None if spec.pad_id is None else (spec.pad_id,)),
    ):
        if wanted is None or found is None:
            missing = "spec does not say" if wanted is None else "tokenizer has none"
            checks.append(Check(f"tokenizer.{name}", "NOT_COMPARED", f"the {missing}"))
        elif found in wanted:
            checks.append(Check(f"tokenizer.{name}", "PASS", str(found)))
        else:
            said = ", ".join(map(str, wanted))
            checks.append(Check(f"tokenizer.{name}", "FAIL", f"the tokenizer has {found}, the spec says {said}"))
    return checks


def _check_ids(tokenizer: Tokenizer, hf: Any) -> Check:
    """tokenizer.json read by `tokenizers` against HF's class, on tricky strings and every special token as text."""
    strings = [*TRICKY, *(f"a{token}b" for token in hf.all_special_tokens)]
    rows: list[tuple[str, ...]] = []
    for text in strings:
        own, theirs = tokenizer.encode(text).ids, hf(text)["input_ids"]
        if own != theirs:
            at = next(
                (i for i, (a, b) in enumerate(zip(own, theirs, strict=False)) if a != b), min(len(own), len(theirs))
            )
            return Check("tokenizer.ids", "FAIL", f"{text!r}: {own[at : at + 3]} from tokenizer.json, {theirs[at : at + 3]} from HF at token {at}")  # fmt: skip  # noqa: E501
        rows.append((repr(text), *(" ".join(map(str, ids)) for ids in (own, theirs))))
    head = ("text", "ids from tokenizer.json", "ids from HuggingFace")
    return Check("tokenizer.ids", "PASS", f"{len(strings)} strings encode alike", head, tuple(rows))


def check_config(build: Build) -> list[Check]:
    """A checkpoint's config against the size it is built as, and which of its tensors fills what."""
    return [*_check_knobs(build), _check_ledger(build)]


def _check_knobs(build: Build) -> list[Check]:
    if build.size is None or build.folder is None:
        return []
    size, found = build.family.size(build.size), build.reference_blueprint
    expected = resolve(build.family, size.config, (), size.tokenizer).blueprint
    differing = [f for f in Blueprint.model_fields if f != "tokenizer" and getattr(expected, f) != getattr(found, f)]
    head = ("key", "checkpoint", f"size {build.size}")
    keys = dict.fromkeys((*size.config, *build.config))
    rows = tuple((key, *(_said(config, key) for config in (build.config, size.config))) for key in keys)
    if differing:
        return [Check("config", "WARN", f"differs from the size {build.size} in {', '.join(differing)}", head, rows)]
    return [Check("config", "PASS", f"resolves as the size {build.size} does", head, rows)]


def _said(config: Mapping[str, Any], key: str) -> str:
    return json.dumps(config[key]) if key in config else "–"


def _check_ledger(build: Build) -> Check:
    """Every tensor of the checkpoint is used once or ignored by name: anything else has ended the run before this."""
    ledger = build.reader().ledger
    rows = [
        (_named(entry.sources), name, " × ".join(map(str, entry.shape)) + (", transposed" if entry.transpose else ""))
        for name, entry in ledger.entries.items()
    ]
    rows += [(twin, f"equals {original}", "") for twin, original in ledger.twins]
    rows += [(name, "ignored", "") for name in ledger.ignored]
    sources = len({source for entry in ledger.entries.values() for source in entry.sources})
    said = f"{sources} tensors fill {len(ledger.entries)} parameters, none missing, none left over"
    said += f", {len(ledger.ignored)} ignored by name" if ledger.ignored else ""
    return Check("weights.ledger", "PASS", said, ("tensor", "parameter", "shape"), tuple(rows))


def _named(sources: tuple[str, ...]) -> str:
    return sources[0] if len(sources) == 1 else f"{sources[0]} … {sources[-1]} ({len(sources)} stacked)"
