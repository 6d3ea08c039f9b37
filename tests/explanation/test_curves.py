"""porter curves: every combination of changes, and the one that is the reference."""

import json

import pytest
import torch

from porter.comparison.diff import diff
from porter.errors import SpecError, UsageError
from porter.explanation.curves import BOS, Change, Curves, default_changes, parse_change, trace_curves
from porter.reports.curves_html import curves_to_html, curves_to_json, sentence
from porter.reports.curves_plot import curves_figure
from tests.models.tiny import tiny

GELU, NORM = Change("exact GELU", "block.mlp.act=gelu"), Change("norm cast", "norm.math=cast_then_scale")


def traced(*changes: Change, family: str = "gemma3", overrides: tuple[str, ...] = (), tokens: int = 40) -> Curves:
    return trace_curves(tiny(family, *overrides, dtype="bfloat16", tokens=tokens), changes=changes)


def test_what_is_right_is_bit_equal_and_nothing_else_is() -> None:
    found = traced(GELU, NORM)
    assert [curve.made for curve in found.curves] == [(False, False), (True, False), (False, True), (True, True)]
    assert [found.told(curve) for curve in found.winners] == ["nothing changed"]
    assert found.places == ("embed", *map(str, range(6))) and len(found.floor) == 7
    assert all(curve.l2[0] == 0.0 and curve.l2[-1] > 0.0 for curve in found.curves[1:])
    assert sentence(found).startswith("One of 4 combinations is the reference")


def test_a_wrong_port_is_mended_by_the_combination_that_wins() -> None:
    found = traced(Change("tanh", "block.mlp.act=gelu_tanh"), NORM, overrides=("block.mlp.act=gelu",))
    assert [found.told(curve) for curve in found.winners] == ["tanh"]
    found = traced(NORM, overrides=("block.mlp.act=gelu",))
    assert found.winners == [] and sentence(found) == "None of 2 combinations is the reference"


def test_what_the_prompt_cannot_show_wins_too() -> None:
    found = traced(Change("positions", "block.rope.pos_dtype=act"), GELU, tokens=40)  # no gaps before 256
    assert [found.told(curve) for curve in found.winners] == ["nothing changed", "positions"]
    assert "cannot tell them apart" in sentence(found)


def test_the_curve_is_that_of_a_diff() -> None:
    port = tiny("gemma3", dtype="bfloat16", tokens=40)
    found = trace_curves(port, changes=[GELU])
    report = diff(tiny("gemma3", "block.mlp.act=gelu", dtype="bfloat16", tokens=40), stages=["precision"])
    nodes = {node.name: node.propagated for node in report.nodes if node.propagated}
    names = ["embed.out", *(f"layers.{i}.resid_post" for i in range(6))]
    for place, name in enumerate(names):
        propagated = nodes[name]
        assert propagated is not None
        assert found.curves[1].l2[place] == pytest.approx(propagated.l2, rel=1e-12)
        assert found.floor[place] == pytest.approx(propagated.floor_l2, rel=1e-12)


def test_without_bos_the_port_sees_one_token_less() -> None:
    found = trace_curves(tiny("gemma", dtype="float32", tokens=20), changes=[Change("no BOS", BOS)])
    without = found.curves[1]
    assert [found.told(curve) for curve in found.winners] == ["nothing changed"]
    assert without.l2[0] == 0.0 and without.l2[1] > 100 * found.floor[1]  # the same embeddings, other attention
    with pytest.raises(UsageError, match="does not begin with BOS"):
        trace_curves(tiny("qwen3", dtype="float32", tokens=20), changes=[Change("no BOS", BOS)])


def test_the_default_changes_are_those_the_model_has() -> None:
    assert [change.override for change in default_changes(tiny("gemma3"))] == [
        "block.mlp.act=gelu", "block.rope.pos_dtype=act", "embed.scale_rounding=none", "norm.math=cast_then_scale", BOS,
    ]  # fmt: skip
    assert [change.override for change in default_changes(tiny("gpt2"))] == ["block.mlp.act=gelu"]


def test_changes_are_read_and_refused() -> None:
    assert parse_change("block.mlp.act=gelu") == Change("block.mlp.act=gelu", "block.mlp.act=gelu")
    assert parse_change("exact GELU: block.mlp.act=gelu") == GELU
    with pytest.raises(UsageError, match="has no ="):
        parse_change("gelu")
    with pytest.raises(UsageError, match="7 changes\n  expected: 1 to 6"):
        traced(*[GELU] * 7)
    with pytest.raises(SpecError, match="changes nothing"):
        traced(Change("nothing", "block.mlp.act=gelu_tanh"))


def test_the_figure_has_every_curve_and_marks_the_winner() -> None:
    found = traced(GELU, NORM)
    figure = curves_figure(found)
    lines = [trace for trace in figure.data if trace.mode and trace.line.width]
    assert len(lines) == 4 and lines[-1].name == "bit-equal: nothing changed" and lines[-1].line.width == 4
    assert set(lines[-1].marker.symbol) == {"diamond-open"}
    assert lines[-1].y[0] < min(value for trace in lines[:-1] for value in trace.y[1:])
    assert [trace.name for trace in lines if trace.showlegend] == [
        "other combinations", "exact GELU", "norm cast", "bit-equal: nothing changed",
    ]  # fmt: skip
    assert len({trace.line.color for trace in lines}) == 4
    page = curves_to_html(found)
    assert "One of 4 combinations is the reference" in page and 'src="http' not in page
    document = json.loads(curves_to_json(found))
    assert document["winners"] == ["nothing changed"] and len(document["curves"]) == 4
    assert document["curves"][1]["l2"][-1] == found.curves[1].l2[-1]
    assert torch.tensor(document["floor"]).gt(0)[1:].all()
