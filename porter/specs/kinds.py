"""What every part of the schema is made of: the strict model, and the closed sets that several parts share."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Rounding = Literal["act", "fp32"]  # act: the dtype of the activations
Activation = Literal["silu", "gelu", "gelu_tanh", "gelu_new", "gelu_bloom", "quick_gelu", "relu", "relu2"]

HF_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "swish": "silu", "relu_squared": "relu2"}


def read_activation(value: Any) -> Any:
    return HF_ACTIVATIONS.get(value, value) if isinstance(value, str) else value


class Strict(BaseModel):
    """Unknown keys are errors, values do not change; true is no number, "0.5" neither."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
