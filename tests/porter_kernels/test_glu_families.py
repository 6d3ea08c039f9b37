"""The references of glu, packed_glu and activation have the bits of the MLP of every family that uses them."""

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from porter_kernels.glu import activation_reference, glu_reference, packed_glu_reference

CONFIG = {  # what the MLPs read of their config, by any of the names that have been given to it
    "hidden_size": 16, "d_model": 16, "n_embd": 16, "intermediate_size": 24, "ffn_hidden_size": 24, "d_ff": 24,
    "mlp_bias": True, "use_bias": True, "bias": True, "mlp_dropout": 0.0, "resid_pdrop": 0.0, "dropout_rate": 0.0,
    "residual_dropout": 0.0, "hidden_dropout": 0.0, "swiglu_limit": 0.4, "swiglu_limits_shared": [0.2],
}  # fmt: skip
ACT_KEYS = ("hidden_act", "hidden_activation", "activation_function", "activation", "dense_act_fn")
THEIR_NAMES = {"gelu_tanh": "gelu_pytorch_tanh"}

# family: its class, the projections whose outputs are gated (one: packed, or not gated at all), the output projection
GATED = {
    "llama": ("LlamaMLP", "silu", ("gate_proj", "up_proj", "down_proj")),
    "mistral": ("MistralMLP", "silu", ("gate_proj", "up_proj", "down_proj")),
    "qwen3": ("Qwen3MLP", "silu", ("gate_proj", "up_proj", "down_proj")),
    "olmo2": ("Olmo2MLP", "silu", ("gate_proj", "up_proj", "down_proj")),
    "cohere": ("CohereMLP", "silu", ("gate_proj", "up_proj", "down_proj")),
    "granite": ("GraniteMLP", "silu", ("gate_proj", "up_proj", "down_proj")),
    "gemma": ("GemmaMLP", "gelu_tanh", ("gate_proj", "up_proj", "down_proj")),
    "gemma2": ("Gemma2MLP", "gelu_tanh", ("gate_proj", "up_proj", "down_proj")),
    "gemma3": ("Gemma3MLP", "gelu_tanh", ("gate_proj", "up_proj", "down_proj")),
    "t5": ("T5DenseGatedActDense", "gelu_new", ("wi_0", "wi_1", "wo")),
    "deepseek_v4": ("DeepseekV4MLP", "silu", ("gate_proj", "up_proj", "down_proj")),
    "step3p7": ("Step3p7MLP", "silu", ("gate_proj", "up_proj", "down_proj")),
}
LIMITED: dict[str, dict[str, Any]] = {"deepseek_v4": {"limit": 0.4}, "step3p7": {"limit": 0.2, "clamp": "act"}}
PACKED = {
    "phi3": ("Phi3MLP", "silu", "halves", ("gate_up_proj", "down_proj")),
    "glm": ("GlmMLP", "silu", "halves", ("gate_up_proj", "down_proj")),
    "modernbert": ("ModernBertMLP", "gelu", "halves", ("Wi", "Wo")),
    "clvp": ("ClvpGatedLinearUnit", "gelu", "halves_up_first", ("proj", None)),
}
UNGATED = {
    "gpt2": ("GPT2MLP", "gelu_new", ("c_fc", "c_proj")),
    "gptj": ("GPTJMLP", "gelu_new", ("fc_in", "fc_out")),
    "phi": ("PhiMLP", "gelu_new", ("fc1", "fc2")),
    "gpt_neox": ("GPTNeoXMLP", "gelu", ("dense_h_to_4h", "dense_4h_to_h")),
    "falcon": ("FalconMLP", "gelu", ("dense_h_to_4h", "dense_4h_to_h")),
    "starcoder2": ("Starcoder2MLP", "gelu_tanh", ("c_fc", "c_proj")),
    "nemotron": ("NemotronMLP", "relu2", ("up_proj", "down_proj")),
    "persimmon": ("PersimmonMLP", "relu2", ("dense_h_to_4h", "dense_4h_to_h")),
    "clip": ("CLIPMLP", "quick_gelu", ("fc1", "fc2")),
}
EXPERTS: dict[str, tuple[str, dict[str, Any]]] = {  # their _apply_gate reads packed gates and ups
    "gpt_oss": ("GptOssExperts", {"layout": "interleaved", "alpha": 1.702, "limit": 0.7, "up_offset": 1.0}),
    "openai_privacy_filter": ("OpenAIPrivacyFilterExperts", {"alpha": 1.702, "limit": 0.7, "up_offset": 1.0}),
    "minimax_m3_vl": ("MiniMaxM3VLExperts", {"alpha": 1.702, "limit": 0.7, "up_offset": 1.0}),
    "deepseek_v4": ("DeepseekV4Experts", {"limit": 0.7}),
    "hy_v4": ("HYV4Experts", {"limit": 0.7}),
    "glm5_next": ("Glm5NextTextExperts", {"limit": 0.7}),
    "step3p7": ("Step3p7Experts", {"limit": 0.2, "clamp": "act"}),
}


