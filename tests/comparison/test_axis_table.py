"""porter specs axes: wrong values of a family's own axes are caught, and what stays hidden has its reason."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from porter.cli.axes_views import unexplained
from porter.cli.main import cli
from porter.comparison.axis_table import mutate_family
from porter.comparison.observability import NO_BIT
from porter.specs.family import find_family


def test_the_own_axes_of_gemma2_are_caught_each_where_it_acts() -> None:
    row = mutate_family(find_family("gemma2"))
    seen = {axis.path: axis.seen for axis in row.axes if axis.path in row.own}
    assert seen["embed.scale_rounding" if "embed.scale_rounding" in seen else "embed.scale"] is not None
    assert seen["norm.offset"] == "semantics" and seen["norm.math"] == "exact"
    assert seen["block.attn.softcap"] == seen["block.attn.scale"] == seen["head.softcap"] == "semantics"
    assert row.missed == () and unexplained([row]) == []
    assert "block.rope.style" in {axis.path for axis in row.axes} - row.own  # the base's


def test_the_command_prints_axes_by_families_and_json(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["specs", "axes", "gpt2", "llama", "--json", str(tmp_path / "axes.json")])
    assert result.exit_code == 0, result.output
    assert "norm.eps" not in result.output.splitlines()[0]
    assert result.output.splitlines()[-1].startswith("2 families: ")
    rows = json.loads((tmp_path / "axes.json").read_text(encoding="utf-8"))["families"]
    assert [row["family"] for row in rows] == ["gpt2", "llama"]
    hidden = [axis for row in rows for axis in row["axes"] if axis["seen"] is None and axis["path"] in row["own"]]
    assert all(axis["reason"] and axis["reason"] != NO_BIT for axis in hidden)


@pytest.mark.parametrize(("family", "axis", "reason"), [
    ("granitemoe", "block.moe.router.score_dtype", "softmax computes in float32 either way, and its weights "
     "are rounded once"),
    ("dots1", "block.moe.router.score_dtype", "the router's logits are float32 already"),
    ("dbrx", "block.moe.router.weights_dtype", "the weights are in the activations' dtype already"),
    ("qwen3_moe", "block.moe.router.order", "weights that are divided by their sum are the same in either order"),
    ("solar_open", "block.moe.router.groups", "the best 1 of 1 groups are all of them"),
    ("deepseek_v2", "block.rope.style", "a rotation by complex numbers has pairs and a dtype of its own"),
])  # fmt: skip
def test_what_experts_and_latents_hide_has_its_reason(family: str, axis: str, reason: str) -> None:
    row = mutate_family(find_family(family))
    found = {each.path: each for each in row.missed}
    assert found[axis].reason == reason
    assert unexplained([row]) == []
