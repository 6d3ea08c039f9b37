"""What a spec may say of rotary position embedding."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WrapValidator

from porter.specs.kinds import Rounding, Strict
from porter.specs.plugins import or_plugin


class RopeScaling(Strict):
    """Frequency scaling of RoPE, as HF's rope_parameters name it."""

    rope_type: Annotated[
        Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "ntk_alpha"],
        WrapValidator(or_plugin("rope_scaling")),
        PlainSerializer(str),
    ] = "default"
    factor: float | None = None
    alpha: float | None = None
    original_max_position_embeddings: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool | None = None
    short_factor: tuple[float, ...] | None = Field(None, strict=False)
    long_factor: tuple[float, ...] | None = Field(None, strict=False)


# What HF keeps in the same map: other axes, and what no model reads there.
_NO_SCALING = {"rope_theta", "partial_rotary_factor", "type", "llama_4_scaling_beta", "max_position_embeddings"}


def _scaling(value: Any) -> Any:
    """HF's map without the keys that are axes of their own; the default kind is no scaling."""
    if not isinstance(value, dict):
        return value
    kept = {k: v for k, v in value.items() if k not in _NO_SCALING and v is not None}
    kind = kept.setdefault("rope_type", value.get("type", "default"))
    if kind == "su":  # Phi-3's first name for longrope
        kept["rope_type"] = "longrope"
    if kind == "dynamic" and kept.get("alpha"):  # Hunyuan's, which does not grow with the sequence
        kept["rope_type"] = "ntk_alpha"
    return None if kind == "default" else kept


class Rope(Strict):
    """Rotary position embedding."""

    style: Literal["half", "interleaved"] = Field("half", description="Pairs (i, i + R/2) (Llama), or (2i, 2i + 1) (GLM).")  # fmt: skip  # noqa: E501
    theta: float = Field(gt=0, description="Base of the frequencies.")
    partial: float = Field(1.0, gt=0, le=1, description="Share of each head's width that is rotated.")
    dim: int | None = Field(None, gt=0, description="Rotated width of a head; null: partial * head_dim.")
    negate: bool = Field(False, description="Rotates by minus the angle (nanochat).")
    scaling: Annotated[RopeScaling | None, BeforeValidator(_scaling)] = Field(None, description="Frequency scaling; HF's rope_parameters or rope_scaling.")  # fmt: skip  # noqa: E501
    original_max_pos: int | None = Field(None, gt=0, description="Context before scaling, where the config keeps it beside rope_scaling (Phi-3).")  # fmt: skip  # noqa: E501
    inv_freq_dtype: Rounding = Field("fp32", description="Dtype the inverse frequencies are rounded to.")
    pos_dtype: Rounding = Field("fp32", description="Dtype the positions are rounded to; act breaks past 256 in bf16.")
    table_dtype: Rounding = Field("act", description="Dtype of the cos and sin tables.")
    apply_dtype: Rounding = Field("act", description="Dtype the rotation is computed in (Cohere, OLMo 2: fp32).")

    def width(self, head_dim: int) -> int:
        """Features of a head that are rotated."""
        return self.dim or int(head_dim * self.partial)
