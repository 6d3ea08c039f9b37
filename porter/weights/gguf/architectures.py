"""What a GGUF architecture is called, and holds, in transformers: one row a family in ARCHITECTURES.

llama.cpp's convert_hf_to_gguf.py renames tensors and, for some families, changes values: Llama's q and k rows are
interleaved for its RoPE, Gemma's norms get the +1 their code adds, GPT-2's Conv1D weights are transposed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from porter.weights.gguf.rope import gemma3_rope, llama_rope, longrope, plain_rope
from porter.weights.gguf.values import Values

Change = Literal["keep", "unpermute", "minus_one", "transpose"]


@dataclass(frozen=True)
class Architecture:
    """A row of ARCHITECTURES; `{i}` in a tensor's name is its layer."""

    model_type: str
    hf_class: str
    tensors: Mapping[str, str]
    rename: Mapping[str, tuple[str, ...]]  # key of config.json -> keys of the metadata, of which the first one there
    fixed: Mapping[str, Any]
    derive: Callable[[Values], dict[str, Any]]
    changes: Mapping[str, Change] = field(default_factory=dict)  # ending of the GGUF tensor's name -> change

    def change_of(self, gguf_name: str) -> Change:
        """What must be done to that tensor's values."""
        return next((change for ending, change in self.changes.items() if gguf_name.endswith(ending)), "keep")


_SIZES = {
    "max_position_embeddings": ("context_length",),
    "num_hidden_layers": ("block_count",),
    "hidden_size": ("embedding_length",),
    "intermediate_size": ("feed_forward_length",),
    "num_attention_heads": ("attention.head_count",),
    "num_key_value_heads": ("attention.head_count_kv", "attention.head_count"),
    "rms_norm_eps": ("attention.layer_norm_rms_epsilon",),
}
_GPT2_SIZES = {
    "n_positions": ("context_length",),
    "n_layer": ("block_count",),
    "n_embd": ("embedding_length",),
    "n_inner": ("feed_forward_length",),
    "n_head": ("attention.head_count",),
    "layer_norm_epsilon": ("attention.layer_norm_epsilon",),
}
_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "blk.{i}.attn_q": "model.layers.{i}.self_attn.q_proj",
    "blk.{i}.attn_k": "model.layers.{i}.self_attn.k_proj",
    "blk.{i}.attn_v": "model.layers.{i}.self_attn.v_proj",
    "blk.{i}.attn_output": "model.layers.{i}.self_attn.o_proj",
}
_QK_NORMS = {
    "blk.{i}.attn_q_norm": "model.layers.{i}.self_attn.q_norm",
    "blk.{i}.attn_k_norm": "model.layers.{i}.self_attn.k_norm",
}
_MLP = {
    "blk.{i}.ffn_gate": "model.layers.{i}.mlp.gate_proj",
    "blk.{i}.ffn_up": "model.layers.{i}.mlp.up_proj",
    "blk.{i}.ffn_down": "model.layers.{i}.mlp.down_proj",
}
_TWO_NORMS = {
    "blk.{i}.attn_norm": "model.layers.{i}.input_layernorm",
    "blk.{i}.ffn_norm": "model.layers.{i}.post_attention_layernorm",
}
_FOUR_NORMS = {
    "blk.{i}.attn_norm": "model.layers.{i}.input_layernorm",
    "blk.{i}.post_attention_norm": "model.layers.{i}.post_attention_layernorm",
    "blk.{i}.ffn_norm": "model.layers.{i}.pre_feedforward_layernorm",
    "blk.{i}.post_ffw_norm": "model.layers.{i}.post_feedforward_layernorm",
}
_PHI3 = {
    "blk.{i}.attn_qkv": "model.layers.{i}.self_attn.qkv_proj",
    "blk.{i}.attn_output": "model.layers.{i}.self_attn.o_proj",
    "blk.{i}.ffn_up": "model.layers.{i}.mlp.gate_up_proj",
    "blk.{i}.ffn_down": "model.layers.{i}.mlp.down_proj",
}
_GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{i}.attn_norm": "transformer.h.{i}.ln_1",
    "blk.{i}.attn_qkv": "transformer.h.{i}.attn.c_attn",
    "blk.{i}.attn_output": "transformer.h.{i}.attn.c_proj",
    "blk.{i}.ffn_norm": "transformer.h.{i}.ln_2",
    "blk.{i}.ffn_up": "transformer.h.{i}.mlp.c_fc",
    "blk.{i}.ffn_down": "transformer.h.{i}.mlp.c_proj",
}
_LLAMA = _ENDS | _TWO_NORMS | _ATTENTION | _MLP
_MINUS_ONE: Mapping[str, Change] = {"norm.weight": "minus_one"}
_INTERLEAVED: Mapping[str, Change] = dict.fromkeys(
    (".attn_q.weight", ".attn_k.weight", ".attn_q.bias", ".attn_k.bias"), "unpermute"
)
_CONV1D: Mapping[str, Change] = dict.fromkeys(
    ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight"), "transpose"
)


