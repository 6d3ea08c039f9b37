"""Fused projections taken apart: by hand, and as HF's own code takes them apart."""

from types import SimpleNamespace

import pytest
import torch

from porter.models.attention import split_qkv
from porter.specs.rules import WeightRule
from tests.models.tiny import random_ids, tiny


def rows(dims, order: str, groups: str) -> list[list[int]]:
    """Which rows of a fused projection's output become q, k and v; head width 2."""
    rule = WeightRule(src=["qkv"], order=list(order), groups=groups)
    width = (dims.heads + 2 * dims.kv_heads) * 2
    return [part.flatten().tolist() for part in split_qkv(torch.arange(width), dims, rule)]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "order", "groups", "wanted"),
    [
        # Phi-3: all of q, then k, then v
        (2, 1, "qkv", "1", [[0, 1, 2, 3], [4, 5], [6, 7]]),
        (2, 1, "vkq", "1", [[4, 5, 6, 7], [2, 3], [0, 1]]),
        # GPT-NeoX: q, k and v of each head together
        (2, 2, "qkv", "heads", [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]),
        # InternLM2: the queries of each key head, then its key, then its value
        (4, 2, "qkv", "kv_heads", [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]),
        # CodeGen: four shards, each with the queries of its heads, then their values, then their keys
        (
            8,
            8,
            "qvk",
            "4",
            [
                [*range(4), *range(12, 16), *range(24, 28), *range(36, 40)],
                [*range(8, 12), *range(20, 24), *range(32, 36), *range(44, 48)],
                [*range(4, 8), *range(16, 20), *range(28, 32), *range(40, 44)],
            ],
        ),
    ],
    ids=["in a row", "in a row, v first", "by head", "by key head", "in four shards"],
)
def test_split_qkv(heads: int, kv_heads: int, order: str, groups: str, wanted: list[list[int]]) -> None:
    assert rows(SimpleNamespace(heads=heads, kv_heads=kv_heads, head_dim=2), order, groups) == wanted


@pytest.mark.parametrize("family", ["gemma2", "llama", "phi3"])
def test_no_token_sees_a_later_one(family: str) -> None:
    build = tiny(family)
    model, ids_BT = build.model("float64"), random_ids(build, 12)
    other_BT = ids_BT.clone()
    other_BT[:, 7:] = (other_BT[:, 7:] + 1) % build.blueprint.dims.vocab
    with torch.no_grad():
        first, second = model(ids_BT), model(other_BT)
    assert torch.equal(first[:, :7], second[:, :7])
    assert not torch.isclose(first[:, 7:], second[:, 7:]).all(-1).any()


def test_a_window_hides_the_token_that_is_as_far_as_it_is_wide() -> None:
    build = tiny("mistral", "block.attn.window=4")
    ids_BT = random_ids(build, 12)
    other_BT = ids_BT.clone()
    other_BT[:, 5] = (other_BT[:, 5] + 1) % build.blueprint.dims.vocab
    model = build.model("float64")
    found = []
    for ids in (ids_BT, other_BT):
        nodes: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            model(ids, tap=nodes.__setitem__)
        found.append(nodes["layers.0.attn.ctx"])
    moved = (found[0] != found[1]).any(-1)[0].nonzero().flatten().tolist()
    assert moved == [5, 6, 7, 8]
