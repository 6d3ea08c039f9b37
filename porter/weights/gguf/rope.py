"""`rope_parameters`, as transformers 5 writes them, from what GGUF keeps of them."""

import math
from typing import Any

import numpy as np

from porter.errors import ArtifactError
from porter.weights.gguf.values import Values, shortest


def plain_rope(values: Values) -> dict[str, Any]:
    """One theta, and the scaling that the metadata names."""
    theta = {"rope_theta": values.get("rope.freq_base", 10000.0)}
    kind = values.get("rope.scaling.type", "none")
    if kind == "none":
        return {"rope_type": "default"} | theta
    factor = {"rope_type": kind, "factor": values.get("rope.scaling.factor", 1.0)}
    if kind == "linear":
        return factor | theta
    if kind == "yarn":
        original = values["rope.scaling.original_context_length"]
        return factor | {"original_max_position_embeddings": original} | theta
    raise ArtifactError(f"rope.scaling.type is {kind}", "none, linear or yarn", "use the model's safetensors")


def gemma3_rope(values: Values) -> dict[str, Any]:
    """The metadata's RoPE is that of the full layers; sliding layers have 10,000 unscaled, and seldom say so."""
    local = values.get("rope.freq_base_swa", 10000.0)
    return {
        "full_attention": plain_rope(values),
        "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }


def llama_rope(values: Values, head_dim: int) -> dict[str, Any]:
    """Llama 3.1's scaling is no metadata but a tensor of the resulting factors, from which it is found again."""
    rope = plain_rope(values)
    tensor = values.take_tensor("rope_freqs.weight")
    if tensor is None:
        return rope
    factors = tensor.double().numpy()
    factor = shortest(float(factors.max()))
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    if not np.allclose(factors, _llama3_factors(rope["rope_theta"], head_dim, factor), rtol=1e-5):
        raise ArtifactError(
            "rope_freqs.weight does not follow from low_freq_factor 1, high_freq_factor 4 over 8192 positions",
            "the scaling of Llama 3.1 to 3.3",
            "use the model's safetensors, whose config.json says what the scaling is",
        )
    return rope | scaling


def _llama3_factors(theta: float, head_dim: int, factor: float) -> Any:
    wavelength = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((8192 / wavelength - 1) / (4 - 1), 0, 1)
    return 1 / ((1 - smooth) / factor + smooth)


def longrope(values: Values) -> dict[str, Any]:
    """Phi-3: partial rotation, and two tensors of factors with the long contexts."""
    head_dim = values["embedding_length"] // values["attention.head_count"]
    partial = {"partial_rotary_factor": values.get("rope.dimension_count", head_dim) / head_dim}
    long, short = values.take_tensor("rope_factors_long.weight"), values.take_tensor("rope_factors_short.weight")
    original = values.get("rope.scaling.original_context_length", values["context_length"])
    attention_factor = values.get("rope.scaling.attn_factor", 1.0)
    if long is None or short is None:
        return {"rope_parameters": plain_rope(values) | partial}
    rope = {
        "rope_type": "longrope",
        "rope_theta": values.get("rope.freq_base", 10000.0),
        "long_factor": [shortest(factor) for factor in long.tolist()],
        "short_factor": [shortest(factor) for factor in short.tolist()],
        "original_max_position_embeddings": original,
    }
    implied = math.sqrt(1 + math.log(max(1.0, values["context_length"] / original)) / math.log(original))
    if not math.isclose(attention_factor, implied, rel_tol=1e-6):  # transformers derives the usual one in float64
        rope["attention_factor"] = attention_factor
    return {"original_max_position_embeddings": original, "rope_parameters": rope | partial}
