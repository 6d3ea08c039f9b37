"""Conventions in words."""

import pytest

from porter.specs.conventions import conventions
from porter.specs.family import find_family, find_model
from porter.specs.overrides import parse_override
from porter.specs.resolve import resolve_size


def told(name: str, *texts: str) -> dict[str, str]:
    family, size = find_model(name)
    overrides = [parse_override(text, family.tree) for text in texts]
    return dict(conventions(resolve_size(family, size or "tiny", overrides).blueprint))


@pytest.mark.parametrize(
    ("name", "topic", "text"),
    [
        ("gemma-7b", "embedding", "× 55.4256 (rounded to the activations)"),
        ("gemma-7b", "norm", "rms, eps 1e-06, 1 + weight, scale_then_cast"),
        ("gemma-7b", "attention", "16 heads on 16 of 256, scale 0.0625 on scores"),
        ("gemma-7b", "tokenizer", "BOS 2 first, eos 1, pad 0"),
        ("gemma-2-9b", "window", "4096 keys on 21 of 42 layers"),
        ("gemma-2-9b", "placement", "sequential, pre and post"),
        ("gemma-2-9b", "head", "tied, softcap 30"),
        ("gemma-3-270m", "rope", "half, theta 10000 and 1e+06, tables in act, applied in act, positions fp32"),
        ("gpt2", "embedding", "+ learned positions"),
        ("gpt2", "norm", "layernorm, eps 1e-05, weight, fused, bias"),
        ("pythia-70m", "placement", "parallel, pre, (attn + mlp) + x"),
        ("llama-2-7b", "embedding", "plain"),
        ("qwen2.5-7b", "tokenizer", "no BOS, eos 151643"),
    ],
)
def test_in_words(name: str, topic: str, text: str) -> None:
    assert told(name)[topic] == text


def test_what_ports_forget_of_rope() -> None:
    assert "0.25 of each head's width" in told("pythia-70m")["rope"]
    assert "llama3 scaling × 8" in told("llama-3.1-8b")["rope"]
    assert "none on 1 of 3 layers" in told("mistral", "layers[1].rope=null")["rope"]
    assert "rope" not in told("gpt2")


def test_biases_and_branches() -> None:
    assert told("qwen2")["attention"].endswith("biases on q, k, v")
    assert told("llama")["attention"].endswith("biases on q, k, v, o")
    assert ", qk-norm per head with weights of its own before rope, " in told("cohere")["attention"]
    growth = ", queries × 1 + 0.1 log(1 + floor(position / 100))"
    assert told("ministral3")["attention"].endswith(growth)
    assert told("llama", "block.residual_scale=0.5")["placement"] == "sequential, pre, branches × 0.5"
    assert told("pythia-70m", "block.add_order=residual_first")["placement"].endswith("(x + attn) + mlp")
    assert told("pythia-70m", "block.mlp.pre_norm=shared")["placement"].startswith("parallel, pre, one norm shared")


def test_every_topic_of_every_family_is_told() -> None:
    for name in ("gemma", "gpt2", "phi3"):
        topics = [topic for topic, _ in conventions(resolve_size(find_family(name), "tiny").blueprint)]
        assert topics[0] == "embedding" and topics[-3:] == ["mlp", "head", "tokenizer"]
