"""Builds tokenizer.json and tokenizer_config.json from a GGUF's vocabulary.

What is built is what transformers 5.24 builds of the same file (integrations/gguf/gguf_tokenizer_mapping.py), plus
what that leaves out and the model's own tokenizer has: SmolLM's single digits, Qwen's NFC, Llama 3's ignored merges.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from porter.errors import ArtifactError
from porter.weights.gguf.reader import GgufFile

_CONTROL, _USER_DEFINED = 3, 4
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class _Splitting:
    """How a byte-level vocabulary cuts text before it merges; tokenizer.ggml.pre names it."""

    regex: str | None = None  # None: GPT-2's own
    single_digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False  # a word that is a token is that token
    add_bos: bool = False  # when the file does not say


_SPLITTINGS = {
    "default": _Splitting(),
    "gpt-2": _Splitting(),
    "smollm": _Splitting(single_digits=True),
    "qwen2": _Splitting(_QWEN2, nfc=True),
    "deepseek-r1-qwen": _Splitting(_QWEN2, nfc=True),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _Splitting(_LLAMA3, ignore_merges=True, add_bos=True)),
    "tekken": _Splitting(_TEKKEN, ignore_merges=True, add_bos=True),
}


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer's part of the metadata."""

    path: Path
    metadata: Mapping[str, Any]
    tokens: list[str]

    def get(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"tokenizer.ggml.{key}", default)

    def token_of(self, role: str) -> str | None:
        index = self.get(f"{role}_token_id")
        if index is None:
            return None
        if index >= len(self.tokens):
            wrong = f"{self.path}: tokenizer.ggml.{role}_token_id is {index}"
            raise ArtifactError(wrong, f"one of its {len(self.tokens)} tokens", "convert the model to GGUF again")
        token: str = self.tokens[index]
        return token

    def adds(self, role: str, default: bool) -> bool:
        return self.token_of(role) is not None and bool(self.get(f"add_{role}_token", default))


