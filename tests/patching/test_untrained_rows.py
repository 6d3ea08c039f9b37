"""Rows that training never reached: found, told, and repaired only when asked."""

from typing import Any

import pytest
import torch
from torch import Tensor

from porter.patching.untrained_rows import UntrainedRowsError, judge_rows, repair_rows, untrained_rows
from tests.models.tiny import FAMILIES, porter_cache, tiny
from tests.patching.tiny_hf import hf_model

__all__ = ["porter_cache"]


def _table(rows: int = 300, width: int = 16, spread: float = 0.3) -> Tensor:
    """Rows as trained ones lie: lengths spread by a factor or two."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.exp(spread * torch.randn(rows, 1, generator=generator))
    return torch.randn(rows, width, generator=generator) * lengths


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_kind_of_untrained_row_is_found(dtype: torch.dtype) -> None:
    table = _table()
    table[[3, 7]] = 0.0
    table[9] *= 1e-6
    table[20] = 0.5
    table[40:44] = table[44].clone()
    table[290:] *= 0.02
    assert judge_rows(table.to(dtype)) == {
        "near zero": (3, 7, 9),
        "constant": (20,),
        "copies of one row": (40, 41, 42, 43, 44),
        "far shorter than all others": tuple(range(290, 300)),
    }


@pytest.mark.parametrize("spread", [0.0, 0.3, 0.6])
def test_trained_rows_are_not_accused(spread: float) -> None:
    assert judge_rows(_table(2000, spread=spread)) == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_row_of_a_random_model_is_accused(family: str) -> None:
    found = untrained_rows(hf_model(family))
    assert all(each.untrained == () for each in found)
    assert len(found) == (1 if tiny(family).blueprint.head.tied else 2)
    assert str(found[0]).endswith("rows are trained")


def _with_untrained(family: str) -> Any:
    model = hf_model(family)
    with torch.no_grad():
        model.get_input_embeddings().weight[500:] = 0.0
        model.get_output_embeddings().weight[504:] *= 1e-4
    return model


def test_the_report_changes_nothing_and_repair_takes_the_mean_of_trained_rows() -> None:
    model = _with_untrained("llama")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = untrained_rows(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [str(each) for each in found] == [
        "model.embed_tokens: 12 of 512 rows are untrained (near zero: 500 to 511)",
        "lm_head: 8 of 512 rows are untrained (near zero: 504 to 511)",
    ]
    assert repair_rows(model) == found
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    for weight, first, old in ((table, 500, "model.embed_tokens.weight"), (head, 504, "lm_head.weight")):
        assert torch.equal(weight[:first], before[old][:first])
        mean = before[old][:first].double().mean(dim=0).float()
        assert torch.equal(weight[first:], mean.expand(512 - first, -1))
    same = {name for name, value in model.state_dict().items() if torch.equal(value, before[name])}
    assert {*before} - same == {"model.embed_tokens.weight", "lm_head.weight"}


def test_the_padding_row_of_an_embedding_of_its_own_stays() -> None:
    model = hf_model("llama")
    table = model.get_input_embeddings()
    table.padding_idx = 511
    with torch.no_grad():
        table.weight[508:] = 0.0
    repair_rows(model)
    assert torch.equal(table.weight[511], torch.zeros_like(table.weight[511]))
    mean = table.weight[:508].double().mean(dim=0).float()
    assert torch.equal(table.weight[508:511], mean.expand(3, -1))


def test_a_tied_table_is_told_of_and_repaired_once() -> None:
    model = hf_model("gemma2")
    with torch.no_grad():
        model.get_input_embeddings().weight[:4] = 0.25
    (found,) = untrained_rows(model)
    assert found.path == "model.embed_tokens" and found.found == {"constant": (0, 1, 2, 3)}
    repair_rows(model, [found])
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    (again,) = untrained_rows(model)
    assert again.found == {"copies of one row": (0, 1, 2, 3)}  # the mean, four times: still to be trained


def test_what_cannot_be_judged_or_repaired_is_refused() -> None:
    with pytest.raises(UntrainedRowsError, match=r"the table is torch\.int8"):
        judge_rows(torch.zeros(4, 4, dtype=torch.int8))
    with pytest.raises(UntrainedRowsError, match="rows that are not finite"):
        judge_rows(torch.full((4, 4), torch.nan))
    model = hf_model("llama")
    with torch.no_grad():
        model.get_input_embeddings().weight.zero_()
    with pytest.raises(UntrainedRowsError, match=r"model\.embed_tokens has no trained row"):
        repair_rows(model)
    other = untrained_rows(_with_untrained("gemma"))
    with pytest.raises(UntrainedRowsError, match="no table"):
        repair_rows(hf_model("gpt2"), other)
