"""Masks and tables of positions; the key/value cache."""

import pytest
import torch

from porter.models.positions import Cache, LayerCache, Positions
from porter.specs.schema import Temperature
from tests.models.tiny import tiny

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]


def visible(start: int, length: int, window: int | None) -> list[list[int]]:
    mask = Positions(start, length, CPU).mask(window, torch.float32)
    assert mask.shape == (1, 1, length, start + length)
    return [row.nonzero().flatten().tolist() for row in mask[0, 0] == 0]


def test_a_causal_mask_shows_each_token_itself_and_those_before() -> None:
    assert visible(0, 3, None) == [[0], [0, 1], [0, 1, 2]]
    assert visible(2, 2, None) == [[0, 1, 2], [0, 1, 2, 3]]


def test_a_window_of_two_shows_a_token_itself_and_one_before() -> None:
    assert visible(0, 4, 2) == [[0], [0, 1], [1, 2], [2, 3]]
    assert visible(3, 1, 2) == [[2, 3]]
    assert visible(0, 3, 3) == visible(0, 3, None)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_hidden_keys_get_the_least_number_of_the_dtype(dtype: torch.dtype) -> None:
    mask = Positions(0, 2, CPU).mask(None, dtype)
    assert mask.dtype == dtype and mask[0, 0, 0, 1] == torch.finfo(dtype).min


def test_masks_and_tables_are_made_once() -> None:
    blueprint = tiny("gemma3").blueprint
    positions = Positions(0, 5, CPU)
    assert positions.mask(3, torch.float32) is positions.mask(3, torch.float32)
    local, globally = blueprint.blocks[0].rope, blueprint.blocks[5].rope
    cos, sin = positions.tables(local, blueprint.dims, torch.float32)
    assert cos.shape == sin.shape == (1, 5, 16)
    assert positions.tables(local, blueprint.dims, torch.float32)[0] is cos
    assert not torch.equal(positions.tables(globally, blueprint.dims, torch.float32)[0], cos)


def test_tables_start_where_the_cache_ends() -> None:
    blueprint = tiny("llama").blueprint
    rope, dims = blueprint.blocks[0].rope, blueprint.dims
    whole = Positions(0, 9, CPU).tables(rope, dims, torch.float32)
    part = Positions(6, 3, CPU).tables(rope, dims, torch.float32)
    assert all(torch.equal(each, all_of_it[:, 6:]) for each, all_of_it in zip(part, whole, strict=True))


def test_a_negated_rope_turns_the_other_way() -> None:
    blueprint = tiny("llama").blueprint
    rope = blueprint.blocks[0].rope
    cos, sin = Positions(0, 4, CPU).tables(rope, blueprint.dims, torch.float32)
    cos_back, sin_back = Positions(0, 4, CPU).tables(
        rope.model_copy(update={"negate": True}), blueprint.dims, torch.float32
    )
    assert torch.equal(cos, cos_back) and torch.equal(sin, -sin_back) and sin.any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_queries_grow_as_ministrals_do(dtype: torch.dtype) -> None:
    from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

    spec = Temperature(beta=0.1, base=3)
    documents_BS = torch.tensor([[0] * 11, [-1] * 4 + [0] * 7])
    positions = Positions(2, 9, CPU, documents_BS)
    found = positions.temperature(spec, dtype)
    assert found.dtype == dtype and torch.equal(found, get_llama_4_attn_scale(positions.ids_BT, 0.1, 3).to(dtype))
    assert found[1, 0, 2:6, 0].tolist() == [1.0] * 3 + [float(found[0, 0, 1, 0])]  # a document counts from 0


def test_positions_count_the_tokens_of_a_document_and_padding_is_none() -> None:
    documents_BS = torch.tensor([[-1, -1, 0, 0, 0], [0, 0, 1, 1, 1], [0, 0, -1, -1, 0]])
    assert Positions(0, 5, CPU, documents_BS).ids_BT.tolist() == [[0, 1, 0, 1, 2], [0, 1, 0, 1, 2], [0, 1, 0, 1, 2]]
    assert Positions(3, 2, CPU, documents_BS).ids_BT.tolist() == [[1, 2], [1, 2], [1, 2]]
    assert Positions(3, 2, CPU).ids_BT.tolist() == [[3, 4]]


def test_a_token_sees_its_own_document_alone() -> None:
    documents_BS = torch.tensor([[-1, -1, 0, 0, 0], [0, 0, 1, 1, 1], [0, 0, -1, -1, 0]])
    seen = Positions(3, 2, CPU, documents_BS).mask(None, torch.float32) == 0
    assert seen.shape == (3, 1, 2, 5)
    rows = [[row.nonzero().flatten().tolist() for row in sample[0]] for sample in seen]
    assert rows == [[[2, 3], [2, 3, 4]], [[2, 3], [2, 3, 4]], [[2, 3], [0, 1, 4]]]  # padding sees padding: no empty row
    seen = Positions(3, 2, CPU, documents_BS).mask(2, torch.float32) == 0
    assert [sample[0, 1].nonzero().flatten().tolist() for sample in seen] == [[3, 4], [3, 4], [1, 4]]


def test_documents_of_other_slots_than_the_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"documents_BS has 2 slots, expected 5: 3 before these tokens and 2 of"):
        Positions(3, 2, CPU, torch.zeros(1, 2, dtype=torch.long))


def test_the_reach_of_a_padded_row_is_its_farthest_token() -> None:
    documents_BS = torch.tensor([[-1] * 6 + [0] * 3, [-1] * 5 + [0] * 4])
    assert Positions(0, 9, CPU, documents_BS)._reach() == 6  # padding counts too
    assert Positions(6, 3, CPU, documents_BS)._reach() == 4
    assert Positions(6, 3, CPU)._reach() == 9


def test_a_layer_s_cache_appends_along_the_keys() -> None:
    held = LayerCache()
    k, v = torch.arange(6.0).view(1, 1, 3, 2), torch.arange(6.0, 12.0).view(1, 1, 3, 2)
    assert held.update(k[:, :, :2], v[:, :, :2])[0].shape == (1, 1, 2, 2)
    both = held.update(k[:, :, 2:], v[:, :, 2:])
    assert torch.equal(both[0], k) and torch.equal(both[1], v)


def test_slots_are_taken_one_after_the_other() -> None:
    cache = Cache(2)
    assert (cache.take(3), cache.take(1), cache.length) == (0, 3, 4)
