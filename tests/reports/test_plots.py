"""The pictures: nothing is lost, and colours mean what the thresholds say."""

import math
import re
from dataclasses import replace

import pytest

from porter.reports import canvas, heatmaps
from porter.reports.heatmaps import node_heatmap, token_heatmap
from porter.reports.plots import layer_curves, margin_scatter
from tests.reports import synthetic


def stage(report, name: str, dtype: str):
    return next(each for each in report.stages if (each.name, each.dtype) == (name, dtype))


def curve(report, dtype: str):
    return next(trace for trace in layer_curves(report).data if trace.name == f"{dtype} difference")


def colour_at(trace, level: float) -> str:
    """The colour that a heatmap gives to a level: that of the last stop at or below it."""
    share = (level - trace.zmin) / (trace.zmax - trace.zmin)
    return [colour for stop, colour in trace.colorscale if stop <= share + 1e-9][-1]


def cells(report, name: str, dtype: str):
    """node name -> (level, hover text), of the heatmap of compared nodes."""
    figure = node_heatmap(report, stage(report, name, dtype))
    trace = figure.data[1]
    found = {}
    for row, levels, texts in zip(trace.y, trace.z, trace.text, strict=True):
        for column, level, text in zip(trace.x, levels, texts, strict=True):
            if level is not None:
                found[f"layers.{column}.{row}" if column.isdecimal() else row] = (level, text)
    return trace, found


@pytest.mark.parametrize("name", list(synthetic.ALL))
def test_every_report_can_be_drawn(name: str) -> None:
    report = synthetic.ALL[name]()
    figures = [layer_curves(report)]
    for each in report.stages:
        figures += [node_heatmap(report, each), token_heatmap(report, each)]
    for figure in figures:
        assert '"layout"' in figure.to_json()


def test_curve_runs_from_embedding_to_final_norm() -> None:
    for dtype in ("fp32", "bf16"):
        trace = curve(synthetic.failing(), dtype)
        assert list(trace.x) == ["embed", *map(str, range(18)), "final"]


def test_curve_is_the_logarithm() -> None:
    report = synthetic.failing()
    want = [node.propagated.log10_l2 for node in report.of_stage("precision") if node.name == "layers.3.resid_post"]
    assert curve(report, "bf16").y[4] == want[0]


def test_bit_equal_points_are_drawn_in_their_lane() -> None:
    report = synthetic.passing()
    figure = layer_curves(report)
    (lane,) = (shape for shape in figure.layout.shapes if shape.type == "rect")
    assert "bit-equal" in [note.text for note in figure.layout.annotations]
    for dtype in ("fp32", "bf16"):
        trace = curve(report, dtype)
        assert len(trace.y) == 20 and all(lane.y0 < level < lane.y1 for level in trace.y)
        assert set(trace.marker.symbol) == {"diamond-open"}
    floors = [level for trace in figure.data if "rounding" in (trace.name or "") for level in trace.y]
    assert lane.y1 < min(floors)
    assert curve(report, "fp32").y[0] != curve(report, "bf16").y[0]  # one does not hide the other


def test_no_lane_where_nothing_is_bit_equal() -> None:
    assert "bit-equal" not in [note.text for note in layer_curves(synthetic.failing()).layout.annotations]


def test_a_difference_that_is_not_finite_is_above_all_others() -> None:
    trace = curve(synthetic.undecided(), "bf16")
    assert trace.marker.symbol[10] == "x" and trace.y[10] == max(trace.y) and math.isfinite(trace.y[10])


def test_band_starts_at_the_floor_and_ends_where_a_port_stops_to_pass() -> None:
    report = synthetic.failing()
    node = next(node for node in report.of_stage("precision") if node.name == "embed.out")
    floor, top = layer_curves(report).data[4:6]
    assert (floor.name, top.name, top.fill) == (None, "bf16 rounding", "tonexty")
    assert 10 ** floor.y[0] == pytest.approx(node.propagated.floor_l2)
    assert 10 ** top.y[0] == pytest.approx(node.propagated.floor_l2 * math.hypot(1, 1.5))


def test_every_node_has_a_cell() -> None:
    _, found = cells(synthetic.failing(), "semantics", "fp32")
    assert set(found) == set(synthetic.NAMES)


@pytest.mark.parametrize(
    ("dtype", "ratio", "colour"),
    [
        ("fp32", 4.0, heatmaps.WARN), ("fp32", 3.9, heatmaps.PASS_LOW), ("fp32", 9.9, heatmaps.WARN),
        ("fp32", 10.0, heatmaps.FAIL_LOW), ("bf16", 1.4, heatmaps.PASS_LOW), ("bf16", 1.6, heatmaps.WARN),
        ("bf16", 3.1, heatmaps.FAIL_LOW),
    ],
)  # fmt: skip
def test_colours_change_at_the_thresholds(dtype: str, ratio: float, colour: str) -> None:
    name = "semantics" if dtype == "fp32" else "precision"
    trace, _ = cells(synthetic.failing(), name, dtype)
    assert colour_at(trace, math.log10(ratio)) == colour


def test_colour_is_log10_of_rho_and_clipped() -> None:
    _, found = cells(synthetic.failing(), "precision", "bf16")
    node = next(node for node in synthetic.failing().of_stage("precision") if node.name == "layers.2.mlp.out")
    assert found["layers.2.mlp.out"][0] == pytest.approx(math.log10(node.local.rho), abs=1e-3)
    _, broken = cells(synthetic.undecided(), "precision", "bf16")
    assert broken["layers.9.resid_post"][0] == heatmaps.HIGHEST  # nan


