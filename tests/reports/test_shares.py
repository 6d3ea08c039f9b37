"""The attribution in words and in bars: all of it, whatever its sign."""

import pytest

from porter.comparison.observed import Share
from porter.reports.attribution_panel import attribution_bars
from porter.reports.shares import by_node, percent, told
from tests.reports import synthetic


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.421, "42 %"), (1.0, "100 %"), (0.0312, "3.1 %"), (-0.05, "−5.0 %"), (-1e-6, "0.0 %"), (0.0, "0.0 %")],
)
def test_percent(share: float, said: str) -> None:
    assert percent(share) == said.replace(" ", "\u00a0")  # no line breaks there


def test_the_line_names_the_largest_and_sums_up_the_others() -> None:
    line = told(synthetic.failing()).replace("\u00a0", " ")
    places = "head 26 %, layers.16 8.5 %, layers.15 8.0 %, layers.14 7.5 %, 15 others 50 %"
    assert line == f"fp32: {places}; mlp.act 74 %, logits 26 %"


def test_bars_hold_every_share() -> None:
    figure = attribution_bars(synthetic.failing())
    assert sum(sum(trace.y) for trace in figure.data) == pytest.approx(100)
    assert {trace.name for trace in figure.data} == {"mlp.act", "logits"}
    at = {place: y for trace in figure.data for place, y in zip(trace.x, trace.y, strict=True)}
    assert at["17"] == pytest.approx(-2) and at["0"] == pytest.approx(0.5)
    assert figure.data[0].customdata[0] == "semantics fp32 layers.0.mlp.act"


def test_nodes_beyond_the_colours_are_one() -> None:
    nodes = [Share(f"layers.0.n{i}", "node", 0.1, "float32") for i in range(10)]
    assert by_node(nodes) == pytest.approx({f"n{i}": 0.1 for i in range(10)})
    report = synthetic.replace(synthetic.failing(), attribution=(Share("layers.0", "layer", 1.0, "float32"), *nodes))
    figure = attribution_bars(report)
    assert figure.data[-1].name == "other nodes" and len(figure.data[-1].y) == 4
    assert sum(sum(trace.y) for trace in figure.data) == pytest.approx(100)
