"""Which axes a run could have shown: found by changing them, and the reason where a run is blind."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from porter.comparison.diff import diff
from porter.comparison.observability import observe_axes
from porter.comparison.observed import Axis
from porter.comparison.one_unit import Captured
from porter.weights import reader
from porter.weights.reader import read_finite
from tests.models.tiny import tiny


def axes(family: str, tokens: int, dtype: str = "bfloat16", weights: str = "random:stress") -> dict[str, Axis]:
    """One layer's run: the axes by path; the first of a path that has several values."""
    report = diff(tiny(family, dtype=dtype, weights=weights, tokens=tokens), layers="0")
    found: dict[str, Axis] = {}
    for axis in report.axes:
        found.setdefault(axis.path, axis)
    return found


@pytest.fixture(scope="module")
def short() -> dict[str, Axis]:
    return axes("gemma3", 24)


@pytest.fixture(scope="module")
def long() -> dict[str, Axis]:
    return axes("gemma3", 260)


def test_a_window_longer_than_the_prompt_cannot_be_seen(short, long) -> None:
    assert short["block.attn.window"].seen is None and short["block.attn.window"].node is None
    assert short["block.attn.window"].reason == "24 tokens do not pass the window of 128"
    assert long["block.attn.window"].seen == "semantics" and long["block.attn.window"].reason == ""


@pytest.mark.parametrize(("tokens", "seen"), [(128, None), (129, "semantics")])
def test_a_window_shows_from_the_first_token_that_passes_it(tokens: int, seen: str | None) -> None:
    assert axes("mistral", tokens)["block.attn.window"].seen == seen


def test_positions_are_exact_in_bfloat16_up_to_256(short, long) -> None:
    assert short["block.rope.pos_dtype"].seen is None
    assert short["block.rope.pos_dtype"].reason == "positions up to 23 are exact in bfloat16"
    assert long["block.rope.pos_dtype"].seen == "exact"  # rounding is a matter of bits


@pytest.mark.parametrize(("tokens", "seen"), [(257, None), (258, "exact")])
def test_position_257_is_the_first_that_bfloat16_lacks(tokens: int, seen: str | None) -> None:
    assert axes("llama", tokens)["block.rope.pos_dtype"].seen == seen


def test_a_float32_table_hides_the_dtype_it_is_applied_in() -> None:
    olmo = axes("olmo", 24)
    assert olmo["block.rope.apply_dtype"].reason == "a float32 table is multiplied in float32 either way"
    assert olmo["block.rope.table_dtype"].seen == "exact"


def test_stress_weights_show_the_offset_of_the_norm(short) -> None:
    assert (short["norm.offset"].seen, short["norm.offset"].node) == ("semantics", "layers.0.attn.norm")
    assert (short["norm.offset"].value, short["norm.offset"].tried) == ("1", "0")


def test_what_each_axis_shows_first(short) -> None:
    expected = {
        "embed.scale": ("semantics", "embed.out"), "embed.scale_rounding": ("exact", "embed.out"),
        "norm.eps": ("semantics", "layers.0.attn.norm"), "norm.math": ("exact", "layers.0.attn.norm"),
        "block.mlp.act": ("semantics", "layers.0.mlp.act"), "block.rope.theta": ("semantics", "layers.0.attn.ctx"),
        "block.rope.table_dtype": ("exact", "layers.0.attn.q_rope"),
        "block.attn.scale": ("semantics", "layers.0.attn.ctx"),
        "block.attn.qk_norm.when": ("semantics", "layers.0.attn.ctx"),
    }  # fmt: skip
    assert {path: (short[path].seen, short[path].node) for path in expected} == expected


def test_default_weights_hide_what_stress_weights_show() -> None:
    blind = axes("gemma", 8, dtype="float32", weights="random")
    assert blind["norm.math"].seen is None and blind["norm.math"].reason
    assert axes("gemma", 8)["norm.math"].seen == "exact"


def test_rounding_axes_cannot_be_seen_in_float32() -> None:
    found = axes("llama", 8, dtype="float32")
    assert found["block.rope.table_dtype"].seen is None
    assert found["block.rope.table_dtype"].reason == "float32 rounds alike"