def test_hover_says_what_was_measured() -> None:
    _, found = cells(synthetic.failing(), "semantics", "fp32")
    text = found["layers.0.mlp.act"][1]
    for part in ("<b>layers.0.mlp.act</b>", "FAIL", "ρ 9", "ρ_tok", "e_port", "e_ref", "worst element [0, "):
        assert part in text


def test_hover_is_escaped() -> None:
    _, found = cells(synthetic.hostile(), "semantics", "fp32")
    assert "FAIL: &lt;i&gt;reason&lt;/i&gt;" in found["layers.0.mlp.act"][1]
    assert all(set(re.findall(r"<.*?>", text)) == {"<b>", "</b>", "<br>"} for _, text in found.values())


def test_nodes_not_compared_are_grey_and_signed() -> None:
    report = synthetic.fused()
    figure = node_heatmap(report, stage(report, "precision", "bf16"))
    grey = figure.data[0]
    assert sum(level is not None for line in grey.z for level in line) == 36
    assert [list(stop) for stop in grey.colorscale] == [[0, canvas.UNCOMPARED], [1, canvas.UNCOMPARED]]
    _, found = cells(report, "precision", "bf16")
    assert len(found) == 237 - 36
    signs = [sign for trace in figure.data[2:] for sign in trace.text or ()]
    assert signs == [heatmaps.SIGNS["NOT_COMPARED"]] * 36


def test_failures_carry_their_ratio_and_for_narrow_cells_a_sign() -> None:
    report = synthetic.failing()
    figure = node_heatmap(report, stage(report, "semantics", "fp32"))
    (failed,) = (trace for trace in figure.data[2:] if trace.meta == "✕")
    assert "924" in failed.text and len(failed.text) == 72


def test_only_layers_that_were_compared_take_room() -> None:
    report = synthetic.failing()
    few = replace(report, nodes=tuple(node for node in report.nodes if node.layer in (None, 0, 3)))
    assert list(node_heatmap(few, stage(few, "semantics", "fp32")).data[1].x) == ["embed", "0", "3", "end"]
    assert list(layer_curves(few).layout.xaxis.categoryarray) == ["embed", "0", "3", "final"]


def test_margins_tell_another_word_from_the_same_and_draw_what_is_safe() -> None:
    logits = synthetic.failing().logits[1]
    one = replace(logits.at[0], port=((-1, 9.0), *logits.at[0].port[1:]))
    same, other, line = margin_scatter(replace(logits, at=(one, *logits.at[1:])), {one.reference[0][0]: " <b>"}).data
    assert (len(same.x), len(other.x)) == (63, 1) and other.marker.symbol == "x"
    assert other.x[0] == one.floor and other.y[0] == one.margin
    assert "reference &#x27; &lt;b&gt;&#x27;, port #-1" in other.text[0]
    assert line.y[0] == pytest.approx(4 * line.x[0])


def test_a_point_of_the_curve_knows_its_node() -> None:
    assert curve(synthetic.failing(), "fp32").customdata[1] == "semantics fp32 layers.0.resid_post"


def test_a_deep_model_names_every_tenth_layer() -> None:
    report = synthetic.failing()
    shallow, deep = layer_curves(report), layer_curves(replace(report, num_layers=81, nodes=report.nodes[:1]))
    assert list(shallow.layout.xaxis.tickvals) == ["embed", *map(str, range(18)), "final"]
    assert list(deep.layout.xaxis.tickvals) == ["embed", "10", "20", "30", "40", "50", "60", "70", "final"]


@pytest.mark.parametrize(("ratio", "short"), [(2.25, "2.25"), (1054, "1.1k"), (24_000, "24k"), (2e6, "2e6")])
def test_short_ratio(ratio: float, short: str) -> None:
    assert heatmaps.short_ratio(ratio) == short


def test_exact_stage_is_coloured_by_status() -> None:
    trace, found = cells(synthetic.failing(), "exact", "fp32")
    assert colour_at(trace, found["layers.0.mlp.act"][0]) == heatmaps.WARN
    assert colour_at(trace, found["layers.0.mlp.norm"][0]) == heatmaps.PASS_HIGH


def test_tokens_by_layer_with_escaped_text() -> None:
    report = synthetic.hostile()
    figure = token_heatmap(report, stage(report, "semantics", "fp32"))
    (trace,) = figure.data
    assert trace.z.shape == (18, 640) and list(trace.y) == [*map(str, range(18))]
    assert figure.layout.meta["words"][0][0] == "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;"
    node = next(node for node in report.of_stage("semantics") if node.name == "layers.5.resid_post")
    assert trace.customdata[5][7] == pytest.approx(node.local.tokens[7], rel=1e-6)


def test_tokens_without_a_tokenizer_or_of_several_lengths() -> None:
    report = synthetic.failing()
    nodes = [node for node in report.of_stage("semantics") if node.node == "resid_post"]
    short = replace(nodes[1], local=replace(nodes[1].local, tokens=(1.0, 2.0)))
    prompt = replace(report.prompts[0], tokens=())
    report = replace(report, nodes=(nodes[0], short), prompts=(prompt,))
    figure = token_heatmap(report, stage(report, "semantics", "fp32"))
    (trace,) = figure.data
    assert trace.z.shape == (2, 640) and math.isnan(trace.z[1][2])
    assert figure.layout.meta["words"] == [[]] and figure.layout.meta["prompts"] == [0, 0]
