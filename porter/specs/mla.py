"""Latent attention: what a spec says of it, and the tensors it has (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""

from typing import Any, Literal

from pydantic import Field

from porter.specs.kinds import Strict


class Mla(Strict):
    """Keys and values are made of one narrow latent a token; a part of each key is rotated, and shared by all heads."""

    kind: Literal["mla"] = "mla"
    q_rank: int | None = Field(None, gt=0, description="Width of the queries' latent; null: none, one projection.")
    kv_rank: int = Field(gt=0, description="Width of the latent of keys and values.")
    nope: int = Field(gt=0, description="Width of each query and key that is not rotated.")
    rope: int = Field(gt=0, description="Width of each query and key that is rotated; block.rope.dim says it too.")
    v: int = Field(gt=0, description="Width of each value.")
    bias: bool = Field(False, description="The projections to the latents, and the output's, have biases.")
    eps: float = Field(1e-6, ge=0, description="Of the norms on the latents; HF has 1e-6 whatever the config says.")
    mscale: float = Field(1.0, gt=0, description="Its square is a factor on the scores (yarn's mscale_all_dim).")
    rotation: Literal["real", "complex"] = Field("real", description="The rotation as products of real numbers, or of complex ones in float32, whose sums round otherwise (DeepSeek V2).")  # fmt: skip  # noqa: E501
    deinterleave: bool = Field(False, description="The rotated pairs are laid apart, first halves first (DeepSeek V3).")


def mla_projections(params: Mla, _block: Any, dims: Any) -> dict[str, tuple[int, int, bool]]:
    """The linear maps: name -> (out, in, bias)."""
    width = dims.heads * (params.nope + params.rope)
    if params.q_rank is None:
        maps = {"attn.q": (width, dims.hidden, False)}
    else:
        maps = {"attn.q_a": (params.q_rank, dims.hidden, params.bias), "attn.q_b": (width, params.q_rank, False)}
    maps["attn.kv_a"] = (params.kv_rank + params.rope, dims.hidden, params.bias)
    maps["attn.kv_b"] = (dims.heads * (params.nope + params.v), params.kv_rank, False)
    maps["attn.o"] = (dims.hidden, dims.heads * params.v, params.bias)
    return maps


def mla_norms(params: Mla, norm: Any, _dims: Any) -> dict[str, tuple[Any, tuple[int]]]:
    """The norms on the latents: name -> (the norm, its shape)."""
    own = norm.model_copy(update={"eps": params.eps})
    found = {} if params.q_rank is None else {"attn.q_a_norm": (own, (params.q_rank,))}
    return {**found, "attn.kv_a_norm": (own, (params.kv_rank,))}