def test_what_was_not_compared_could_not_show() -> None:
    build = tiny("gemma2")
    captured = Captured(torch.tensor([[2, 5, 9]]), {}, embedding=False)
    found = observe_axes(build.blueprint, build.reader(), captured, torch.float32, torch.device("cpu"))
    assert {axis.seen for axis in found} == {None}
    reasons = {axis.path.partition(".")[0]: axis.reason for axis in found}
    assert reasons == {
        "embed": "the embedding was not compared", "norm": "no layer of its kind was compared",
        "block": "no layer of its kind was compared", "head": "the head was not compared",
    }  # fmt: skip


def test_axes_are_tried_on_a_layer_that_was_compared() -> None:
    report = diff(tiny("gemma3", tokens=140, dtype="bfloat16"), layers="3")
    axes = {axis.path: axis for axis in report.axes}
    assert axes["block.attn.window"].node == "layers.3.attn.ctx" and axes["norm.offset"].node == "layers.3.attn.norm"
    assert axes["embed.scale"].reason == "the embedding was not compared"
    blind = [axis for axis in report.axes if axis.reason == "no layer of its kind was compared"]
    assert [(axis.path, axis.value) for axis in blind] == [("block.rope.theta", "1e+06")]  # of the global layers
    only = diff(tiny("gemma3", tokens=140, dtype="bfloat16"), layers="5")
    assert {axis.node.split(".")[1] for axis in only.axes if axis.node} == {"5"}
    hidden = {axis.path: axis.reason for axis in only.axes if axis.path.startswith("block") and not axis.seen}
    assert hidden["block.attn.window"] == "no layer of its kind was compared"
    assert "block.mlp.act" not in hidden  # layers of both kinds share it


@pytest.mark.parametrize(
    ("stages", "act", "math"),
    [("semantics", "semantics", None), ("precision", "exact", "exact"), ("", "semantics", "exact")],
)
def test_a_stage_that_did_not_run_sees_nothing(stages: str, act: str | None, math: str | None) -> None:
    report = diff(tiny("gemma3", dtype="bfloat16", tokens=6), layers="0", stages=[stages] if stages else ())
    axes = {axis.path: axis for axis in report.axes}
    assert (axes["block.mlp.act"].seen, axes["norm.math"].seen) == (act, math)
    if math is None:
        assert axes["norm.math"].reason == "bits in bfloat16 were not compared"


def test_the_longest_prompt_decides(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"ids": [2, *range(5, 4 + length)]}) for length in (3, 130, 6)))
    report = diff(tiny("mistral", dtype="float32"), layers="0", prompts=prompts)
    assert next(axis for axis in report.axes if axis.path == "block.attn.window").seen == "semantics"


def test_a_layers_weights_are_read_once_for_each_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    build, reads = tiny("gemma3"), Counter[tuple[str, torch.dtype]]()

    def count(checkpoint, name: str, dtype: torch.dtype, *given):
        reads[name, dtype] += 1
        return read_finite(checkpoint, name, dtype, *given)

    monkeypatch.setattr(reader, "read_finite", count)
    x_BTD = torch.randn(1, 6, 96, generator=torch.Generator().manual_seed(0))
    captured = Captured(torch.arange(6)[None] + 2, {0: x_BTD, 5: x_BTD, 6: x_BTD})
    found = observe_axes(build.blueprint, build.reader(), captured, torch.bfloat16, torch.device("cpu"))
    assert sum(axis.path.startswith("block") for axis in found) > 8
    assert set(reads.values()) == {1}, reads.most_common(3)
    layers = {name.split(".")[2] for name, _ in reads if ".layers." in name}
    assert layers == {"0", "5"}


def test_a_softcap_of_the_head_is_seen_in_the_logits() -> None:
    report = diff(tiny("gemma2", tokens=6))
    softcap = next(axis for axis in report.axes if axis.path == "head.softcap")
    assert (softcap.seen, softcap.node, softcap.value) == ("semantics", "logits", "3")
