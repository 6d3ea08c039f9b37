"""Which axes a run could have shown: found by changing them, and the reason where a run is blind."""

import pytest
import torch

from porter.comparison.diff import diff
from porter.comparison.observability import Captured, observe_axes
from porter.comparison.report import Axis
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


def test_axes_whose_layer_was_not_run_are_not_listed() -> None:
    build = tiny("gemma2")
    captured = Captured(torch.tensor([[2, 5, 9]]), {})
    found = observe_axes(build.blueprint, build.reader(), captured, torch.float32, torch.device("cpu"))
    assert {axis.path for axis in found} == {"embed.scale", "embed.scale_rounding"}


def test_a_softcap_of_the_head_is_seen_in_the_logits() -> None:
    report = diff(tiny("gemma2", tokens=6))
    softcap = next(axis for axis in report.axes if axis.path == "head.softcap")
    assert (softcap.seen, softcap.node, softcap.value) == ("semantics", "logits", "3")
