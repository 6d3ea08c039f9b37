"""Golden's mode: code that hard-codes float32 runs in float64."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from porter.references.float64 import Float64
from tests.models.tiny import random_ids, tiny


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.float(),
        lambda x: x.to(torch.float32),
        lambda x: x.to(dtype=torch.float32),
        lambda x: torch.softmax(x, -1, dtype=torch.float32),
        lambda x: torch.arange(3, dtype=torch.float32),
        lambda x: torch.tensor([1.0], dtype=torch.float32) + x,
        lambda x: x.to("cpu", torch.float32),
        lambda x: torch.full((), 0.1),
    ],
    ids=["float()", "to", "to dtype=", "softmax", "arange", "tensor", "to device", "full of a float"],
)
def test_float32_means_float64(call) -> None:
    x = torch.tensor([0.1, 0.2], dtype=torch.float64)[:1]
    with Float64():
        assert call(x).dtype == torch.float64
    assert call(x).dtype in {torch.float32, torch.float64}


def test_no_digit_is_lost_on_the_way() -> None:
    x = torch.tensor([1 / 3], dtype=torch.float64)
    with Float64():
        assert torch.equal(x.float(), x) and torch.equal(x.to(torch.float32), x)
    assert not torch.equal(x.float().double(), x)


def test_other_dtypes_stay() -> None:
    x = torch.tensor([1.5, 2.5])
    with Float64():
        assert x.to(torch.bfloat16).dtype == torch.bfloat16 and x.to(torch.int64).dtype == torch.int64


@pytest.mark.parametrize("family", ["gemma3", "llama", "gpt2"])
def test_hf_eager_and_sdpa_agree_to_1e_12(family: str) -> None:
    build = tiny(family)
    ids_BT = random_ids(build, 24)
    logits = {}
    for attention in ("eager", "sdpa"):
        model = AutoModelForCausalLM.from_pretrained(
            build.checkpoint(), dtype=torch.float64, attn_implementation=attention
        )
        with torch.no_grad():
            logits[attention, "bare"] = model(ids_BT, use_cache=False).logits
            with Float64():
                logits[attention, "mode"] = model(ids_BT, use_cache=False).logits

    def apart(mode: str) -> float:
        eager, sdpa = logits["eager", mode], logits["sdpa", mode]
        return float((eager - sdpa).norm() / eager.norm())

    assert logits["eager", "mode"].dtype == torch.float64
    assert apart("mode") < 1e-12
    if family != "gpt2":  # whose softmax has no dtype written into it
        assert apart("bare") > 1e-9  # without the mode float32 islands remain
