"""config.json as hubs have it, of families with experts: old keys, absent ones and nulls mean what HF makes of them."""

from copy import deepcopy
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from porter.specs.family import find_family
from porter.specs.resolve import resolve

SHAPE = {"vocab_size": 512, "hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 4096,
         "intermediate_size": 64}  # fmt: skip
YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral: theta at the top, a window that is null, head_dim absent":
        ("mixtral", {"rope_theta": 1e6, "sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2,
                     "rms_norm_eps": 1e-5, "router_aux_loss_coef": 0.02, "output_router_logits": False}),
    "mixtral: no theta, which is another than the base's":
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe: no qkv_bias, no layer_types, windows on every other of the first layers":
        ("qwen2_moe", {"rope_theta": 1e6, "use_sliding_window": True, "sliding_window": 128, "max_window_layers": 3,
                       "moe_intermediate_size": 48, "shared_expert_intermediate_size": 80, "num_experts": 8,
                       "num_experts_per_tok": 2, "decoder_sparse_step": 2, "rms_norm_eps": 1e-6}),
    "qwen3_moe: experts under the hub's name, mlp_only_layers, rope_scaling null":
        ("qwen3_moe", {"head_dim": 24, "rope_theta": 1e7, "rope_scaling": None, "mlp_only_layers": [2],
                       "moe_intermediate_size": 48, "num_experts": 8, "num_experts_per_tok": 2,
                       "norm_topk_prob": True, "rms_norm_eps": 1e-6, "use_sliding_window": False,
                       "sliding_window": None}),
    "glm4_moe: partial_rotary_factor at the top":
        ("glm4_moe", {"head_dim": 24, "rope_theta": 1e6, "partial_rotary_factor": 0.25, "rope_scaling": None,
                      "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "use_qk_norm": True,
                      "attention_bias": True, "num_nextn_predict_layers": 1}),
    "gpt_oss: yarn under rope_scaling, theta beside it":
        ("gpt_oss", {"head_dim": 24, "rope_theta": 150000, "num_local_experts": 8, "num_experts_per_tok": 2,
                     "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                      "truncate": False, "original_max_position_embeddings": 4096}}),
    "gpt_oss: no scaling at all, which is yarn":
        ("gpt_oss", {"head_dim": 24, "num_local_experts": 8, "num_experts_per_tok": 2}),
    "granitemoe: multipliers absent, linear scaling by its old name":
        ("granitemoe", {"num_local_experts": 8, "num_experts_per_tok": 2, "rope_theta": 10000.0,
                        "rope_scaling": {"type": "linear", "factor": 2.0}, "rms_norm_eps": 1e-6}),
    "olmoe: clip_qkv null, yarn by its old name":
        ("olmoe", {"clip_qkv": None, "rope_scaling": YARN, "rope_theta": 10000.0, "num_experts": 8,
                   "num_experts_per_tok": 2, "norm_topk_prob": False}),
}  # fmt: skip


@pytest.mark.parametrize(("name", "config"), CASES.values(), ids=CASES)
def test_a_hubs_config_means_what_hf_makes_of_it(name: str, config: dict[str, Any]) -> None:
    family, raw = find_family(name), {**SHAPE, **config}
    hydrated = CONFIG_MAPPING[family.tree["model_type"]](**deepcopy(raw)).to_dict()
    found, expected = (resolve(family, values).blueprint for values in (raw, hydrated))
    of_hub = {"tokenizer"}  # HF's class defaults of special tokens are no model's
    assert found.model_dump(exclude=of_hub) == expected.model_dump(exclude=of_hub)
