"""What a spec may say: every axis, its allowed values, its meaning. All models are strict and frozen.

A family file gives these fields as values or as expressions (`=cfg.rms_norm_eps`); after resolving, only values are
left. The descriptions become the JSON schema that editors show. The base of all families is model_specs/_base.yaml.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WrapValidator, field_validator, model_validator

from porter.errors import closest
from porter.specs.kinds import MlpActivation, Rounding, Strict, read_activation
from porter.specs.moe import Moe
from porter.specs.plugins import or_plugin, read_mixer
from porter.specs.rope import Rope


class Embed(Strict):
    """Token embedding."""

    scale: float | None = Field(None, description="Factor on the embedding; Gemma: sqrt(hidden). null: none.")
    scale_rounding: Literal["act", "none"] = Field("act", description="act: the factor is rounded to the activations' dtype first (Gemma); none: it stays a Python float (Granite).")  # fmt: skip  # noqa: E501
    positions: Literal["none", "learned", "sinusoidal", "sinusoidal_closed"] = Field("none", description="What is added by position: a learned table (GPT-2), or sines and cosines of frequencies from 1 down to 1/10000, which itself is left out (CTRL) or is the last (closed: XGLM).")  # fmt: skip  # noqa: E501
    pos_offset: int = Field(0, ge=0, description="Added to positions: rows skipped in the table (OPT: 2).")
    norm: bool = Field(False, description="A norm right after the embedding (BLOOM).")
    width: int | None = Field(None, gt=0, description="Columns of the token table; where they are not the stream's, a projection leads in and one out (OPT-350m). null: the stream's.")  # fmt: skip  # noqa: E501


class Norm(Strict):
    """A normalisation over the last axis."""

    kind: Literal["rms", "layernorm"] = Field("rms", description="RMSNorm, or LayerNorm (subtracts the mean).")
    eps: float = Field(1e-6, ge=0, description="Added to the mean square or variance, in units of x squared.")
    offset: Literal[0, 1] = Field(0, description="Added to the weight; Gemma, Nemotron: 1.")
    affine: bool = Field(True, description="Has a weight (OLMo, nanochat: false).")
    bias: bool = Field(False, description="Has a bias.")
    math: Literal["cast_then_scale", "scale_then_cast", "fused", "fused_fp32"] = Field("cast_then_scale", description="Where it rounds: before the product with the weight (Llama), after it (Gemma, OLMo 2, Cohere), once inside torch's layer_norm (fused: GPT-2), or after torch's layer_norm of float32 (fused_fp32: OLMo 1).")  # fmt: skip  # noqa: E501

    @model_validator(mode="after")
    def _known_combination(self) -> "Norm":
        if self.kind == "rms" and (self.math.startswith("fused") or self.bias):
            raise ValueError("kind rms has neither math fused nor a bias; use kind: layernorm")
        if self.kind == "layernorm" and self.math == "cast_then_scale":
            raise ValueError("kind layernorm knows math fused and scale_then_cast, not cast_then_scale")
        if self.bias and not self.affine:
            raise ValueError("a bias needs affine: true")
        return self


class QKNorm(Norm):
    """A norm on queries and keys; fields that are not given are those of `norm`."""

    over: Literal["head", "full"] = Field("head", description="Each head alone (Qwen3), or all together (OLMo 2).")
    when: Literal["before_rope", "after_rope"] = Field("before_rope", description="Before or after the rotation.")
    weight_per_head: bool = Field(False, description="Each head has its own weight, [heads, head_dim] (Cohere).")

    @model_validator(mode="after")
    def _heads_have_weights(self) -> "QKNorm":
        if self.weight_per_head and (self.over != "head" or self.kind != "layernorm" or not self.affine):
            raise ValueError("weight_per_head needs over: head, kind: layernorm and affine: true")
        return self


class Temperature(Strict):
    """Queries that grow with their position p, in steps: times 1 + beta * log(1 + floor(p / base)), after RoPE."""

    beta: float = Field(ge=0, description="What a step of 1 in the logarithm adds.")
    base: int = Field(gt=0, description="Positions without growth, and the width of a step.")


class Attention(Strict):
    """Self-attention and the norms around it."""

    pre_norm: bool = Field(True, description="A norm before the branch.")
    inner_norm: bool = Field(False, description="A norm on the context, before the output projection (BitNet).")
    post_norm: bool = Field(False, description="A norm on the branch's output, before it is added (Gemma 2, OLMo 2).")
    after_norm: bool = Field(False, description="A norm on the stream, after the branch is added (GPT, OPT-350m).")
    bias_qkv: bool = Field(False, description="q, k and v have biases.")
    bias_o: bool = Field(False, description="The output projection has a bias.")
    clip_qkv: float | None = Field(None, gt=0, description="q, k, v are clipped to [-c, c], after norms (OLMo).")
    scale: float = Field(description="Factor on the scores; usually head_dim ** -0.5.")
    scale_on: Literal["scores", "query", "product"] = Field("scores", description="scores: after q·k; query: before it (OPT); product: within q·k, rounded once, ALiBi added there too (BLOOM).")  # fmt: skip  # noqa: E501
    scores_dtype: Rounding = Field("act", description="Dtype of the product q·k (GPT-J, GPT-Neo: fp32).")
    softcap: float | None = Field(None, gt=0, description="scores become c * tanh(scores / c) (Gemma 2: 50).")
    window: int | None = Field(None, gt=0, description="Keys a query sees, its own included; null: all before it.")
    temperature: Temperature | None = Field(None, description="Growth of queries with position (Ministral 3); null: none.")  # fmt: skip  # noqa: E501
    qk_norm: QKNorm | None = Field(None, description="A norm on q and k; null: none.")
    sinks: Literal["column", "gate"] | None = Field(None, description="A learned score for each head that no key has: a column of the softmax, dropped after it (gpt-oss), or its share as a gate on the context (Granite SWA). null: none.")  # fmt: skip  # noqa: E501


class Alibi(Strict):
    """A linear bias on the scores by position, in place of other positions (Press et al. 2022)."""

    kind: Literal["bloom", "mpt"] = Field(description="bloom: slopes are powers of a base, positions count from the row's start, rounded to the activations; mpt: slopes from exponents, positions count from the last key, float32.")  # fmt: skip  # noqa: E501


class Mlp(Strict):
    """Feed-forward branch and the norms around it."""

    pre_norm: Literal[True, False, "shared"] = Field(True, description="A norm before the branch; shared: attention's.")
    inner_norm: bool = Field(False, description="A norm on the activation, before the down projection (BitNet).")
    post_norm: bool = Field(False, description="A norm on the branch's output, before it is added.")
    after_norm: bool = Field(False, description="A norm on the stream, after the branch is added.")
    gated: bool = Field(True, description="down(act(gate(x)) * up(x)), or down(act(up(x))).")
    act: Annotated[MlpActivation, BeforeValidator(read_activation), WrapValidator(or_plugin("activation")), PlainSerializer(str)] = Field(description="Activation, or the key of a plugin; HF's names are read too. xielu has tensors of its own (Apertus).")  # fmt: skip  # noqa: E501
    bias: bool = Field(False, description="The projections have biases.")


class Block(Strict):
    """One decoder layer."""

    topology: Literal["sequential", "parallel"] = Field("sequential", description="parallel: both branches read the layer's input.")  # fmt: skip  # noqa: E501
    add_order: Literal["residual_first", "branches_first"] = Field("residual_first", description="parallel only: (x + attn) + mlp, or (attn + mlp) + x; they differ in bf16.")  # fmt: skip  # noqa: E501
    residual_scale: float = Field(1.0, description="Factor on each branch before it is added (Granite).")
    linear_bias: Literal["fused", "separate"] = Field("fused", description="fused: a projection is rounded once, its bias added; separate: before its bias is added, too (Falcon).")  # fmt: skip  # noqa: E501
    attn: Attention
    rope: Rope | None = Field(None, description="null: no rotation in this layer.")
    alibi: Alibi | None = Field(None, description="ALiBi on the scores of this layer; null: none.")
    mlp: Mlp
    moe: Moe | None = Field(None, description="Experts in place of mlp's projections; null: none in this layer.")
    mixer: Annotated[Any, BeforeValidator(read_mixer)] = Field(None, description="A plugin in place of attention's projections, by its kind, with its parameters: {kind: mla, kv_rank: 512, …}; null: none.")  # fmt: skip  # noqa: E501

    @model_validator(mode="after")
    def _known_combination(self) -> "Block":
        if self.mlp.pre_norm == "shared" and (self.topology != "parallel" or not self.attn.pre_norm):
            raise ValueError("mlp.pre_norm shared needs topology: parallel and attn.pre_norm: true")
        if self.topology == "parallel" and (self.attn.after_norm or self.mlp.after_norm):
            raise ValueError("topology parallel adds both branches at once; it has no after_norm")
        return self


class Head(Strict):
    """Output head."""

    tied: bool = Field(False, description="Shares the embedding's weight.")
    bias: bool = Field(False, description="Has a bias (Phi).")
    mul: float = Field(1.0, description="Factor on the logits (Cohere).")
    div: float = Field(1.0, description="Divisor of the logits (Granite).")
    softcap: float | None = Field(None, gt=0, description="logits become c * tanh(logits / c) (Gemma 2: 30).")


Count = Annotated[int, Field(gt=0, lt=2**31)]


class Dims(Strict):
    """Sizes of a model, in elements."""

    vocab: Count
    hidden: Count
    layers: int = Field(gt=0, le=10_000)
    heads: Count
    kv_heads: Count
    head_dim: Count
    ffn: Count = Field(description="Width of the feed-forward branch.")
    max_pos: Count = Field(description="Longest context, in tokens.")
    pos_rows: Count = Field(description="Rows of a learned position table (OPT, BioGPT: max_pos + 2).")

    @model_validator(mode="after")
    def _heads_divide(self) -> "Dims":
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads do not share {self.kv_heads} key/value heads evenly")
        return self


class Tokenizer(Strict):
    """Conventions that are checked against the tokenizer; null: not checked."""

    add_bos: bool | None = Field(None, description="Encoding text puts BOS first.")
    bos_id: int | None = None
    eos_ids: tuple[int, ...] | None = Field(None, strict=False)
    pad_id: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_eos(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("eos_ids"), int):
            value = {**value, "eos_ids": (value["eos_ids"],)}
        return value


class Size(Strict):
    """One size of a family: a frozen config.json, and the hub id it is published under."""

    hf: str | None = Field(None, description="Hub id, for example google/gemma-7b.")
    config: dict[str, Any] = Field(description="HF-style config values; the same path as a checkpoint's config.json.")
    tokenizer: dict[str, Any] = Field(default_factory=dict, description="Tokenizer conventions of this size alone.")

    @field_validator("tokenizer")
    @classmethod
    def _known_conventions(cls, value: dict[str, Any]) -> dict[str, Any]:
        unknown = [key for key in value if key not in Tokenizer.model_fields]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no convention; {closest(unknown[0], Tokenizer.model_fields)}")
        return value
