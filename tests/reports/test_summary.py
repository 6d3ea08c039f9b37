"""What is derived from a report before it is shown."""

import math
from dataclasses import replace

import pytest

from porter.reports import summary
from tests.reports import synthetic


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1.0, "1.00"), (12.34, "12.3"), (896.2, "896"), (123456.0, "1.2e5"), (math.inf, "inf"), (math.nan, "nan")],
)
def test_format_ratio(value: float, shown: str) -> None:
    assert summary.format_ratio(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(6.8e-4, "6.8e-4"), (0.0, "0"), (1.0, "1.0e0"), (math.nan, "nan")])
def test_format_error(value: float, shown: str) -> None:
    assert summary.format_error(value) == shown


def test_peak_puts_nan_first_and_leaves_gauge_nodes_out() -> None:
    report = synthetic.undecided()
    nodes = list(summary.nodes_of(report, "precision", "bf16"))
    assert summary.peak(nodes, "rho").node.name == "layers.9.resid_post"
    report = synthetic.warning()
    assert summary.peak(summary.nodes_of(report, "precision", "bf16"), "rho").node.node == "attn.norm"  # not q_rope


def test_blocks_cover_embedding_layers_and_head() -> None:
    report = synthetic.undecided()
    blocks = summary.blocks(report, report.stages[-1])
    assert [block.label for block in blocks] == ["embed", *map(str, range(18)), "final", "logits"]
    assert [block.label for block in blocks if block.status == "FAIL"] == ["9"]
    assert [block.label for block in blocks if block.status == "INCONCLUSIVE"] == ["4", "5"]
    assert blocks[10].worst == "layers.9.resid_post"


def test_offenders_put_failures_first() -> None:
    found = summary.offenders(synthetic.undecided())
    assert found[0].status == "FAIL" and {node.status for node in found[1:]} == {"INCONCLUSIVE"}


def test_shortlist_gives_each_stage_its_share() -> None:
    found = summary.shortlist(synthetic.warning(), 8)
    assert [node.stage for node in found] == ["exact"] * 4 + ["precision"] * 4


def test_coverage_names_what_was_not_seen_and_why() -> None:
    report = synthetic.passing()
    cap = "final.softcap (no logit passes 30 on this prompt: a cap of 30 moves nothing)"
    line = "nodes compared 237 of 237; 9 of 11 axes could have shown; blind to: "
    scaling = "block.rope.scaling (the prompt ends at 640 of 32768 positions)"
    assert summary.coverage(report) == summary.coverage(report, None) == f"{line}{cap}, {scaling}"
    assert summary.coverage(report, 1) == f"{line}{cap} and 1 more"
    assert summary.coverage(replace(report, axes=())) == "nodes compared 237 of 237; axes not tried"
    assert summary.coverage(replace(report, axes=report.axes[:9])).endswith("9 of 9 axes could have shown")


def test_axes_with_one_reason_share_it() -> None:
    axes = synthetic.passing().axes
    alike = [replace(axes[-1], path=path, reason="float32 rounds alike") for path in ("a", "b", "b")]
    report = replace(synthetic.passing(), axes=(*alike[:1], *axes[-2:], *alike[1:]))
    assert summary.blind_to(report).startswith("a, b (float32 rounds alike), final.softcap (no logit")
    assert summary.blind_to(report, 2).endswith("moves nothing) and 3 more")


def test_limits_fall_back_to_rho() -> None:
    report = synthetic.passing()
    assert summary.limits(report, "fp32", "rho_tok") == (4.0, 10.0)
    assert summary.limits(report, "bf16", "rho_tok") == (2.0, 3.0)
    assert summary.limits(report, "fp8", "rho") == summary.DEFAULT_LIMITS


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("grad:logits", "logits"), ("grad:head.weight", "logits"), ("grad:final.norm", "final"),
        ("grad:final_norm.weight", "final"), ("grad:layers.3.attn.q.weight", "3"), ("grad:layers.3.resid_pre", "3"),
        ("grad:embed.weight", "embed"), ("grad:embed.weight#head", "embed"), ("grad:pos.weight", "embed"),
        ("grad:embed_norm.bias", "embed"), ("layers.3.attn.q", "3"), ("final.norm", "final"),
    ],
)  # fmt: skip
def test_a_gradient_belongs_to_the_block_of_what_it_is_the_gradient_of(name: str, block: str) -> None:
    node = replace(synthetic.failing().nodes[0], name=name)
    assert summary.block_of(node) == block


def test_a_parameter_has_a_worst_row_and_no_worst_token() -> None:
    report = synthetic.passing()
    node = next(node for node in report.nodes if node.local and node.local.token > 9)
    weight = replace(node, name="grad:layers.0.mlp.up.weight", shape=(64, 32))
    assert summary.worst_token(report, weight) == f"row {node.local.token}"
    assert summary.worst_token(report, replace(weight, name="grad:layers.0.mlp.norm.weight", shape=(32,))) == ""
    assert summary.worst_token(report, replace(node, name="grad:layers.0.mlp.up")).startswith(f"{node.local.token} ")


def test_golden_from_a_cache_is_said() -> None:
    report = synthetic.passing()
    assert summary.golden_source(report) == ""
    cached = replace(report, golden={"cache": "sha256:1", "cache_folder": "/g", "cache_read": 25, "cache_made": 1})
    assert summary.golden_source(cached) == "with the reference, 25 units read from /g, 1 run"
    assert "? units read" in summary.golden_source(replace(report, golden={"cache": "sha256:1"}))  # another writer's