def write_tokenizer(file: GgufFile, architecture: str, folder: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json.

    Raises:   ArtifactError: no vocabulary in the file, or of a kind that porter does not build.
    """
    vocabulary = _vocabulary(file)
    kind = vocabulary.get("model")
    builder = _SENTENCEPIECE.get(architecture, _llama) if kind == "llama" else _BUILDERS.get(kind)
    if builder is None:
        wrong = f"{file.path}: tokenizer.ggml.model is {kind}"
        raise ArtifactError(wrong, f"llama, {', '.join(_BUILDERS)}", "use the model's own tokenizer files")
    tokenizer = builder(vocabulary)
    by_default = kind == "llama" or _splitting(vocabulary).add_bos
    adds = {"bos": vocabulary.adds("bos", by_default), "eos": vocabulary.adds("eos", False)}
    _add_tokens(tokenizer, vocabulary)
    _add_ends(tokenizer, vocabulary, adds)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        # Reads tokenizer.json as it stands; a family's own class would build another from its vocabulary.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": adds["bos"],
        "add_eos_token": adds["eos"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.metadata.get(f"{architecture}.context_length"),
    }
    config |= {token: vocabulary.token_of(role) for token, role in _SPECIAL.items() if vocabulary.token_of(role)}
    if template := file.metadata.get("tokenizer.chat_template"):
        config["chat_template"] = template
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def _vocabulary(file: GgufFile) -> Vocabulary:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        wrong = f"{file.path} has no tokenizer.ggml.tokens"
        raise ArtifactError(wrong, "a GGUF with its vocabulary", "convert the model to GGUF again")
    return Vocabulary(file.path, file.metadata, tokens)


def _splitting(vocabulary: Vocabulary) -> _Splitting:
    name = vocabulary.get("pre", "default")
    if name not in _SPLITTINGS:
        wrong = f"{vocabulary.path}: tokenizer.ggml.pre is {name}"
        raise ArtifactError(wrong, f"one of {', '.join(_SPLITTINGS)}", "use the model's own tokenizer files")
    return _SPLITTINGS[name]


def _gemma(vocabulary: Vocabulary) -> Tokenizer:
    # Runs of spaces are spelled with spaces in the file, with ▁ in the model's own vocabulary.
    spelled = ["▁" * len(token) if " " in token and not token.strip() else token for token in vocabulary.tokens]
    vocab = {token: index for index, token in enumerate(spelled)}
    # Merges are learned in the order of the tokens they make; Gemma's scores do not follow it.
    merges = [(left, right) for left, right, _ in _splits(vocab)]
    tokenizer = Tokenizer(BPE(vocab, merges, fuse_unk=True, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _llama(vocabulary: Vocabulary) -> Tokenizer:
    vocab = {token: index for index, token in enumerate(vocabulary.tokens)}
    merges = _listed_merges(vocabulary)
    if merges is None:
        scores = vocabulary.get("scores", [])
        ranked = sorted(_splits(vocab), key=lambda split: (-scores[split[2]], -len(split[0]), -len(split[1])))
        merges = [(left, right) for left, right, _ in ranked]
    tokenizer = Tokenizer(BPE(vocab, merges, fuse_unk=True, byte_fallback=True))
    prefix = vocabulary.get("add_space_prefix", True)
    scheme = "first" if prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1)] if prefix else steps)
    return tokenizer


def _phi3(vocabulary: Vocabulary) -> Tokenizer:
    tokenizer = _llama(vocabulary)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = None
    return tokenizer


def _byte_level(vocabulary: Vocabulary) -> Tokenizer:
    spelling, alphabet = _byte_spelling(), set(pre_tokenizers.ByteLevel.alphabet())
    vocab = {
        token if alphabet.issuperset(token) else "".join(spelling[byte] for byte in token.encode()): index
        for index, token in enumerate(vocabulary.tokens)
    }
    splitting = _splitting(vocabulary)
    merges = _listed_merges(vocabulary) or []
    tokenizer = Tokenizer(
        BPE(
            vocab,
            merges,
            continuing_subword_prefix="",
            end_of_word_suffix="",
            fuse_unk=False,
            ignore_merges=splitting.ignore_merges,
        )
    )
    if splitting.nfc:
        tokenizer.normalizer = normalizers.NFC()
    cuts: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if splitting.single_digits else []
    if splitting.regex is not None:
        cuts.append(pre_tokenizers.Split(Regex(splitting.regex), "isolated"))
    cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splitting.regex is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


_SENTENCEPIECE: dict[str, Callable[[Vocabulary], Tokenizer]] = {
    "gemma": _gemma,
    "gemma2": _gemma,
    "gemma3": _gemma,
    "phi3": _phi3,
}
_BUILDERS: dict[str, Callable[[Vocabulary], Tokenizer]] = {"gpt2": _byte_level}


def _listed_merges(vocabulary: Vocabulary) -> list[tuple[str, str]] | None:
    merges = vocabulary.get("merges")
    return None if merges is None else [(left, right) for left, right in (merge.split(" ") for merge in merges)]


def _splits(vocab: dict[str, int]) -> list[tuple[str, str, int]]:
    """Every way to make a token of two others, tokens in order, the longest left part first."""
    return [
        (token[:cut], token[cut:], index)
        for token, index in vocab.items()
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in vocab and token[cut:] in vocab
    ]


def _byte_spelling() -> dict[int, str]:
    """GPT-2's printable character of every byte: itself where it prints, else the next above 255."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(rest)}


def _add_tokens(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Tokens matched whole in the text: control tokens, those with a role, and the file's user-defined ones."""
    kinds = vocabulary.get("token_type") or [0] * len(vocabulary.tokens)
    known = tokenizer.get_vocab(with_added_tokens=False)
    roles = {vocabulary.token_of(role) for role in _SPECIAL.values()}
    special, plain = [], []
    for token, kind in zip(vocabulary.tokens, kinds, strict=True):
        if token in known and (kind == _CONTROL or token in roles):
            special.append(AddedToken(token, normalized=False, special=True))
        elif token in known and kind == _USER_DEFINED:
            plain.append(AddedToken(token, normalized=False, special=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)


def _add_ends(tokenizer: Tokenizer, vocabulary: Vocabulary, adds: dict[str, bool]) -> None:
    bos, eos = vocabulary.token_of("bos") or "", vocabulary.token_of("eos") or ""
    wanted = [token for token, role in ((bos, "bos"), (eos, "eos")) if adds[role]]
    if not wanted:
        return

    def sequence(part: str, number: int) -> list[str]:
        ends = ([f"{bos}:{number}"] if adds["bos"] else [], [f"{eos}:{number}"] if adds["eos"] else [])
        return [*ends[0], f"${part}:{number}", *ends[1]]

    tokenizer.post_processor = processors.TemplateProcessing(
        single=sequence("A", 0),
        pair=sequence("A", 0) + sequence("B", 1),
        special_tokens=[(token, vocabulary.tokens.index(token)) for token in dict.fromkeys(wanted)],
    )
