import json

import pytest

from porter.bench.footprint.cards import GIB, USABLE, largest_batch, largest_context, read_card
from porter.bench.footprint.plan import Plan
from porter.bench.footprint.step import footprint
from porter.bench.footprint.survey import survey, to_document
from porter.bench.footprint.worth import count_flops, judge_fused_loss
from porter.errors import UsageError
from porter.reports.footprint_tables import spans
from porter.specs.shapes import find_shape


def test_cards() -> None:
    assert read_card("80GiB") == 80 * GIB
    assert read_card("24 gb") == 24 * 10**9
    assert read_card("H200") == int(139.8 * GIB)
    for wrong in ("0GiB", "eighty", "-3GB"):
        with pytest.raises(UsageError, match="--card"):
            read_card(wrong)
    with pytest.raises(UsageError, match="h100"):
        read_card("h10")


@pytest.mark.parametrize("checkpointing", ("none", "plain"))
def test_what_fits_is_the_last_that_does(checkpointing: str) -> None:
    blueprint, card = find_shape("llama-3.2-1b").blueprint, 24 * GIB
    plan = Plan(2, 2048, checkpointing=checkpointing)  # type: ignore[arg-type]
    batch, tokens = largest_batch(blueprint, plan, card), largest_context(blueprint, plan, card)
    for fits, after in ((Plan(batch, 2048), Plan(batch + 1, 2048)), (Plan(2, tokens), Plan(2, tokens + 1))):
        peaks = [
            footprint(blueprint, Plan(each.batch, each.tokens, checkpointing=checkpointing)).peak.bytes  # type: ignore[arg-type]
            for each in (fits, after)
        ]
        assert peaks[0] <= USABLE * card < peaks[1]


def test_a_model_that_does_not_fit_at_all() -> None:
    blueprint = find_shape("llama-3-8b").blueprint
    assert largest_batch(blueprint, Plan(1, 128), 24 * GIB) == 0


def test_flops_are_six_a_parameter_and_token() -> None:
    blueprint = find_shape("llama-3-8b", layers=8).blueprint
    plan = Plan(16, 512)
    whole, head = count_flops(blueprint, plan)
    used = blueprint.num_parameters - 128256 * 4096  # the embedding multiplies nothing
    assert head == 6 * plan.rows * 4096 * 128256
    assert whole == pytest.approx(6 * used * plan.rows, rel=0.03)  # and the scores
    assert count_flops(blueprint, Plan(16, 512, checkpointing="plain"))[0] > 1.2 * whole


def test_the_fused_loss_pays_for_wide_vocabularies_and_not_for_narrow_ones() -> None:
    assert judge_fused_loss(find_shape("gemma-7b", layers=8).blueprint, Plan(2, 4096)).pays
    llama_2 = find_shape("llama-2-7b").blueprint
    few = judge_fused_loss(llama_2, Plan(1, 128))
    assert not few.pays
    assert few.peak < 0.02
    assert "It does not pay: 128 rows of 32,000 logits" in few.reason


def test_the_document_says_all_that_was_found() -> None:
    shape = find_shape("qwen3", "tiny")
    found = survey(shape.title, shape.blueprint, Plan(2, 64), 10**9)
    document = json.loads(json.dumps(to_document(found)))
    assert document["schema"] == "porter.memory/1"
    assert [(each["code"], each["checkpointing"]) for each in document["variants"]] == [
        (code, way) for code in ("huggingface", "porter") for way in ("none", "plain", "offloaded")
    ]
    first = document["variants"][0]
    assert first["peak"] == max(first["moments"].values())
    assert first["moments"][first["peak_at"]] == first["peak"]
    assert (
        sum(each["bytes"] * len(each["layers"]) for each in first["layers"]) + sum(first["head"].values())
        == first["kept"]
    )
    assert document["losses"]["fused"]["loss"] < document["losses"]["naive"]["loss"]


def test_spans() -> None:
    assert spans((0, 1, 2, 4, 6, 7)) == "0–2, 4, 6–7"