def _head_dim(values: Values) -> dict[str, Any]:
    head_dim = values.get("attention.key_length", values["embedding_length"] // values["attention.head_count"])
    values.must_equal("attention.value_length", head_dim)
    return {"head_dim": head_dim}


def _llama(values: Values) -> dict[str, Any]:
    config = _head_dim(values)
    values.must_equal("rope.dimension_count", config["head_dim"])
    biases = {"attention_bias": values.has_tensor("attn_q.bias"), "mlp_bias": values.has_tensor("ffn_up.bias")}
    return config | biases | {"rope_parameters": llama_rope(values, config["head_dim"])}


def _qwen2(values: Values) -> dict[str, Any]:  # its config knows no head_dim
    head_dim = values["embedding_length"] // values["attention.head_count"]
    for key in ("rope.dimension_count", "attention.key_length", "attention.value_length"):
        values.must_equal(key, head_dim)
    return {"rope_parameters": plain_rope(values)}


def _qwen3(values: Values) -> dict[str, Any]:
    config = _head_dim(values)
    values.must_equal("rope.dimension_count", config["head_dim"])
    bias = {"attention_bias": values.has_tensor("attn_q.bias")}
    return config | bias | {"rope_parameters": plain_rope(values)}


def _gemma(values: Values) -> dict[str, Any]:
    config = _head_dim(values)
    values.must_equal("rope.dimension_count", config["head_dim"])
    return config | {"rope_parameters": plain_rope(values)}


def _windows(values: Values, every: int) -> dict[str, Any]:
    """Sliding windows, with one full layer in `every`; as llama.cpp, which seldom stores the pattern."""
    every = values.get("attention.sliding_window_pattern", every)
    kinds = ["sliding_attention"] * (every - 1) + ["full_attention"]
    layer_types = [kinds[layer % every] for layer in range(values["block_count"])]
    return {"sliding_window": values["attention.sliding_window"], "layer_types": layer_types}


def _query_scalar(values: Values, wide_layers: int) -> dict[str, Any]:
    """Scores are divided by sqrt of the head's width, but in the 27B models, known by their depth, by D / H's."""
    width = values["embedding_length"] // values["attention.head_count"]
    head_dim = _head_dim(values)["head_dim"]
    return {"query_pre_attn_scalar": width if values["block_count"] == wide_layers else head_dim}


def _gemma2(values: Values) -> dict[str, Any]:
    caps = {
        "attn_logit_softcapping": values.get("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": values.get("final_logit_softcapping", 30.0),
    }
    return _gemma(values) | _windows(values, every=2) | _query_scalar(values, wide_layers=46) | caps


def _gemma3(values: Values) -> dict[str, Any]:
    config = _head_dim(values)
    values.must_equal("rope.dimension_count", config["head_dim"])
    caps = {key: values.get(key, None) for key in ("attn_logit_softcapping", "final_logit_softcapping")}
    rope = {"rope_parameters": gemma3_rope(values)}
    return config | _windows(values, every=6) | _query_scalar(values, wide_layers=62) | caps | rope


def _phi3(values: Values) -> dict[str, Any]:
    for key in ("attention.key_length", "attention.value_length"):
        values.must_equal(key, values["embedding_length"] // values["attention.head_count"])
    window = {"sliding_window": values.get("attention.sliding_window", None) or None}
    return window | longrope(values)


def _gpt2(values: Values) -> dict[str, Any]:
    return {}


_SILU = {"hidden_act": "silu"}
_TANH = {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False}
_FULL = {"sliding_window": None, "use_sliding_window": False}

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", "LlamaForCausalLM", _LLAMA, _SIZES, _SILU, _llama, _INTERLEAVED),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", _LLAMA, _SIZES, _SILU | _FULL, _qwen2),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", _LLAMA | _QK_NORMS, _SIZES, _SILU | _FULL, _qwen3),
    "gemma": Architecture(
        "gemma", "GemmaForCausalLM", _LLAMA, _SIZES,
        {"hidden_act": "gelu_pytorch_tanh", "attention_bias": False}, _gemma, _MINUS_ONE,
    ),
    "gemma2": Architecture(
        "gemma2", "Gemma2ForCausalLM", _ENDS | _FOUR_NORMS | _ATTENTION | _MLP, _SIZES, _TANH, _gemma2, _MINUS_ONE,
    ),
    "gemma3": Architecture(
        "gemma3_text", "Gemma3ForCausalLM", _ENDS | _FOUR_NORMS | _ATTENTION | _QK_NORMS | _MLP, _SIZES,
        _TANH, _gemma3, _MINUS_ONE,
    ),
    "phi3": Architecture("phi3", "Phi3ForCausalLM", _ENDS | _TWO_NORMS | _PHI3, _SIZES, _SILU, _phi3),
    "gpt2": Architecture(
        "gpt2", "GPT2LMHeadModel", _GPT2, _GPT2_SIZES, {"activation_function": "gelu_new"}, _gpt2, _CONV1D,
    ),
}  # fmt: skip
