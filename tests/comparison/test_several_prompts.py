"""Several prompts: each is compared, decoded and a row of a batch, and the report names the one that is worst."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from porter.comparison.behaviour.lanes import Passed, PortRoutes, Streams
from porter.comparison.behaviour.routes import (
    MOST_OTHERS,
    PADDING,
    Route,
    batch_of_prompts,
    choose_others,
    other_routes,
)
from porter.comparison.diff import diff
from porter.comparison.report import Behaviour, DiffReport
from porter.models.positions import Positions
from porter.reports.html import to_html
from tests.models.tiny import random_ids, tiny

LENGTHS = (20, 5, 48, 30)  # the longest is the third, the second too short for other routes


@pytest.fixture
def file(tmp_path: Path) -> Path:
    ids = random_ids(tiny("llama"), sum(LENGTHS))[0].split(LENGTHS)
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"ids": each.tolist()}) + "\n" for each in ids))
    return path


def compared(file: Path, **options: object) -> DiffReport:
    return diff(tiny("llama"), prompts=file, **options)  # type: ignore[arg-type]


def check(report: DiffReport, name: str) -> Behaviour:
    (found,) = (each for each in report.behaviour if each.name == name)
    return found


def test_prompts_that_are_long_enough_take_part() -> None:
    prompts = [[0] * length for length in (12, 11, 40, *range(20, 32))]
    others = choose_others(prompts, 2)
    assert list(others.texts) == [0, *range(3, 3 + MOST_OTHERS - 1)]
    assert others.left_out == len(prompts) - 1 - MOST_OTHERS and others.longest == 2
    assert others.name(0) == "prompt 1, " and choose_others([[1, 2]], 0).name(0) == ""


def test_rows_of_the_batch_end_with_their_prompts() -> None:
    longest, texts = list(range(100, 140)), {0: list(range(12)), 3: list(range(50, 90))}
    route = batch_of_prompts(tiny("llama").blueprint, longest, texts)
    assert route.documents_BS is not None and route.ids_BS.shape == (3, 32) and sum(route.calls) == 32
    assert route.ids_BS[:, -1].tolist() == [131, 11, 81]
    assert (route.documents_BS == PADDING).sum(1).tolist() == [0, 20, 0]
    assert [(piece.base, piece.prompt, piece.slots.start) for piece in route.pieces] == [
        ("whole", None, 0), ("whole@0", 0, 20), ("whole@3", 3, 0),
    ]  # fmt: skip
    names = [each.name for each in other_routes(texts)]
    assert names == ["whole@0", "decode@0", "whole@3", "decode@3"]


def test_every_prompt_is_decoded_and_a_row_of_a_batch(file: Path) -> None:
    report = compared(file)
    assert {each.status for each in report.behaviour} == {"PASS"}
    assert "3 one at a time, and 2 other prompts alike (1 left out: shorter than 12" in check(report, "decode").detail
    assert check(report, "prompts").detail.startswith("3 prompts of up to 32 tokens as rows of one batch, padded on")
    for each in report.behaviour:
        assert not each.where or each.where.startswith(f"prompt {each.prompt + 1}, ")
    assert [logits.prompt for logits in report.logits] == [0, 1, 2, 3]
    alone = diff(tiny("llama"), tokens=40, stages=["behaviour"])
    assert "prompts" not in {each.name for each in alone.behaviour}
    assert not any(each.where.startswith("prompt") or "other prompt" in each.detail for each in alone.behaviour)


@pytest.mark.parametrize(("route", "name"), [("decode@3", "decode"), ("decode@0", "decode"), ("whole@3", "cache")])
def test_the_prompt_that_goes_wrong_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, route: str, name: str
) -> None:
    run = PortRoutes.layer

    def wrong(self: PortRoutes, index: int, taken: Route, streams: Streams) -> Passed:
        passed = run(self, index, taken, streams)
        if taken.name != route or index != 1:
            return passed
        if name == "decode":
            passed.streams[-1][:] += 0.1
        else:
            passed.held["keys"][0, 3] += 1.0
        return passed

    monkeypatch.setattr(PortRoutes, "layer", wrong)
    report = compared(file, stages=["behaviour"])
    found, number = check(report, name), int(route[-1])
    assert (
        found.status == "FAIL" and found.prompt == number and found.where.startswith(f"prompt {number + 1}, layers.1.")
    )
    assert {each.name for each in report.behaviour if each.status == "FAIL"} == {name}
    assert f">prompt {number + 1}, layers.1." in to_html(report)


def test_a_row_past_the_second_with_wrong_positions_is_found(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = Positions._count_positions

    def wrong(self: Positions, slots: int) -> Tensor:
        found = count(self, slots)
        return torch.cat((found[:2], found[1:2].expand(len(found) - 2, -1))) if len(found) > 2 else found

    monkeypatch.setattr(Positions, "_count_positions", wrong)
    report = compared(file, stages=["behaviour"])
    assert {each.name for each in report.behaviour if each.status != "PASS"} == {"prompts"}
    assert check(report, "prompts").where.startswith("prompt 4, ") and "of row 2" in check(report, "prompts").where


def test_the_page_names_the_prompt_of_each_worst_token(file: Path) -> None:
    report = diff(tiny("llama", "block.mlp.act=gelu"), prompts=file, stages=["semantics"])
    page = to_html(report)
    assert report.first_fail is not None
    for number in {node.prompt + 1 for node in report.nodes}:
        assert f" of prompt {number}" in page
    assert "1 given ids (20), 2 given ids (5), 3 given ids (48), 4 given ids (30)" in page
    assert "ids of prompt 3, the same for both sides: given ids, 48 tokens" in page
