"""porter specs exact: bits against HF's ordinary forward pass, and what differs first."""

import pytest

from porter.comparison.diff import diff
from porter.comparison.exact_table import ExactRun, check_model
from porter.comparison.exactness import check_exactness, plan_exact
from porter.specs.tree import builtin_spec_names
from tests.models.tiny import tiny


@pytest.mark.parametrize("family", builtin_spec_names())
def test_every_family_is_exact(family: str) -> None:
    """320 tokens pass every tiny window and 256, where bfloat16 positions have gaps; both dtypes, layers and logits."""
    row = check_model(ExactRun(family, "tiny", "random:stress", 320))
    assert row.problem == "" and [each.dtype for each in row.results] == ["float32", "bfloat16"]
    assert [(each.dtype, each.first, each.difference) for each in row.results if not each.exact] == []


def test_a_right_spec_is_exact_in_both_dtypes() -> None:
    rows = list(check_exactness(plan_exact("gemma3", "tiny"), tokens=40))
    assert [(row.dtype, row.exact, row.layers, row.num_layers, row.logits, row.difference) for row in rows] == [
        ("float32", True, 6, 6, True, 0.0),
        ("bfloat16", True, 6, 6, True, 0.0),
    ]
    assert {(row.tokens, row.model_type, row.first) for row in rows} == {(40, "gemma3_text", None)}


@pytest.mark.parametrize(
    ("override", "dtypes", "layers", "first"),
    [
        ("norm.math=cast_then_scale", {"bfloat16"}, 0, "layers.0"),
        ("layers[4].attn.scale=0.2", {"float32", "bfloat16"}, 4, "layers.4"),
        ("head.mul=2.0", {"float32", "bfloat16"}, 6, "logits"),
    ],
)
def test_a_wrong_spec_is_named_by_its_first_difference(override: str, dtypes: set, layers: int, first: str) -> None:
    rows = {row.dtype: row for row in check_exactness(tiny("gemma3", override), tokens=24)}
    assert {dtype for dtype, row in rows.items() if not row.exact} == dtypes
    row = rows["bfloat16"]
    assert (row.layers, row.first, row.logits) == (layers, first, False)
    assert row.difference == pytest.approx(1.0) if first == "logits" else 1e-5 < row.difference < 1


@pytest.mark.parametrize("family", ["gemma3", "qwen2", "qwen3"])
def test_one_token_is_exact_too(family: str) -> None:  # a matrix-vector product, whose sums depend on alignment
    report = diff(tiny(family, tokens=1), layers="0,1")
    assert next(stage for stage in report.stages if stage.name == "exact").status == "PASS"
