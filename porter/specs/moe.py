"""What a spec may say of a mixture of experts."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WrapValidator, model_validator

from porter.specs.kinds import Activation, Rounding, Strict, read_activation
from porter.specs.plugins import or_plugin


class Groups(Strict):
    """Experts are chosen among those of the best groups alone (DeepSeek V2 and V3, GLM 4.5)."""

    n: int = Field(gt=0, description="How many groups the experts stand in, in their order.")
    top: int = Field(gt=0, description="How many groups are chosen from.")
    by: Literal["top2", "max"] = Field("top2", description="A group counts by the sum of its two best (DeepSeek V3), or by its best (DeepSeek V2).")  # fmt: skip  # noqa: E501

    @model_validator(mode="after")
    def _known_combination(self) -> "Groups":
        if self.top > self.n:
            raise ValueError(f"{self.top} groups cannot be chosen of {self.n}")
        return self


class Router(Strict):
    """Which experts a token goes to, and with what weights their outputs are added."""

    dtype: Rounding = Field("act", description="Dtype of the product with the router's weight (DeepSeek: fp32).")
    bias: bool = Field(False, description="The product has a bias (gpt-oss).")
    score: Annotated[Literal["softmax", "sigmoid"], WrapValidator(or_plugin("router")), PlainSerializer(str)] = Field("softmax", description="From logits to scores (DeepSeek V3: sigmoid), or the key of a plugin.")  # fmt: skip  # noqa: E501
    order: Literal["score_then_topk", "topk_then_score"] = Field("score_then_topk", description="topk_then_score: the chosen logits alone are scored (Granite, gpt-oss).")  # fmt: skip  # noqa: E501
    score_dtype: Rounding = Field("fp32", description="Dtype of the scores and of choosing (gpt-oss, DBRX: act).")
    sorted: bool = Field(True, description="The chosen stand in the order of their scores, or as torch finds them (DeepSeek): their sum rounds otherwise.")  # fmt: skip  # noqa: E501
    correction: bool = Field(False, description="A learned bias is added for choosing, not for weights (DeepSeek V3).")
    groups: Groups | None = Field(None, description="Choose among the best groups; null: among all experts.")
    renorm: bool = Field(False, description="The chosen weights are divided by their sum (Mixtral).")
    renorm_eps: float = Field(0.0, ge=0, description="Added to that sum (DeepSeek V3: 1e-20).")
    weights_dtype: Rounding = Field("act", description="Dtype in which weights multiply outputs (Mixtral: fp32).")
    scale: float = Field(1.0, gt=0, description="Factor on the weights (DeepSeek).")


class Shared(Strict):
    """An expert that every token goes to."""

    ffn: int = Field(gt=0, description="Its width, in elements.")
    gate: Literal["none", "sigmoid"] = Field("none", description="sigmoid: its output is times the sigmoid of a learned projection to one number (Qwen2-MoE).")  # fmt: skip  # noqa: E501


class Moe(Strict):
    """A mixture of experts in place of the feed-forward branch; the norms around it are those of `mlp`."""

    experts: int = Field(gt=0, description="How many there are.")
    top_k: int = Field(gt=0, description="How many a token goes to.")
    ffn: int = Field(gt=0, description="Width of each expert, in elements.")
    act: Annotated[Activation, BeforeValidator(read_activation)] = Field("silu", description="Activation of the experts, shared ones too; they are gated.")  # fmt: skip  # noqa: E501
    alpha: float | None = Field(None, gt=0, description="act silu as gate * sigmoid(alpha * gate), in two steps (gpt-oss: 1.702).")  # fmt: skip  # noqa: E501
    limit: float | None = Field(None, gt=0, description="gate is held below it, up within both signs of it (gpt-oss: 7).")  # fmt: skip  # noqa: E501
    up_offset: float = Field(0.0, description="Added to up (gpt-oss: 1).")
    bias: bool = Field(False, description="The experts' projections have biases, added after the product rounds (gpt-oss).")  # fmt: skip  # noqa: E501
    shared: Shared | None = Field(None, description="An expert for every token; null: none.")
    router: Router

    @model_validator(mode="after")
    def _known_combination(self) -> "Moe":
        groups = self.router.groups
        if self.top_k > self.experts:
            raise ValueError(f"{self.top_k} experts cannot be chosen of {self.experts}")
        if groups is not None and self.experts % groups.n:
            raise ValueError(f"{self.experts} experts do not stand in {groups.n} groups evenly")
        if self.alpha is not None and self.act != "silu":
            raise ValueError(f"alpha belongs to act silu, not to {self.act}")
        return self
