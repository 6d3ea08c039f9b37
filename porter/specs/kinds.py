"""What every part of the schema is made of: the strict model, and the closed sets that several parts share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Rounding = Literal["act", "fp32"]  # act: the dtype of the activations
Activation = Literal["silu", "gelu", "gelu_tanh", "gelu_new", "gelu_bloom", "quick_gelu", "relu", "relu2"]
MlpActivation = Literal[Activation, "xielu"]  # also those that have tensors, which experts have not

HF_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "swish": "silu", "relu_squared": "relu2"}


def read_activation(value: Any) -> Any:
    return HF_ACTIVATIONS.get(value, value) if isinstance(value, str) else value


@dataclass(frozen=True)
class Slot:
    """A tensor of an activation.

    Attributes:
        fresh: its values in a model that has not been trained.
        stressed: what they spread around under random:stress, where fresh ones would hide it.
        trained: a parameter; else a constant that HF keeps in a buffer and in its checkpoints.
    """

    shape: tuple[int, ...]
    fresh: float
    stressed: float
    trained: bool = True


ACTIVATION_TENSORS: Mapping[str, Mapping[str, Slot]] = {
    "xielu": {
        "alpha_p": Slot((1,), 0.2034, 0.2034), "alpha_n": Slot((1,), -1.0502, -1.0502),
        "beta": Slot((), 0.5, 0.5, trained=False), "eps": Slot((), -1e-6, -0.5, trained=False),
    },
}  # fmt: skip


class Strict(BaseModel):
    """Unknown keys are errors, values do not change; true is no number, "0.5" neither."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
