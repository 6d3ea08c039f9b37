"""Branches of a family's spec that its tiny size does not take: other configs, each bit-equal to HF in both dtypes."""

from dataclasses import replace
from typing import Any

import pytest

from porter.comparison.exactness import check_exactness, plan_exact

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("falcon", {"new_decoder_architecture": False}),  # the 7b
    ("falcon", {"num_ln_in_parallel_attn": 1}),  # the 11b
    ("falcon", {"new_decoder_architecture": False, "parallel_attn": False, "multi_query": False, "num_kv_heads": None}),
    ("gpt_bigcode", {"multi_query": False}),  # rows of each head together
    ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 48}),  # the 350m
    ("opt", {"enable_bias": False, "layer_norm_elementwise_affine": False}),
    ("phi", {"qk_layernorm": False}),
    ("mpt", {"attn_config": {"clip_qkv": None, "softmax_scale": 0.3}}),
    ("stablelm", {"use_parallel_residual": True}),  # the 12b
    ("stablelm", {"qk_layernorm": False, "use_qkv_bias": False}),
]


@pytest.mark.parametrize(("family", "changes"), VARIANTS, ids=[f"{name}-{'-'.join(each)}" for name, each in VARIANTS])
def test_a_variant_is_exact(family: str, changes: dict[str, Any]) -> None:
    build = plan_exact(family, "tiny")
    varied = replace(build, config={**build.config, **changes})
    assert varied.blueprint != build.blueprint
    rows = list(check_exactness(varied))
    assert [row.dtype for row in rows] == ["float32", "bfloat16"]
    assert [(row.dtype, row.first, row.difference) for row in rows if not row.exact] == []