def find(family: str, class_name: str) -> Any:
    return getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), class_name)


def build(family: str, class_name: str, act: str, out: str | None, dtype: torch.dtype) -> nn.Module:
    """Their MLP, random and without its output projection."""
    config = SimpleNamespace(**CONFIG, **dict.fromkeys(ACT_KEYS, THEIR_NAMES.get(act, act)))
    first = {"gpt2": (24,), "gptj": (24,)}.get(family, ())
    last = {"step3p7": (0,)}.get(family, ())
    torch.manual_seed(0)
    mlp: nn.Module = find(family, class_name)(*first, config, *last).to(dtype).eval()
    if out:
        setattr(mlp, out, nn.Identity())
    for weight in mlp.parameters():
        nn.init.normal_(weight, std=0.4)
    return mlp


def draw(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@DTYPES
@pytest.mark.parametrize("family", GATED)
def test_gated(family: str, dtype: torch.dtype) -> None:
    class_name, act, (gate, up, out) = GATED[family]
    mlp, x = build(family, class_name, act, out, dtype), draw(dtype, 2, 9, 16)
    if family == "t5":
        mlp.wo = nn.Linear(24, 24, bias=False).to(dtype)  # its dtype is read
        nn.init.eye_(mlp.wo.weight)
    y = glu_reference(getattr(mlp, gate)(x), getattr(mlp, up)(x), act=act, **LIMITED.get(family, {}))
    assert torch.equal(mlp(x), y)


@DTYPES
@pytest.mark.parametrize("family", PACKED)
def test_packed(family: str, dtype: torch.dtype) -> None:
    class_name, act, layout, (both, out) = PACKED[family]
    mlp, x = build(family, class_name, act, out, dtype), draw(dtype, 2, 9, 16)
    assert torch.equal(mlp(x), packed_glu_reference(getattr(mlp, both)(x), act=act, layout=layout))


@DTYPES
@pytest.mark.parametrize("family", UNGATED)
def test_ungated(family: str, dtype: torch.dtype) -> None:
    class_name, act, (up, out) = UNGATED[family]
    mlp, x = build(family, class_name, act, out, dtype), draw(dtype, 2, 9, 16)
    assert torch.equal(mlp(x), activation_reference(getattr(mlp, up)(x), act=act))


@DTYPES
@pytest.mark.parametrize("family", EXPERTS)
def test_experts(family: str, dtype: torch.dtype) -> None:
    class_name, options = EXPERTS[family]
    limit, alpha = options["limit"], options.get("alpha")
    experts = SimpleNamespace(
        limit=limit, swiglu_limit=limit, alpha=alpha, swiglu_alpha=alpha, act_fn=nn.functional.silu
    )
    x = draw(dtype, 9, 48)
    x[0, :6] = torch.tensor([limit, -limit, limit + 0.1, -limit - 0.1, -limit - 0.1, limit + 0.1])
    theirs = find(family, class_name)._apply_gate(experts, x)
    assert torch.equal(theirs, packed_glu_reference(x, act="silu", **options))
